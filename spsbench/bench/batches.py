"""Forwards of batches: t(B, n), the speedups over batch size and K that they allow, and loops that try it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch

from spsbench.bench.forced import NullDecoder, SyntheticAcceptance
from spsbench.bench.forwards import Floats
from spsbench.decode.batch import BatchArS, BatchModel, BatchSpS, ModelBatchDrafter
from spsbench.decode.clock import SystemClock, device_now
from spsbench.engines.local import BatchedEngine, EagerEngine
from spsbench.models.batched import batched
from spsbench.models.causal_lm import CausalLM
from spsbench.models.memory import require_free
from spsbench.records import Request, SamplingParams
from spsbench.stats.speedup import PairedTimes, shown, speedup
from spsbench.stats.surface import crossing
from spsbench.summary_types import RatioInterval

Shape = tuple[int, int]
"""(B, n): sequences, and tokens of each, in a forward."""

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 100
_FORCED_TOKENS = 32
_FORCED_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to measure.

    Attributes:
        budget_s: seconds for the forwards.
        acceptance: by which predictions are made, and loops if ``loops``.
    """

    batches: tuple[int, ...]
    ks: tuple[int, ...]
    context: int
    budget_s: float
    acceptance: SyntheticAcceptance
    loops: bool
    sampling: SamplingParams
    seed: int

    @property
    def slots(self) -> int:
        """The longest sequence of a row, in tokens."""
        return self.context + _FORCED_TOKENS + 2 * max(self.ks) + 2


class BatchCell(TypedDict):
    """A batch size and K: times of the forwards, what they allow, and what loops gave."""

    batch: int
    k: int
    verify_ms: float
    draft_ms: float
    predicted: float
    measured: RatioInterval | None


class BatchFacts(TypedDict):
    """``step_ms`` is a target's forward of one token a row, by batch size; ``pays_up_to`` is by K, null where
    it lies beyond the largest batch."""

    context: int
    tokens_per_loop: dict[int, float]
    step_ms: dict[int, float]
    cells: list[BatchCell]
    pays_up_to: dict[int, float | None]


class Alone:
    """A model of one sequence as a ``BatchModel``: what batch size 1 really runs."""

    batch = 1

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.vocab_size, self.device = model.vocab_size, model.device

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """See ``BatchModel.begin``."""
        self._model.begin(prompt)

    def score(self, tokens: torch.Tensor, starts: Sequence[int], last: int) -> torch.Tensor:
        """See ``BatchModel.score``."""
        self._model.rollback(starts[0])
        return self._model.score(tokens[0], last).unsqueeze(0)


def require_batch_room(target: CausalLM, draft: CausalLM, plan: BatchPlan) -> None:
    """Refuse batches whose caches, and weights packed once more for each size, do not fit."""
    rows = sum(size for size in plan.batches if size > 1)
    packed = sum(size > 1 for size in plan.batches)
    models = (target, draft)
    caches = sum(rows * plan.slots * (model.kv_bytes_per_token or 0) for model in models)
    needed = caches + packed * sum(model.forward_bytes() for model in models)
    what = f"beside the models, batches of {', '.join(map(str, plan.batches))}"
    require_free(needed, target.device, what, "--batch", "Give fewer or smaller batches.")


def study_batches(target: CausalLM, draft: CausalLM, plan: BatchPlan) -> BatchFacts:
    """Measure forwards of every shape in turns, and loops where they are asked for."""
    models = {size: (_of(target, size, plan), _of(draft, size, plan)) for size in plan.batches}
    blocks = {k + 1 for k in plan.ks}
    shapes = [
        (role, size, n) for size in plan.batches for role, ns in ((0, {1} | blocks), (1, {1, 2})) for n in ns
    ]
    times = _timed(models, shapes, plan)
    measured = _looped(target, draft, models, plan) if plan.loops else {}
    cells = [_cell(size, k, times, plan.acceptance, measured) for size in plan.batches for k in plan.ks]
    return {
        "context": plan.context,
        "tokens_per_loop": {k: plan.acceptance.expected_tokens(k) for k in plan.ks},
        "step_ms": {size: 1e3 * times[0, size, 1] for size in plan.batches},
        "cells": cells,
        "pays_up_to": {k: _pays_up_to([cell for cell in cells if cell["k"] == k]) for k in plan.ks},
    }


def _of(model: CausalLM, size: int, plan: BatchPlan) -> BatchModel:
    return Alone(model) if size == 1 else batched(model, size, plan.slots, blocks=True)


@torch.inference_mode()
def _timed(
    models: Mapping[int, tuple[BatchModel, BatchModel]],
    shapes: Sequence[tuple[int, int, int]],
    plan: BatchPlan,
) -> dict[tuple[int, int, int], float]:
    """Median seconds of a forward by role (0 the target), batch size and tokens a row."""
    generator = torch.Generator().manual_seed(plan.seed)
    width = models[plan.batches[0]][0].vocab_size
    tokens = torch.randint(width, (plan.context + max(n for *_, n in shapes),), generator=generator)
    for pair in models.values():
        for model in pair:
            for row in range(model.batch):
                model.begin(row, tokens[: plan.context].tolist())
    order, shuffler = list(shapes), random.Random(plan.seed)
    seconds: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in shapes}
    started, rounds = time.perf_counter(), 0
    while rounds <= _LEAST_ROUNDS or (
        rounds <= _MOST_ROUNDS and time.perf_counter() - started < plan.budget_s
    ):
        shuffler.shuffle(order)
        for role, size, n in order:
            block = tokens[plan.context - 1 :][:n].expand(size, n)
            seconds[role, size, n].append(_seconds(models[size][role], block, plan.context))
        rounds += 1
    return {shape: float(np.median(found[1:])) for shape, found in seconds.items()}  # the first is slow


def _seconds(model: BatchModel, block: torch.Tensor, context: int) -> float:
    tokens, starts = block.to(model.device).contiguous(), [context - 1] * model.batch
    started = device_now(model.device)
    model.score(tokens, starts, last=tokens.shape[1])
    return device_now(model.device) - started


def _cell(
    size: int,
    k: int,
    times: Mapping[tuple[int, int, int], float],
    acceptance: SyntheticAcceptance,
    measured: Mapping[Shape, RatioInterval | None],
) -> BatchCell:
    step, verify = times[0, size, 1], times[0, size, k + 1]
    # Where some row of a batch was accepted whole all read their last two tokens again.
    kept_whole = float(np.prod([acceptance.at(position) for position in range(k)]))
    again = 0.0 if size == 1 else 1.0 - (1.0 - kept_whole) ** size
    first = again * times[1, size, 2] + (1.0 - again) * times[1, size, 1]
    drafting = first + (k - 1) * times[1, size, 1]
    return {
        "batch": size,
        "k": k,
        "verify_ms": 1e3 * verify,
        "draft_ms": 1e3 * drafting,
        "predicted": acceptance.expected_tokens(k) * step / (drafting + verify),
        "measured": measured.get((size, k)),
    }


def _pays_up_to(cells: Sequence[BatchCell]) -> float | None:
    found = crossing([cell["batch"] for cell in cells], [cell["predicted"] for cell in cells])
    return None if np.isinf(found) else found


def _looped(
    target: CausalLM, draft: CausalLM, models: Mapping[int, tuple[BatchModel, BatchModel]], plan: BatchPlan
) -> dict[Shape, RatioInterval | None]:
    """Speedups of real loops with the planned acceptance, by batch size and K, paired by round."""
    arms = [(size, k) for size in plan.batches for k in (0, *plan.ks)]
    engines = {(size, k): _engine(target, draft, models[size], size, k, plan) for size, k in arms}
    generator = torch.Generator().manual_seed(plan.seed)
    prompt = tuple(torch.randint(target.vocab_size, (plan.context,), generator=generator).tolist())
    shuffler, order = random.Random(plan.seed), list(arms)
    seconds: dict[Shape, list[float]] = {arm: [] for arm in arms}
    for number in range(-1, _FORCED_ROUNDS):  # the first round is warm-up
        shuffler.shuffle(order)
        for size, k in order:
            seeds = [plan.seed + size * (1 + number) + row for row in range(size)]
            requests = [
                Request(prompt, _FORCED_TOKENS, (), plan.sampling, seed, fixed_length=True) for seed in seeds
            ]
            taken = _decoding_s(engines[size, k], requests)
            if number >= 0:
                seconds[size, k].append(taken)
    return {(size, k): _speedup(seconds[size, 0], seconds[size, k]) for size, k in arms if k}


def _engine(
    target: CausalLM,
    draft: CausalLM,
    models: tuple[BatchModel, BatchModel],
    size: int,
    k: int,
    plan: BatchPlan,
) -> EagerEngine | BatchedEngine:
    rule, decoder, clock = plan.acceptance.rule(), NullDecoder(), SystemClock()
    if size == 1:
        return EagerEngine(target, draft if k else None, k, decoder, target.device, clock, rule)
    if not k:
        return BatchedEngine(BatchArS(models[0], plan.sampling), decoder, target.device, clock)
    drafter = ModelBatchDrafter(models[1], plan.sampling)
    batch = BatchSpS(models[0], plan.sampling, drafter, k, rule.accept)
    return BatchedEngine(batch, decoder, target.device, clock, rule)


def _decoding_s(engine: EagerEngine | BatchedEngine, requests: Sequence[Request]) -> float:
    if isinstance(engine, EagerEngine):
        return sum(engine.generate(request).decode_s for request in requests)
    found = [answer for _, answer in engine.generate_all(requests)]
    for answer in found:
        if isinstance(answer, FloatingPointError):
            raise answer
    return sum(answer.decode_s for answer in found if not isinstance(answer, FloatingPointError))


def _speedup(plain: Sequence[float], speculating: Sequence[float]) -> RatioInterval | None:
    tokens = np.ones(len(plain))
    return shown(speedup(PairedTimes(_floats(plain), tokens, _floats(speculating), tokens)))


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def told(facts: BatchFacts) -> dict[str, Any]:
    """As JSON has it: keys are texts."""
    named = ("tokens_per_loop", "step_ms", "pays_up_to")
    return {**facts, **{name: {str(key): value for key, value in facts[name].items()} for name in named}}  # type: ignore[literal-required]
