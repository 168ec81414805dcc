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
from typing import Any

import torch
import transformers

from benchmarks.hybrids import by_generate, greedy
from spsbench.base import Request, SamplingParams
from spsbench.models import TorchLM
from spsbench.parts.whatif.bench.forced import SyntheticAcceptance, forced_engine

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
    per_token: dict[str, list[float]] = {name: [] for name in pairs}
    shares: dict[str, list[float]] = {name: [] for name in pairs}
    blocks: dict[str, list[float]] = {name: [] for name in pairs}
    for number in range(given.rounds):
        for name in (*pairs,) if number % 2 else (*reversed([*pairs]),):
            request = Request(
                tuple(prompt), TOKENS, (), SamplingParams(), number, fixed_length=True, trace=False
            )
            made = engines[name].generate(request)
            loops = made.loops or ()
            per_token[name].append(made.decode_s / len(made.tokens))
            shares[name].append(sum(loop.rollback_s or 0.0 for loop in loops) / made.decode_s)
            blocks[name].append(block_s(pairs[name][0], prompt))
            assert pairs[name][0].rolled_back_by == name
    for name in pairs:
        share = shares[name]
        print(
            f"{name:7} {1e3 * statistics.median(per_token[name]):7.1f} ms/token, rollback "
            f"{statistics.median(share):.2%} of a loop [{min(share):.2%}, {max(share):.2%}]"
        )
    ratios = [again / kept for again, kept in zip(per_token["replay"], per_token["planes"], strict=True)]
    forwards = [kept / bare for kept, bare in zip(blocks["planes"], blocks["replay"], strict=True)]
    print(f"replay over planes, per token: {statistics.median(ratios):.3f}")
    ratio = statistics.median(forwards)
    print(f"a forward of {K + 1} rows that keeps states over one that keeps none: {ratio:.3f}")
    generator = torch.Generator().manual_seed(3)
    model = pairs["planes"][0]
    same = greedy(model, prompt, 24, generator) == by_generate(target, prompt, 24)
    print(f"greedy SpS writes the text of generate: {same}")


if __name__ == "__main__":
    main()
