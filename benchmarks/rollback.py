"""What rolling back costs on a random model of Qwen3.5's shape: states kept for each token, or read again.

    python -m benchmarks.rollback [--layers 24] [--width 1024] [--rounds 8] [--threads 1]

Loops of K = 4 in which each drafted token is accepted with probability 0.8, drafted by a small model of its
family, ``planes`` and ``replay`` in turns. Printed are the share of a loop that the rollback phase takes,
the time per token of ``replay`` over that of ``planes``, the time of a forward of K+1 rows that keeps their
states over one that keeps none, and whether greedy SpS writes the text of transformers' ``generate``. Random
weights: times are **synthetic** but for their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers

from benchmarks.hybrids import by_generate, greedy
from spsbench.base import Request, SamplingParams
from spsbench.models import TorchLM
from spsbench.parts.whatif.bench.forced import SyntheticAcceptance, forced_engine
from spsbench.parts.whatif.bench.turns import in_turns

K, ALPHA, TOKENS, CONTEXT, HEAD = 4, 0.8, 48, 128, 64


def qwen(layers: int, width: int, seed: int) -> Any:
    """Return a random model: three gated delta rules, then full attention, and so on."""
    torch.manual_seed(seed)
    heads = width // HEAD
    config = transformers.AutoConfig.for_model(
        "qwen3_5_text",
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=HEAD,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=HEAD,
        linear_value_head_dim=HEAD,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


class Round(NamedTuple):
    """Of one sequence: seconds a token, the rollback's share of its loops, seconds of a block behind it."""

    per_token_s: float
    share: float
    block_s: float


def pair(target: Any, draft: Any, *, planes: bool) -> tuple[TorchLM, TorchLM]:
    models = TorchLM(target), TorchLM(draft)
    if not planes:
        for model in models:
            model.keep_no_planes()
    return models


@torch.inference_mode()
def block_s(model: TorchLM, prompt: list[int]) -> float:
    """Return the seconds of one forward of K+1 rows behind a prompt."""
    pending = model.begin(prompt)
    model.score(pending, last=1)
    block = torch.arange(K + 1)
    started = time.perf_counter()
    model.score(block, last=K + 1)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    target, draft = qwen(given.layers, given.width, 0), qwen(4, 256, 1)
    prompt = torch.randint(4096, (CONTEXT,), generator=torch.Generator().manual_seed(2)).tolist()
    pairs = {name: pair(target, draft, planes=name == "planes") for name in ("planes", "replay")}
    engines = {
        name: forced_engine(*models, K, SyntheticAcceptance([ALPHA])) for name, models in pairs.items()
    }

    def timed(name: str, number: int) -> Round:
        request = Request(
            tuple(prompt), TOKENS, (), SamplingParams(), abs(number), fixed_length=True, trace=False
        )
        made = engines[name].generate(request)
        rolling_s = sum(loop.rollback_s or 0.0 for loop in made.loops or ())
        per_token_s = made.decode_s / len(made.tokens)
        round_ = Round(per_token_s, rolling_s / made.decode_s, block_s(pairs[name][0], prompt))
        assert pairs[name][0].rolled_back_by == name
        return round_

    rounds = in_turns({name: partial(timed, name) for name in pairs}, range(-1, given.rounds), 0)
    for name, found in rounds.items():
        share = [each.share for each in found]
        print(
            f"{name:7} {1e3 * statistics.median(each.per_token_s for each in found):7.1f} ms/token, rollback "
            f"{statistics.median(share):.2%} of a loop [{min(share):.2%}, {max(share):.2%}]"
        )
    both = [*zip(rounds["planes"], rounds["replay"], strict=True)]
    ratios = [replay.per_token_s / planes.per_token_s for planes, replay in both]
    forwards = [planes.block_s / replay.block_s for planes, replay in both]
    print(f"replay over planes, per token: {statistics.median(ratios):.3f}")
    ratio = statistics.median(forwards)
    print(f"a forward of {K + 1} rows that keeps states over one that keeps none: {ratio:.3f}")
    generator = torch.Generator().manual_seed(3)
    model = pairs["planes"][0]
    same = greedy(model, prompt, 24, generator) == by_generate(target, prompt, 24)
    print(f"greedy SpS writes the text of generate: {same}")


if __name__ == "__main__":
    main()
