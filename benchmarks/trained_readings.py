"""Heads of several kinds at equal training and equal text, and each read as engines read it.

    python -m benchmarks.trained_readings --folder FOLDER [--updates 300] [--texts 4] [HEAD ...]

Over the built-in pair's target (synthetic). Its own generator's documents and programs are read by the
target, every token with the target's distribution, and each head learns the same batches in the same order.
Then the target writes texts behind other prompts, of summaries (prose) and of programs (code), and every head
drafts K tokens behind each of their tokens at temperature 1: modified rejection's chances are exact there,
only the texts are drawn. Cost is the time of a draft of K tokens over that of a forward of the target,
medians in turns over torch. What was trained already is read from its folder.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.read_otherwise import Accepted, by_reading
from spsbench.drafters.registry import Context, build_drafter, states_read
from spsbench.models import speculators
from spsbench.models.hf_errors import quiet_libraries
from spsbench.models.source import find
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import MadeFor
from spsbench.parts.distill.folders import write_draft, write_speculators
from spsbench.parts.distill.sampler import Sampled, Writer
from spsbench.parts.distill.students import (
    BlockHead,
    Eagle3Head,
    EagleHead,
    MedusaHeads,
    ModuleHead,
    Teacher,
    shortened,
    states_between,
)
from spsbench.parts.distill.training import Batch, Progress, Training, batches_of, has_fast_bfloat16
from training.corpus import draw_context

TARGET, CPU = "embedded:mini/target", torch.device("cpu")
DEPTHS, K, BATCH_TOKENS, LONGEST, TOKENS = 2, 5, 2_048, 320, 48
BLOCK, MASK = 8, 1023
OTHER_IDS = (1, 4, 7)


class Flagged(Eagle3Head):
    """An EAGLE-3 head with what engines read differently: ids of its own, two layers, residual and recycled
    state after the norms."""

    def __init__(self, teacher: Teacher, depths: int) -> None:
        super().__init__(teacher, depths, OTHER_IDS)
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        self.model.layers[0]._before_residual = True
        config: LlamaConfig = self.model.config
        config.num_hidden_layers = 2
        second = LlamaDecoderLayer(config, 1)
        last = teacher.model.get_decoder().layers[-1]
        second.load_state_dict(last.float().state_dict())
        self.model.layers.append(second)

    def recycled(self, states: Tensor) -> Tensor:
        normed: Tensor = self.norm(states)
        return normed


@dataclass(frozen=True)
class Head:
    """A head, how it is built, and how a folder of it is read.

    Attributes:
        readings: by what it says of an engine, an option of the drafter, or a change of a copy of its folder.
    """

    kind: str
    build: Callable[[Teacher], Any]
    told: dict[str, Any]
    readings: dict[str, str | Callable[[Path], None]]


def changed(told: dict[str, Any] | None = None, **tensors: Callable[[dict[str, Tensor]], Tensor]) -> Any:
    """Return a change of a folder: fields of its configuration, None for none, and tensors by name."""

    def change(folder: Path) -> None:
        path, weights = folder / "config.json", folder / "model.safetensors"
        kept = json.loads(path.read_text()) | (told or {})
        path.write_text(json.dumps({name: value for name, value in kept.items() if value is not None}))
        held = load_file(weights)
        held |= {name.replace("__", "."): make(held).contiguous() for name, make in tensors.items()}
        save_file(held, weights, {"format": "pt"})

    return change


def causal(folder: Path) -> None:
    """Read full attention of a block as causal: a window as long as any text, earlier places alone."""
    told = json.loads((folder / "config.json").read_text())
    layer = told[speculators.LAYER]
    layer |= {"layer_types": ["sliding_attention"] * layer["num_hidden_layers"]}
    layer |= {"sliding_window": 1 << 20, "use_sliding_window": True}
    (folder / "config.json").write_text(json.dumps(told))


def skipping_fc(folder: Path) -> None:
    """Read the target's last state in place of what ``fc`` makes of three."""
    from safetensors import safe_open

    norm = find(TARGET, None, "--target")
    held = load_file(folder / "model.safetensors")
    width = held[speculators.FC].shape[0]
    with safe_open(Path(norm.location) / "model.safetensors", framework="pt") as file:
        held[speculators.WHOLE_NORM] = file.get_tensor("model.norm.weight")
    held[speculators.FC] = torch.eye(width, dtype=held[speculators.FC].dtype)
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    changed({speculators.READS: [8], "norm_before_fc": True})(folder)


def without_norm(folder: Path) -> None:
    ones = {"layers__1__input_layernorm__weight": lambda held: torch.ones_like(held["norm.weight"])}
    changed(None, **ones)(folder)


HEADS = {
    "eagle3-flags": Head(
        "eagle3",
        lambda teacher: Flagged(teacher, DEPTHS),
        {"norm_before_residual": True, "norm_output": True},
        {
            "1 ids: k is the output of layer k": "ids=output",
            "2 nested ids are not found: 2, n//2, n-3": changed({speculators.READS: None}),
            "3 norm_before_residual is not read": "residual=pre",
            "4 norm_output is not read": "recycle=pre",
            "5 layers from 1 on: hidden_norm, which the file lacks": without_norm,
        },
    ),
    "mtp": Head(
        "mtp", lambda teacher: ModuleHead(teacher, DEPTHS), {}, {"14 state before the norm": "recycle=pre"}
    ),
    "dflash": Head(
        "dflash",
        lambda teacher: BlockHead(teacher, 2, BLOCK, MASK, states_between(8)),
        {},
        {
            "7 anchor: a place predicts the next token": "anchor=next",
            "8 full attention as causal": causal,
            "9 ids: k is the output of layer k": "ids=output",
            "13 blocks one place shorter": changed({"block_size": BLOCK - 1}),
        },
    ),
    "eagle3": Head(
        "eagle3",
        lambda teacher: Eagle3Head(teacher, DEPTHS, states_between(8)),
        {},
        {
            "1 ids: k is the output of layer k": "ids=output",
            "3 missing norm_before_residual is true": "residual=post",
            "6 as EAGLE: fc is skipped": skipping_fc,
        },
    ),
    "dflash-anchor": Head(
        "dflash",
        lambda teacher: BlockHead(teacher, 2, BLOCK, MASK, states_between(8), anchor_predicts=True),
        {},
        {"10 (and 7) sampled from the anchor, read as DFlash": "anchor=own"},
    ),
    "eagle": Head("eagle", lambda teacher: EagleHead(teacher, DEPTHS), {}, {}),
    "eagle3-last": Head("eagle3", lambda teacher: Eagle3Head(teacher, DEPTHS), {}, {}),
    "medusa": Head("medusa", lambda teacher: MedusaHeads(teacher, K), {}, {}),
}


def lessons(writer: Writer, encode: Callable[[str], list[int]], count: int) -> list[Sampled]:
    """Documents and programs of the training part, of which every token is learnt from."""
    drawn = random.Random("heads")
    ids = [[*encode("".join(text for text, _ in draw_context(drawn)))[:LONGEST], 0] for _ in range(count)]
    ids.sort(key=len)
    read = []
    for first in range(0, count, 16):
        read += writer.read([(each, 1) for each in ids[first : first + 16]], 1.0)
    return read


def train(name: str, teacher: Teacher, texts: Sequence[Sampled], updates: int, folder: Path) -> float:
    """Train a head unless it was, and write its folder; return the seconds of training."""
    out, done = folder / name, folder / name / "seconds.json"
    if done.exists():
        return float(json.loads(done.read_text()))
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    head = HEADS[name]
    student = head.build(teacher)

    def batches(epoch: int) -> Iterator[Batch]:
        return batches_of({"chat": texts}, BATCH_TOKENS, epoch, CPU, torch.float32)

    training = Training(teacher, student, out, Progress(updates), teacher.model.dtype)

    def tell(progress: Progress, loss: float) -> None:
        if progress.updates % 25 == 0:
            print(
                f"{name}: {progress.updates} updates, {progress.seconds:.0f} s, loss {loss:.3f}", flush=True
            )

    training.run(batches, dict, updates, tell)
    width, size = teacher.hidden, len(teacher.vocabulary)
    made = MadeFor(TARGET, width, size, "")
    if head.kind in ("eagle", "medusa"):
        from spsbench.models.checkpoint import Checkpoint
        from spsbench.models.trained import embedding_fingerprint

        own = embedding_fingerprint(Checkpoint(Path(find(TARGET, None, "--target").location)))
        made = MadeFor(TARGET, width, size, own)
        config = shortened(teacher.config.to_dict(), [7]) if head.kind == "eagle" else None
        heads = K if head.kind == "medusa" else 0
        write_draft(out, head.kind, made, config, heads, student.weights(), teacher.vocabulary)
    else:
        write_speculators(out, made, TARGET, teacher, student)
        changed(head.told)(out)
    done.write_text(json.dumps(training.progress.seconds))
    return training.progress.seconds


def drafter(name: str, folder: Path, options: str = "") -> Spec:
    kind = "mtp" if HEADS[name].kind == "mtp" else "heads"
    return Spec.parse(f"{kind}:from={folder}" + (f":{options}" if options else ""))


def accepted(target: TorchLM, spec: Spec, prompts: Sequence[list[int]]) -> Accepted:
    return by_reading(target, spec, [{}], prompts, k=K, tokens=TOKENS)[0]


def shown(found: Accepted) -> str:
    places = " / ".join(f"{chance:.2f}" for chance in found.by_place)
    return f"{places} | {statistics.mean(found.lengths):.2f}"


def costs(target: TorchLM, specs: dict[str, Spec], prompt: list[int]) -> dict[str, float]:
    """Median seconds of a draft of K tokens over those of a forward of one token, in turns."""
    sampling = SamplingParams()
    keeping: Any = target.with_features("--drafter", states_read(list(specs.values()), target.layers))
    given: dict[str, Any] = {"device": CPU, "vocab_size": target.vocab_size, "hidden": keeping, "k": K}
    drafters = {
        name: build_drafter(spec, Context(keeping, None, sampling, **given)) for name, spec in specs.items()
    }
    numbers = UniformStream(0, CPU)
    pending = keeping.begin(prompt)
    keeping.score(pending, last=1)
    tokens, seconds = [*prompt, 5], {name: list[float]() for name in ("", *specs)}
    for each in drafters.values():
        each.begin(prompt)
    for _ in range(16):  # loops of which nothing is accepted
        for name, each in drafters.items():
            began = time.perf_counter()
            each.draft(tokens, K, numbers(K))
            seconds[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        keeping.score(torch.tensor(tokens[-1:]), last=1)
        seconds[""].append(time.perf_counter() - began)
        tokens.append(7)
        for each in drafters.values():
            each.observe(tokens, 0)
    base = statistics.median(seconds[""])
    return {name: statistics.median(each) / base for name, each in seconds.items() if name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("heads", nargs="*", default=list(HEADS))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--sequences", type=int, default=1_200)
    parser.add_argument("--texts", type=int, default=4, help="of each sort")
    parser.add_argument("--only-train", action="store_true")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM

    quiet_libraries()
    source = find(TARGET, None, "--target")

    def encode(text: str) -> list[int]:
        return list(source.tokenizer.encode(text, special=True))

    dtype = torch.bfloat16 if has_fast_bfloat16(CPU) else torch.float32
    model = AutoModelForCausalLM.from_pretrained(source.location, dtype=dtype).eval().requires_grad_(False)
    writer = Writer(model, [0], source.tokenizer.size)
    teacher = Teacher(model, torch.arange(source.tokenizer.size))
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = args.folder / "texts.pt"
    if not kept.exists():
        began = time.perf_counter()
        torch.save(lessons(writer, encode, args.sequences), kept)
        print(f"texts: {time.perf_counter() - began:.0f} s", flush=True)
    torch.serialization.add_safe_globals([Sampled])
    texts = torch.load(kept, weights_only=True)
    print(f"{sum(len(each.tokens) for each in texts):,} tokens", flush=True)
    for name in args.heads:
        print(
            f"{name}: trained in {train(name, teacher, texts, args.updates, args.folder):.0f} s", flush=True
        )
    if not args.only_train:
        measure(args, source.location, encode)


def measure(args: Any, location: str, encode: Callable[[str], list[int]]) -> None:
    from transformers import AutoModelForCausalLM

    target = TorchLM(AutoModelForCausalLM.from_pretrained(location, dtype=torch.float32).eval())
    target.files = Path(location)
    drawn = random.Random("texts")
    prompts: dict[str, list[list[int]]] = {"prose": [], "code": []}
    while min(map(len, prompts.values())) < args.texts:
        pieces = draw_context(drawn)
        sort = "prose" if pieces[0][0].startswith("Article") else "code"
        ids = encode("".join(text for text, _ in pieces[:-1]))
        if len(ids) < LONGEST and len(prompts[sort]) < args.texts:
            prompts[sort].append(ids)
    print("| head | text | " + " / ".join(str(place + 1) for place in range(K)) + " | tokens per loop |")
    print("|---|---|---|---|")
    for name in args.heads:
        for sort, those in prompts.items():
            print(
                f"| {name} | {sort} | {shown(accepted(target, drafter(name, args.folder / name), those))} |",
                flush=True,
            )
    both = prompts["prose"] + prompts["code"]
    print("| head | read | " + " / ".join(str(place + 1) for place in range(K)) + " | tokens per loop |")
    print("|---|---|---|---|")
    for name in args.heads:
        if not HEADS[name].readings:
            continue
        print(
            f"| {name} | as trained | {shown(accepted(target, drafter(name, args.folder / name), both))} |",
            flush=True,
        )
        for number, (what, reading) in enumerate(HEADS[name].readings.items()):
            folder, options = args.folder / name, reading
            if not isinstance(reading, str):
                folder, options = args.folder / f"{name}-read-{number}", ""
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(args.folder / name, folder, ignore=shutil.ignore_patterns("*.pt"))
                reading(folder)
            print(
                f"| {name} | {what} | {shown(accepted(target, drafter(name, folder, str(options)), both))} |",
                flush=True,
            )
    with torch.inference_mode():
        specs = {name: drafter(name, args.folder / name) for name in args.heads}
        for name, cost in costs(target, specs, both[0]).items():
            print(f"cost of a draft of {K}: {name} {cost:.2f} of the target's forward", flush=True)


if __name__ == "__main__":
    main()
