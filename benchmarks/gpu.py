"""The GPU row: graphs against eager and transformers, at the shapes of Llama-3.1-8B and Llama-3.2-1B.

    python -m benchmarks.gpu [--out results/reference/gpu]         at most ten minutes on one large GPU
    python -m benchmarks.gpu --tiny --device cpu                   the same steps, small and uncaptured

What is left of the ten minutes goes to the commands that people type (``gpu_street``). Random weights,
bfloat16, batch size 1. Correctness comes first: nothing is timed if graphs and eager disagree. Acceptance is
SYNTHETIC (0.8 a token, by random draws) in both engines of ours; transformers' own cannot be forced and is
compared by the loop.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu_street import street
from benchmarks.pairs import build
from spsbench.base.environment import describe_environment
from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.decode.clock import SystemClock
from spsbench.decode.rejection import Verdict
from spsbench.decode.sampling import draw
from spsbench.engines.cuda_graph import Capture, GraphedEngine, Graphs, StagedBatch, uncaptured
from spsbench.engines.hf import ASSISTED, GENERATE, HFGenerateEngine
from spsbench.engines.local import EagerEngine, Engine
from spsbench.models.batched import StaticLM, require_same_answers
from spsbench.models.memory import measured_bandwidth
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.bench.forced import NullDecoder, SyntheticAcceptance

K, ALPHA = 4, 0.8
GREEDY, NUCLEUS = SamplingParams(greedy=True), SamplingParams(temperature=0.3, top_p=0.95)
_ULPS = 2.0


def main() -> int:
    """Check, measure, write."""
    given = _arguments()
    device = torch.device(given.device)
    libraries = describe_environment()["libraries"]
    versions = ", ".join(f"{name} {libraries[name]}" for name in ("torch", "transformers"))
    lines = [f"# Graphs on {_name(device)}", "", f"* environment: {versions}", ""]
    started = time.monotonic()
    lines += ["## Correctness", "", *(f"* {line}" for line in _agreement(device))]
    target, draft = _pair(given.tiny, device)
    run = _Bench(target, draft, device, given.context, given.tokens)
    lines += [*(f"* {line}" for line in run.correctness()), "", "## Speed", ""]
    lines += [*run.table(given.rounds), "", "## Phases of a graphed loop, in a pass of their own", ""]
    lines += [*(f"* {line}" for line in run.phases()), ""]
    taken = time.monotonic() - started
    lines += [f"{taken:.0f} s in all. Acceptance is synthetic ({ALPHA} a token)."]
    text = "\n".join(lines) + "\n"
    print(text)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "gpu.md").write_text(text, encoding="utf-8")
    if given.minutes:
        del run, target, draft  # the commands need the device's memory
        print(street(given.device, tiny=given.tiny, budget_s=60 * given.minutes - taken, out=given.out))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--minutes", type=float, default=10.0, help="0: without the commands")
    parser.add_argument("--out", type=Path, help="a folder")
    return parser.parse_args()


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device} (no graphs)"


def _capture(device: torch.device) -> Capture:
    return Graphs(device) if device.type == "cuda" else uncaptured


def _pair(tiny: bool, device: torch.device) -> tuple[TorchLM, TorchLM]:
    """8B and 1B of random weights; the smaller is the draft."""
    names = ("tiny", "tiny") if tiny else ("8b", "1b")
    dtype = torch.float32 if tiny else torch.bfloat16
    return build(names[0], dtype, device)[0], build(names[1], dtype, device, seed=1)[0]


def _agreement(device: torch.device) -> Iterator[str]:
    """Graphs against eager in float32 on a small pair, token for token.

    Raises:
        SystemExit: they disagree.
    """
    target, draft = build("tiny", torch.float32, device)
    text, clock = NullDecoder(), SystemClock()
    for sampling in (GREEDY, NUCLEUS):
        for k in (0, 1, K):
            static = [StaticLM(model, 160) for model in (target, draft)]
            batch = StagedBatch(static[0], static[1] if k else None, k, sampling, _capture(device))
            graphed = GraphedEngine(batch, text, clock)
            eager = EagerEngine(target, draft if k else None, k, text, device, clock)
            for length in (1, 7, 60):
                prompt = tuple(5 + i % 400 for i in range(length))
                request = Request(prompt, 64, (), sampling, seed=length, fixed_length=True)
                if graphed.generate(request).tokens != eager.generate(request).tokens:
                    sys.exit(f"graphs and eager disagree: {sampling}, K = {k}, prompt of {length}")
        yield f"float32, {'greedy' if sampling.greedy else 'sampled'}: graphed == eager for K = 0, 1, {K}"


def accept_at(q: Tensor, tokens: Tensor, p: Tensor, u: Tensor) -> Verdict:
    """In place of ``accept_drafts``: each token stands with probability ``ALPHA``, whatever the rows say."""
    k = tokens.shape[1]
    accepted = (u[:, :k] < ALPHA).cumprod(1, dtype=torch.int64).sum(1)
    rows = q.gather(1, accepted[:, None, None].expand(-1, 1, q.shape[-1])).squeeze(1)
    return Verdict(accepted, draw(rows, u[:, k]))


class _Bench:
    """One pair on one device.

    Args:
        target, draft: loaded.
        device: where they are.
        context: prompt tokens.
        tokens: of every output.
    """

    def __init__(
        self, target: TorchLM, draft: TorchLM, device: torch.device, context: int, tokens: int
    ) -> None:
        self._models = {"target": target, "draft": draft}
        self._device, self._context, self._tokens = device, context, tokens
        slots = context + tokens + K + 1
        static = {role: StaticLM(model, slots) for role, model in self._models.items()}
        for role, model in self._models.items():
            require_same_answers(model, static[role], slots)
        text, clock, capture = NullDecoder(), SystemClock(), _capture(device)
        rule = SyntheticAcceptance([ALPHA]).rule()
        one, two = static["target"], static["draft"]
        self._batch = StagedBatch(one, two, K, NUCLEUS, capture, accept_at)
        self._graphed = GraphedEngine(self._batch, text, clock)
        self._engines: dict[str, Engine] = {
            "ArS eager": EagerEngine(target, None, 0, text, device, clock),
            "ArS graphed": GraphedEngine(StagedBatch(one, None, 0, NUCLEUS, capture), text, clock),
            "ArS hf-generate": HFGenerateEngine(GENERATE, target, None, 0, text),
            "SpS eager": EagerEngine(target, draft, K, text, device, clock, rule),
            "SpS graphed": self._graphed,
            "SpS hf-assisted": HFGenerateEngine(ASSISTED, target, draft, K, text),
        }
        self._greedy = GraphedEngine(StagedBatch(one, None, 0, GREEDY, capture), text, clock)

    def correctness(self) -> Iterator[str]:
        """Greedy tokens against one uncached forward: each within two units in the last place of the best."""
        request = self._request(0, GREEDY)
        found = self._greedy.generate(request).tokens
        with torch.inference_mode():
            logits = self._models["target"].score_uncached(
                torch.tensor([*request.prompt_ids, *found], device=self._device)
            )[self._context - 1 : -1]
        best = logits.max(-1).values
        chosen = logits.gather(-1, torch.tensor(found, device=self._device).unsqueeze(-1)).squeeze(-1)
        spacing = torch.finfo(logits.dtype).eps * best.abs().float()
        worst = float(((best - chosen).float() / spacing).max())
        verdict = "within" if worst <= _ULPS else "BEYOND"
        told = f"at most {worst:.2f} ulp below the best, {verdict} {_ULPS:.0f}"
        yield f"greedy against an uncached forward: {told}"

    def table(self, rounds: int) -> Iterator[str]:
        """ms/token, ms/loop, and how near each comes to what memory allows."""
        found: dict[str, list[Generation]] = {name: [] for name in self._engines}
        order, shuffler = list(self._engines), random.Random(0)
        for number in range(-1, rounds):
            shuffler.shuffle(order)
            for name in order:
                generation = self._engines[name].generate(self._request(number + 1, NUCLEUS))
                if number >= 0:
                    found[name].append(generation)
        bandwidth = measured_bandwidth(self._device)
        yield f"Memory is read at {(bandwidth or 0) / 1e9:,.0f} GB/s (measured)."
        yield ""
        yield "| engine | ms/token | tokens/loop | ms/loop | floor ms/loop | loop / floor | share of floor |"
        yield "|---|--:|--:|--:|--:|--:|--:|"
        for name, generations in found.items():
            yield self._row(name, generations, bandwidth)

    def phases(self) -> Iterator[str]:
        """Medians of the three stages, by events on a GPU."""
        # Half of the output only: the loops that are timed need slots of their own.
        self._graphed.generate(replace(self._request(1, NUCLEUS), max_new_tokens=self._tokens // 2))
        lengths = self._batch.lengths
        for name, stage in zip(("draft", "verify", "accept"), self._batch.stages(), strict=True):
            # Each replay goes on from the same length: the work is that of a loop.
            times = []
            for _ in range(20):
                before = lengths.clone()
                times.append(_timed_ms(stage, self._device))
                lengths.copy_(before)
            yield f"{name}: {statistics.median(times):.3f} ms"

    def _row(self, name: str, found: list[Generation], bandwidth: float | None) -> str:
        per_token = [1e3 * g.decode_s / len(g.tokens) for g in found]
        loops = [len(g.loops or ()) for g in found]
        per_loop = [1e3 * g.decode_s / n for g, n in zip(found, loops, strict=True)]
        cells = [f"{statistics.median(per_token):.3f}", f"{self._tokens * len(found) / sum(loops):.2f}"]
        floor = self._floor_ms(name.startswith("SpS"), bandwidth)
        loop = statistics.median(per_loop)
        cells += [f"{loop:.3f}"]
        cells += (
            ["-"] * 3 if floor is None else [f"{floor:.3f}", f"{loop / floor:.2f}", f"{floor / loop:.0%}"]
        )
        return f"| {name} | {' | '.join(cells)} |"

    def _floor_ms(self, speculative: bool, bandwidth: float | None) -> float | None:
        if bandwidth is None:
            return None
        held = self._context + self._tokens / 2
        sizes = {
            role: model.forward_bytes() + held * (model.kv_bytes_per_token or 0)
            for role, model in self._models.items()
        }
        total = sizes["target"] + (K * sizes["draft"] if speculative else 0.0)
        return float(1e3 * total / bandwidth)

    def _request(self, seed: int, sampling: SamplingParams) -> Request:
        generator = torch.Generator().manual_seed(seed)
        size = self._models["target"].vocab_size
        prompt = torch.randint(5, size, (self._context,), generator=generator).tolist()
        return Request(tuple(prompt), self._tokens, (), sampling, seed=seed, fixed_length=True)


def _timed_ms(stage: object, device: torch.device) -> float:
    assert callable(stage)
    with torch.inference_mode():
        if device.type != "cuda":
            started = time.perf_counter()
            stage()
            return 1e3 * (time.perf_counter() - started)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        stage()
        after.record()
        torch.cuda.synchronize(device)
        return float(before.elapsed_time(after))


if __name__ == "__main__":
    sys.exit(main())
