"""Loops by programs of the runtime against the same loops operator by operator, in one process, in turns.

    python -m benchmarks.stages [--threads 1] [--rounds 24] [--tokens 64] [--k 4]

Each round is a prompt and a seed; both ways have the same tokens, or it ends. A ratio is the median over
rounds of ratios within a round, with its 95% interval over rounds. Run it on a quiet machine: the target's
forward leaves nothing in the processor's caches, so that what is measured is how much code a loop touches.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.pairs import build, over_onnxruntime
from spsbench.base.environment import describe_environment
from spsbench.base.records import Request, SamplingParams
from spsbench.config import resolve
from spsbench.decode.clock import SystemClock
from spsbench.decode.stages import no_programs
from spsbench.engines.local import EagerEngine
from spsbench.parts.whatif.bench.forced import NullDecoder
from spsbench.runner import plan

_LAWS = {"greedy": SamplingParams(greedy=True), "nucleus .95": SamplingParams(top_p=0.95)}
_RESAMPLES = 2_000


def main() -> None:
    """Measure and print."""
    given = _arguments()
    torch.set_num_threads(1)
    cpu, clock, text = torch.device("cpu"), SystemClock(), NullDecoder()
    stock = build("mini", torch.float32, cpu)
    target, draft = over_onnxruntime("mini", stock, given.threads)
    prompts = [prompt.ids[-200:] for prompt in plan(resolve({"limit": 16})).prompts]
    facts = describe_environment()
    print(f"{facts['cpu']['model']}, {given.threads} threads, load {facts['load_1m']:.1f}")
    print(f"mini, K = {given.k}\n")
    print("| law | method | host, ms a loop | programs | programs / host [95%] |\n|---|---|--:|--:|--:|")
    shuffler = random.Random(0)
    for name, law in _LAWS.items():
        arms: dict[tuple[str, bool], Callable[[Request], tuple[float, list[int]]]] = {}
        for staged in (False, True):
            for method, own in (("ArS", None), ("SpS", draft)):
                engine = EagerEngine(target, own, given.k, text, cpu, clock)
                arms[method, staged] = _timed(engine, staged=staged)
        ms: dict[tuple[str, bool], list[float]] = {arm: [] for arm in arms}
        for number in range(-1, given.rounds):  # the first is thrown away
            request = Request(
                prompts[number % len(prompts)], given.tokens, (), law, seed=number + 1, fixed_length=True
            )
            order, tokens = list(arms), dict[str, list[int]]()
            shuffler.shuffle(order)
            for method, staged in order:
                took_ms, found = arms[method, staged](request)
                assert tokens.setdefault(method, found) == found, "other tokens"
                if number >= 0:
                    ms[method, staged].append(took_ms)
        for method in ("ArS", "SpS"):
            host, programs = np.array(ms[method, False]), np.array(ms[method, True])
            both = f"{np.median(host):.3f} | {np.median(programs):.3f}"
            print(f"| {name} | {method} | {both} | {_ratio(programs, host)} |")


def _timed(engine: EagerEngine, *, staged: bool) -> Callable[[Request], tuple[float, list[int]]]:
    """Milliseconds a loop of a sequence, and its tokens."""

    def run(request: Request) -> tuple[float, list[int]]:
        if staged:
            found = engine.generate(request)
        else:
            with no_programs():
                found = engine.generate(request)
        return 1e3 * found.decode_s / len(found.loops or ()), list(found.tokens)

    return run


def _ratio(one: NDArray[np.float64], other: NDArray[np.float64]) -> str:
    within = one / other
    draws = np.random.default_rng(0).integers(len(within), size=(_RESAMPLES, len(within)))
    low, high = np.quantile(np.median(within[draws], axis=1), [0.025, 0.975])
    return f"{np.median(within):.3f} [{low:.3f}, {high:.3f}]"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--k", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
