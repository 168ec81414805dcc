"""Our loops against transformers' and against their own forwards, in one process, in turns.

    python -m benchmarks.speed --pair mini|110m|1b [--dtype float32] [--rounds 12] [--tokens 48]

Arms take turns in shuffled order, each round on another prompt with another seed; ratios are medians
over rounds of ratios within a round, so that a slow moment hits both sides. Acceptance differs
between loops with different uniform numbers, so SpS is compared by ms/token over rounds and the
tokens per loop are printed beside it. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from benchmarks.pairs import build, over_onnxruntime
from spsbench.base.environment import describe_environment
from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.config import resolve
from spsbench.config.models import ONNXRUNTIME, TORCH
from spsbench.decode.algorithms import start
from spsbench.decode.clock import Stopwatch, SystemClock
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.derivation import Derivation
from spsbench.engines.hf import ASSISTED, GENERATE, HFGenerateEngine
from spsbench.engines.local import EagerEngine
from spsbench.models.causal_lm import CausalLM
from spsbench.models.memory import suitable_threads
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.bench.forced import NullDecoder
from spsbench.parts.whatif.bench.forwards import time_forwards
from spsbench.runner import plan

K = 4
SAMPLING = SamplingParams(top_p=0.95)
_RESAMPLES = 2_000


def main() -> None:
    """Build, measure, print."""
    given = _arguments()
    _generate_once(*build("tiny", torch.float32, torch.device("cpu")))  # whatever is imported or set up late
    imports_bytes = psutil.Process().memory_info().rss
    dtype = getattr(torch, given.dtype)
    stock = build(given.pair, dtype, torch.device("cpu"))
    threads = given.threads or suitable_threads(stock[0].parameters)
    torch.set_num_threads(threads)
    over_onnx = given.backend == ONNXRUNTIME
    watched = _Watched(*(over_onnxruntime(given.pair, stock, threads) if over_onnx else stock))
    torch.set_num_threads(threads)  # the peers', whatever our own forwards left to torch
    facts = describe_environment()
    print(f"{given.pair}, {given.dtype}, {facts['cpu']['model']}, {threads} threads")
    print(f"our forwards over {given.backend}; load {facts['load_1m']:.1f}\n")
    prompts = _prompts(given.pair, given.context)
    if given.memory:
        del stock
        print(_memory(imports_bytes, watched, prompts[0], given))
        return
    times = _measure(_arms(watched, stock), prompts, given)
    print("| what | measured |\n|---|---|")
    for what, value in [*_peers(times), *_own(times, watched), *_forwards(watched.target, given.context)]:
        print(f"| {what} | {value} |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0, help="0: what suits the model's size")
    parser.add_argument("--backend", choices=(ONNXRUNTIME, TORCH), default=ONNXRUNTIME)
    parser.add_argument("--memory", action="store_true", help="measure memory alone, without peers")
    return parser.parse_args()


@dataclass
class _Watched:
    """Our pair, with the time of every forward noted while it is switched on.

    Attributes:
        seconds: of forwards, by arm and role, a list for each sequence.
    """

    target: CausalLM
    draft: CausalLM
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)

    @contextmanager
    def watching(self, arm: str) -> Iterator[None]:
        """Note forwards under ``<arm> target`` and ``<arm> draft``; prefills are left out."""
        models = {"target": self.target, "draft": self.draft}
        plain = {role: model.score for role, model in models.items()}
        for role, model in models.items():
            setattr(model, "score", self._timed(plain[role], f"{arm} {role}"))  # noqa: B010 - mypy
        try:
            yield
        finally:
            for model in models.values():
                del model.score

    def measured(self, name: str) -> list[list[float]]:
        """Without the sequence that is thrown away."""
        return self.seconds[name][1:]

    def _timed(self, score: Callable[..., Any], name: str) -> Callable[..., Any]:
        noted: list[float] = []
        self.seconds.setdefault(name, []).append(noted)

        def timed(tokens: torch.Tensor, last: int) -> torch.Tensor:
            started = time.perf_counter()
            logits: torch.Tensor = score(tokens, last)
            if len(tokens) <= K + 1:
                noted.append(time.perf_counter() - started)
            return logits

        return timed


Floats = NDArray[np.float64]
Times = dict[str, list[tuple[float, Generation | None]]]
Arm = Callable[[Request], tuple[float, Generation | None]]


def _arms(pair: _Watched, stock: tuple[TorchLM, TorchLM]) -> dict[str, Arm]:
    text, clock, cpu = NullDecoder(), SystemClock(), torch.device("cpu")
    target, draft = pair.target, pair.draft
    own = {
        "ArS": EagerEngine(target, None, 0, text, cpu, clock),
        "SpS": EagerEngine(target, draft, K, text, cpu, clock),
    }
    proving = {"SpS, rows kept": EagerEngine(target, draft, K, text, cpu, clock, derivation=Derivation(k=K))}
    theirs = {
        "generate": HFGenerateEngine(GENERATE, stock[0], None, 0, text),
        "assisted": HFGenerateEngine(ASSISTED, *stock, K, text),
    }
    arms: dict[str, Arm] = {name: _decoding(engine) for name, engine in (own | proving | theirs).items()}
    arms |= {f"{name} watched": _watching(pair, name, own[name]) for name in own}
    arms |= {"SpS bare": lambda r: (_bare(pair, r), None)}
    return arms


def _decoding(engine: EagerEngine | HFGenerateEngine) -> Arm:
    def run(request: Request) -> tuple[float, Generation | None]:
        found = engine.generate(request)
        return found.decode_s / len(found.tokens), found

    return run


def _watching(pair: _Watched, name: str, engine: EagerEngine) -> Arm:
    run = _decoding(engine)

    def watched(request: Request) -> tuple[float, Generation | None]:
        with pair.watching(name):
            return run(request)

    return watched


def _bare(pair: _Watched, request: Request) -> float:
    """Seconds a token of the algorithm alone: no stop rule, no ledger, nothing kept."""
    device = torch.device("cpu")
    with torch.inference_mode():
        drafter = ModelDrafter(pair.draft, request.sampling, device)
        uniforms = UniformStream(request.seed, device)
        begin = start(pair.target, drafter, request.prompt_ids, K, request.sampling, uniforms)
        loops = begin(Stopwatch(SystemClock()))
        started, emitted = time.perf_counter(), 0
        while emitted < request.max_new_tokens:
            emitted += len(next(loops).tokens)
        # The engine cuts what is too long; the time was spent all the same.
        return (time.perf_counter() - started) / request.max_new_tokens


def _prompts(pair: str, context: int) -> list[tuple[int, ...]]:
    """Real prompts for the trained pair, whose rows are then as peaked as in a run; else random tokens."""
    if pair == "mini":
        return [prompt.ids[-context:] for prompt in plan(resolve({"limit": 16})).prompts]
    generator = torch.Generator().manual_seed(0)
    return [tuple(row) for row in torch.randint(10, 500, (16, context), generator=generator).tolist()]


def _measure(arms: dict[str, Arm], prompts: list[tuple[int, ...]], given: argparse.Namespace) -> Times:
    shuffler, order = random.Random(0), list(arms)
    times: Times = {name: [] for name in arms}
    for number in range(-1, given.rounds):  # the first is thrown away
        prompt = prompts[number % len(prompts)]
        request = Request(prompt, given.tokens, (), SAMPLING, seed=number + 1, fixed_length=True)
        shuffler.shuffle(order)
        for name in order:
            result = arms[name](request)
            if number >= 0:
                times[name].append(result)
    return times


def _ratio(one: Sequence[float] | Floats, other: Sequence[float] | Floats) -> str:
    """Median of one/other within rounds, and its 95% interval over rounds."""
    within = np.array(one) / np.array(other)
    draws = np.random.default_rng(0).integers(len(within), size=(_RESAMPLES, len(within)))
    low, high = np.quantile(np.median(within[draws], axis=1), [0.025, 0.975])
    return f"{np.median(within):.3f} [{low:.3f}, {high:.3f}]"


def _peers(times: Times) -> Iterator[tuple[str, str]]:
    seconds = {name: [s for s, _ in found] for name, found in times.items()}
    for name, found in seconds.items():
        loops = [len(g.loops) for _, g in times[name] if g is not None and g.loops]
        tokens = [len(g.tokens) for _, g in times[name] if g is not None]
        per_loop = f", {sum(tokens) / sum(loops):.2f} tokens/loop" if loops else ""
        yield f"{name}, ms/token (median)", f"{1e3 * statistics.median(found):.2f}{per_loop}"
    yield "ArS: generate() / ours, ms/token", _ratio(seconds["generate"], seconds["ArS"])
    yield "SpS K=4: assisted / ours, ms/token", _ratio(seconds["assisted"], seconds["SpS"])
    per_loop_s = {name: _per_loop(times[name]) for name in ("assisted", "SpS")}
    yield "the same, ms/loop", _ratio(per_loop_s["assisted"], per_loop_s["SpS"])
    yield "speedup, ours: ArS / SpS", _ratio(seconds["ArS"], seconds["SpS"])
    yield "recorder on / off (SpS)", _ratio(seconds["SpS"], seconds["SpS bare"])
    yield "own rows kept for the proof / not (SpS)", _ratio(seconds["SpS, rows kept"], seconds["SpS"])


def _per_loop(found: Sequence[tuple[float, Generation | None]]) -> list[float]:
    return [s * len(g.tokens) / len(g.loops) for s, g in found if g is not None and g.loops]


def _own(times: Times, pair: _Watched) -> Iterator[tuple[str, str]]:
    """What our loops cost beyond their forwards, and how near the speedup comes to theirs."""
    ars, sps = (np.array(_per_loop(times[f"{arm} watched"])) for arm in ("ArS", "SpS"))
    loops = [len(g.loops) for _, g in times["SpS watched"] if g is not None and g.loops]
    step = np.array([statistics.fmean(found) for found in pair.measured("ArS target")])
    drafted, verified = (
        np.array([sum(found) / n for found, n in zip(pair.measured(name), loops, strict=True)])
        for name in ("SpS draft", "SpS target")
    )
    rest = sps - drafted - verified
    three = ", ".join(f"{1e3 * np.median(found):.2f}" for found in (step, drafted, verified))
    yield "forwards in the loop, ms: target, K drafts, block", three
    told = f"{1e3 * np.median(rest):.2f} ms, {100 * np.median(rest / sps):.1f}% of the loop"
    yield "overhead per loop beyond the forwards", told
    yield "speedup / what the forwards allow", _ratio(ars / sps, step / (drafted + verified))


def _forwards(target: CausalLM, context: int) -> Iterator[tuple[str, str]]:
    found = time_forwards(target, (1, K + 1), context, 10.0)
    ratio, low, high = found.ratio(K + 1)
    yield "verify t(5)/t(1)", f"{ratio:.3f} [{low:.3f}, {high:.3f}]"


def _memory(imports_bytes: int, pair: _Watched, prompt: tuple[int, ...], given: argparse.Namespace) -> str:
    """Resident memory after a sequence, against the process before, weights, and keys and values."""
    models = (pair.target, pair.draft)
    _generate_once(*models, prompt, given.tokens)
    gc.collect()
    weights = sum(model.forward_bytes() for model in models)
    kv = sum((model.kv_bytes_per_token or 0) * (given.context + given.tokens) for model in models)
    resident, expected = psutil.Process().memory_info().rss, imports_bytes + weights + kv
    mib = 2**20
    parts = f"({imports_bytes / mib:.0f} before + {(weights + kv) / mib:.0f} weights and KV) MiB"
    return f"{resident / mib:.0f} MiB resident / {parts} = {resident / expected:.2f}"


def _generate_once(
    target: CausalLM, draft: CausalLM, prompt: tuple[int, ...] = (5, 6, 7), tokens: int = 8
) -> None:
    engine = EagerEngine(target, draft, K, NullDecoder(), torch.device("cpu"), SystemClock())
    engine.generate(Request(prompt, tokens, (), SAMPLING, seed=0, fixed_length=True))


if __name__ == "__main__":
    main()
