"""What a trained drafter costs beyond its layers, and what keeping states costs the target.

    python -m benchmarks.draft_steps [--layers 12] [--width 512] [--vocabulary 8192] [--proposed 8192]
        [--dtype float32] [--rounds 24] [--threads 1]

Over a random target of Qwen 3's shape. A draft of K = 4 tokens by an EAGLE-3 head, with a layer of the
target's sizes and rows for some of its tokens, and by an MTP module, over the time of the forwards of its
layers and output head inside it; and the target's forward of K + 1 rows that keeps the states which each
reads, over one that keeps none, in turns. Random weights: times are **synthetic** but for their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from benchmarks.rollback import CONTEXT, K, block_s
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.registry import Context, build_drafter, drafter_kind
from spsbench.models import TorchLM
from spsbench.models.packed import pack_layers
from spsbench.parts.whatif.bench.turns import in_turns

CPU = torch.device("cpu")


def sizes(width: int) -> dict[str, int]:
    return {
        "intermediate_size": 3 * width,
        "num_attention_heads": width // 64,
        "num_key_value_heads": max(1, width // 256),
        "head_dim": 64,
    }


def qwen3(layers: int, width: int, vocabulary: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        eos_token_id=None,
        pad_token_id=None,
        **sizes(width),
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    pack_layers(model)
    return model


def drafters(folder: Path, model: Any, proposed: int) -> dict[str, Spec]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from support import published_heads, tiny_mtp  # type: ignore[import-not-found]

    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    ids = (2, layers // 2, layers - 3)
    size = model.config.vocab_size
    tokens = None if proposed == size else torch.arange(proposed) * (size // proposed)
    head = published_heads.save_published(
        folder / "eagle3", width, size, ids=ids, vocabulary=tokens, sizes=sizes(width)
    )
    module = tiny_mtp.save_speculators_mtp(folder / "mtp", model.config, "random")
    return {"eagle3": Spec("heads", (("from", str(head)),)), "mtp": Spec("mtp", (("from", str(module)),))}


@torch.inference_mode()
def over_its_forwards(model: Any, spec: Spec, prompt: list[int], rounds: int) -> list[tuple[float, float]]:
    """A draft's time and that of the forwards inside it, in loops of which nothing is accepted, ms."""
    target = TorchLM(model)
    kept = target.with_features("--drafter", drafter_kind(spec.name).states_of(spec, target.layers))
    given = Context(kept, None, SamplingParams(), CPU, target.vocab_size, hidden=kept, k=K)
    drafter: Any = build_drafter(spec, given)
    chain, inside = drafter.model._chain, list[float]()

    def timed(forward: Any, *args: Any) -> Any:
        began = time.perf_counter()
        found = forward(*args)
        inside.append(time.perf_counter() - began)
        return found

    for name in ("combined", "extend"):  # the product over the states, the layers and the head
        setattr(chain, name, partial(timed, getattr(chain, name)))
    numbers, tokens, times = UniformStream(0, CPU), [*prompt, 5], []
    kept.score(kept.begin(prompt), last=1)
    drafter.begin(prompt)
    for _ in range(rounds):
        inside.clear()
        began = time.perf_counter()
        drafter.draft(tokens, K, numbers(K))
        times.append((1e3 * (time.perf_counter() - began), 1e3 * sum(inside)))
        kept.score(torch.tensor(tokens[-1:]), last=1)
        tokens.append(7)
        drafter.observe(tokens, 0)
    return times[4:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=8_192)
    parser.add_argument("--proposed", type=int, help="rows of the EAGLE-3 head; default: the vocabulary")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    size, dtype = given.vocabulary, getattr(torch, given.dtype)
    model = qwen3(given.layers, given.width, size, dtype)
    prompt = torch.randint(size, (CONTEXT,), generator=torch.Generator().manual_seed(2)).tolist()
    with TemporaryDirectory() as folder:
        specs = drafters(Path(folder), model, given.proposed or size)
        for name, spec in specs.items():
            found = over_its_forwards(model, spec, prompt, given.rounds)
            ratio = statistics.median(draft / inside for draft, inside in found)
            median_ms = statistics.median(draft for draft, _ in found)
            print(
                f"{name}: a draft of {K} over its own forwards {ratio:.3f} ({median_ms:.1f} ms)", flush=True
            )
        targets = {"none": TorchLM(model)}
        for name, spec in specs.items():
            reads = drafter_kind(spec.name).states_of(spec, targets["none"].layers)
            targets[name] = TorchLM(model).with_features("--drafter", reads)

    def timed(name: str, number: int) -> float:
        return block_s(targets[name], prompt)

    times = in_turns({name: partial(timed, name) for name in targets}, range(-2, given.rounds), 0)
    for name in specs:
        ratio = statistics.median(
            kept / plain for kept, plain in zip(times[name], times["none"], strict=True)
        )
        print(
            f"{name}: a forward of {K + 1} rows that keeps what it reads over one that keeps none {ratio:.3f}"
        )


if __name__ == "__main__":
    main()
