"""What a trained drafter costs beyond its layers, and what keeping states costs the target.

    python -m benchmarks.draft_steps [--layers 12] [--width 512] [--rounds 24] [--threads 1]

Over a random target of Qwen 3's shape. A draft of K = 4 tokens by an EAGLE-3 head and by an MTP module, over
the time of the forwards of its layers and output head inside it; and the target's forward of K + 1 rows that
keeps the states which each reads, over one that keeps none, in turns. Random weights: times are
**synthetic** but for their ratios.
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
from spsbench.parts.whatif.bench.turns import in_turns

VOCABULARY = 8_192
CPU = torch.device("cpu")


def qwen3(layers: int, width: int) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 256),
        head_dim=64,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def drafters(folder: Path, model: Any) -> dict[str, Spec]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from support import published_heads, tiny_mtp  # type: ignore[import-not-found]

    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    ids = (2, layers // 2, layers - 3)
    head = published_heads.save_published(folder / "eagle3", width, VOCABULARY, ids=ids)
    module = tiny_mtp.save_speculators_mtp(folder / "mtp", model.config, "random")
    return {"eagle3": Spec("heads", (("from", str(head)),)), "mtp": Spec("mtp", (("from", str(module)),))}


@torch.inference_mode()
def over_its_forwards(model: Any, spec: Spec, prompt: list[int], rounds: int) -> list[float]:
    """A draft's time over that of the forwards inside it, in loops of which nothing is accepted."""
    target = TorchLM(model)
    kept = target.with_features("--drafter", drafter_kind(spec.name).states_of(spec, target.layers))
    given = Context(kept, None, SamplingParams(), CPU, VOCABULARY, hidden=kept, k=K)
    drafter: Any = build_drafter(spec, given)
    chain, inside = drafter.model._chain, list[float]()

    def timed(forward: Any, *args: Any) -> Any:
        began = time.perf_counter()
        found = forward(*args)
        inside.append(time.perf_counter() - began)
        return found

    for name in ("combined", "extend"):  # the product over the states, the layers and the head
        setattr(chain, name, partial(timed, getattr(chain, name)))
    numbers, tokens, ratios = UniformStream(0, CPU), [*prompt, 5], []
    kept.score(kept.begin(prompt), last=1)
    drafter.begin(prompt)
    for _ in range(rounds):
        inside.clear()
        began = time.perf_counter()
        drafter.draft(tokens, K, numbers(K))
        ratios.append((time.perf_counter() - began) / sum(inside))
        kept.score(torch.tensor(tokens[-1:]), last=1)
        tokens.append(7)
        drafter.observe(tokens, 0)
    return ratios[4:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    model = qwen3(given.layers, given.width)
    prompt = torch.randint(VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(2)).tolist()
    with TemporaryDirectory() as folder:
        specs = drafters(Path(folder), model)
        for name, spec in specs.items():
            found = over_its_forwards(model, spec, prompt, given.rounds)
            print(f"{name}: a draft of {K} over its own forwards {statistics.median(found):.3f}", flush=True)
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
