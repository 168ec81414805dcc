"""Batches on a GPU: graphs of B rows, at the shapes of Llama-3.1-8B and Llama-3.2-1B.

    python -m benchmarks.gpu_batches [--out results/reference/gpu_batches.md]   on one large GPU
    python -m benchmarks.gpu_batches --tiny --device cpu --batches 1,2          the same, small and uncaptured

Random weights, bfloat16. Correctness comes first, in float32 on a small pair: every row of a batch against
the eager engine alone, token for token; nothing is timed if one differs. Acceptance is SYNTHETIC (0.8 a
token, by random draws).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.gpu import ALPHA, GREEDY, NUCLEUS, K, _capture, _name, _pair, accept_at
from benchmarks.pairs import build
from spsbench.base.arrays import Floats
from spsbench.base.environment import describe_environment
from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.decode.clock import SystemClock
from spsbench.decode.rejection import accept_drafts
from spsbench.engines.cuda_graph import StagedBatch
from spsbench.engines.local import BatchedEngine, EagerEngine
from spsbench.models.batched import StaticLM
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.bench.forced import NullDecoder
from spsbench.stats.bootstrap import pooled_interval


def main() -> int:
    """Check, measure, write."""
    given = _arguments()
    device = torch.device(given.device)
    libraries = describe_environment()["libraries"]
    versions = ", ".join(f"{name} {libraries[name]}" for name in ("torch", "transformers"))
    lines = [f"# Batches of graphs on {_name(device)}", "", f"* environment: {versions}"]
    lines += [f"* {line}" for line in _agreement(device)]
    target, draft = _pair(given.tiny, device)
    sizes = [int(size) for size in given.batches.split(",")]
    lines += [
        "",
        f"K = {K}, {given.context} tokens of context, {given.tokens} new ones a row, acceptance {ALPHA} a",
    ]
    lines += ["token (synthetic). Intervals are over rounds.", ""]
    lines += _table(target, draft, device, sizes, given)
    text = "\n".join(lines) + "\n"
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _agreement(device: torch.device) -> Iterator[str]:
    """Rows of a batch against the eager engine, token for token.

    Raises:
        SystemExit: they disagree.
    """
    target, draft = build("tiny", torch.float32, device)
    text, clock = NullDecoder(), SystemClock()
    lengths = (1, 7, 60, 30, 2)
    for sampling in (GREEDY, NUCLEUS):
        for k in (0, 1, K):
            models = [StaticLM(model, 160, 3) for model in (target, draft)]
            engine = _engine(models, k, sampling, device)
            eager = EagerEngine(target, draft if k else None, k, text, device, clock)
            requests = [
                Request(tuple(5 + i % 400 for i in range(n)), 16, (), sampling, seed=n, fixed_length=True)
                for n in lengths
            ]
            for place, answer in engine.generate_all(requests):
                alone = eager.generate(requests[place]).tokens
                if not isinstance(answer, Generation) or answer.tokens != alone:
                    sys.exit(f"row and sequence disagree: {sampling}, K = {k}, prompt of {lengths[place]}")
        yield f"float32, {'greedy' if sampling.greedy else 'sampled'}: every row == eager for K = 0, 1, {K}"


def _engine(
    models: Sequence[StaticLM],
    k: int,
    sampling: SamplingParams,
    device: torch.device,
    *,
    forced: bool = False,
) -> BatchedEngine:
    target, draft = models
    capture = _capture(device)
    accept = accept_at if forced else accept_drafts
    batch = StagedBatch(target, draft if k else None, k, sampling, capture, accept)
    return BatchedEngine(batch, NullDecoder(), device, SystemClock(), name="graphed")


def _table(
    target: TorchLM, draft: TorchLM, device: torch.device, sizes: Sequence[int], given: argparse.Namespace
) -> Iterator[str]:
    """Tokens per second of ArS and SpS, and the speedup at each batch size; sizes take turns."""
    slots = given.context + given.tokens + K + 1
    engines: dict[tuple[int, int], BatchedEngine] = {}
    for size in sizes:
        models = [StaticLM(model, slots, size) for model in (target, draft)]
        engines |= {(size, k): _engine(models, k, NUCLEUS, device, forced=True) for k in (0, K)}
    seconds: dict[tuple[int, int], list[float]] = {arm: [] for arm in engines}
    order, shuffler = list(engines), random.Random(0)
    for number in range(-1, given.rounds):
        shuffler.shuffle(order)
        for size, k in order:
            requests = [_request(target, number * size + row, given) for row in range(size)]
            taken = 0.0
            for _, answer in engines[size, k].generate_all(requests):
                if not isinstance(answer, Generation):
                    sys.exit(f"B = {size}, K = {k}: {answer}")
                taken += answer.decode_s
            if number >= 0:
                seconds[size, k].append(taken)
    yield "| B | ArS tokens/s | SpS tokens/s | speedup |"
    yield "|--:|--:|--:|--:|"
    for size in sizes:
        plain, speculating = seconds[size, 0], seconds[size, K]
        low, high = pooled_interval(
            [torch.tensor(each).numpy() for each in (plain, speculating)], _ratio, log=True
        )
        ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
        tokens = size * given.tokens * given.rounds
        rates = " | ".join(f"{tokens / sum(each):,.0f}" for each in (plain, speculating))
        yield f"| {size} | {rates} | {sum(plain) / sum(speculating):.2f}x{ends} |"


def _ratio(sums: Floats) -> Floats:
    return sums[0] / sums[1]  # type: ignore[no-any-return]


def _request(target: TorchLM, seed: int, given: argparse.Namespace) -> Request:
    generator = torch.Generator().manual_seed(seed + 1)
    prompt = torch.randint(5, target.vocab_size, (given.context,), generator=generator).tolist()
    return Request(tuple(prompt), given.tokens, (), NUCLEUS, seed=seed + 1, fixed_length=True)


if __name__ == "__main__":
    sys.exit(main())
