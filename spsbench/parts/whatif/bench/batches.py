"""Forwards of batches: t(B, n), the speedups over batch size and K that they allow, and loops that try it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from spsbench.base import Speedup
from spsbench.decode import BatchArS, BatchModel, BatchSpS, ModelBatchDrafter, SystemClock, device_now
from spsbench.engines import BatchedEngine, EagerEngine
from spsbench.models import CausalLM, batch_model, require_free
from spsbench.parts.whatif.bench import BenchConfig
from spsbench.parts.whatif.bench.forced import NullDecoder, SyntheticAcceptance, forced_engine, measure_forced
from spsbench.parts.whatif.bench.forwards import Forwards, untrusted
from spsbench.parts.whatif.bench.turns import budgeted_rounds, turns_watched
from spsbench.stats import crossing, shown

_FORCED_TOKENS, _FORCED_ROUNDS = 32, 8
USUAL_ALPHA = 0.8
"""That predictions assume where no acceptance is given."""

TARGET, DRAFT = "target", "draft"
Models = Mapping[int, tuple[BatchModel, BatchModel]]


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


def study_batches(target: CausalLM, draft: CausalLM, config: BenchConfig) -> dict[str, Any]:
    """Measure forwards of every shape in turns, and loops if an acceptance is given.

    Returns:
        what ``--json`` prints and the terminal shows; ``step_ms`` is of a target forward of one token a row,
        ``pays_up_to`` is null where it lies beyond the largest batch.
    """
    slots = config.context + _FORCED_TOKENS + 2 * max(config.ks) + 2
    _require_room(target, draft, config, slots)

    def of(model: CausalLM, size: int) -> BatchModel:
        return Alone(model) if size == 1 else batch_model(model, size, slots, blocks=True)

    models = {size: (of(target, size), of(draft, size)) for size in config.batches}
    timed = _timed(models, config)
    acceptance = config.acceptance or SyntheticAcceptance([USUAL_ALPHA])
    measured = (
        _measured_speedups(target, draft, models, config, config.acceptance) if config.acceptance else {}
    )
    cells: list[dict[str, Any]] = []
    for size in config.batches:
        own, draft_s = timed[TARGET, size], timed[DRAFT, size].median_s
        for k in config.ks:
            step, verify = own.median_s(1), own.median_s(k + 1)
            # Where some row of a batch was accepted whole all read their last two tokens again.
            kept_whole = float(np.prod([acceptance.at(position) for position in range(k)]))
            again = 0.0 if size == 1 else 1.0 - (1.0 - kept_whole) ** size
            first = again * draft_s(2) + (1.0 - again) * draft_s(1)
            drafting = first + (k - 1) * draft_s(1)
            cells.append(
                {
                    "batch": size,
                    "k": k,
                    "verify_ms": 1e3 * verify,
                    "draft_ms": 1e3 * drafting,
                    "predicted": acceptance.tokens_per_loop(k) * step / (drafting + verify),
                    "measured": shown(measured.get((size, k))),
                }
            )
    ends = {
        k: crossing(config.batches, [cell["predicted"] for cell in cells if cell["k"] == k])
        for k in config.ks
    }
    shares = " ".join(f"{p:.2f}" for p in acceptance.probabilities)
    doubt = untrusted({f"{role} at batch {size}": own for (role, size), own in timed.items()})
    return {
        "context": config.context,
        "tokens_per_loop": {k: acceptance.tokens_per_loop(k) for k in config.ks},
        "step_ms": {size: 1e3 * timed[TARGET, size].median_s(1) for size in config.batches},
        "cells": cells,
        "pays_up_to": {k: None if np.isinf(end) else end for k, end in ends.items()},
        "assumed": f"acceptance {shares}",
        "untrusted": doubt and str(doubt),
        "threads": torch.get_num_threads(),
    }


def _require_room(target: CausalLM, draft: CausalLM, config: BenchConfig, slots: int) -> None:
    """Refuse batches whose caches, and weights packed once more for each size, do not fit."""
    sizes = [size for size in config.batches if size > 1]
    models = (target, draft)
    caches = sum(sum(sizes) * slots * (model.kv_bytes_per_token or 0) for model in models)
    needed = caches + len(sizes) * sum(model.forward_bytes() for model in models)
    what = f"beside the models, batches of {', '.join(map(str, config.batches))}"
    require_free(needed, target.device, what, "--batch", "Give fewer or smaller batches.")


@torch.inference_mode()
def _timed(models: Models, config: BenchConfig) -> dict[tuple[str, int], Forwards]:
    """Forwards by model and batch size: of K+1 tokens a row by the target, of one and two by the draft."""
    blocks = {1} | {k + 1 for k in config.ks}
    rows = {TARGET: blocks, DRAFT: {1, 2}}
    shapes = [(role, size, n) for size in models for role, ns in rows.items() for n in ns]
    context = config.context
    generator = torch.Generator().manual_seed(config.seed)
    width = models[config.batches[0]][0].vocab_size
    tokens = torch.randint(width, (context + max(blocks),), generator=generator)
    for pair in models.values():
        for model in pair:
            for row in range(model.batch):
                model.begin(row, tokens[:context].tolist())

    def forward_s(role: str, size: int, n: int, number: int) -> float:
        model = models[size][role == DRAFT]
        block = tokens[context - 1 :][:n].expand(size, n).to(model.device).contiguous()
        started = device_now(model.device)
        model.score(block, [context - 1] * size, last=n)
        return device_now(model.device) - started

    turns = {shape: partial(forward_s, *shape) for shape in shapes}
    seconds, lost_share = turns_watched(turns, budgeted_rounds(config.budget_s, most=100), config.seed)

    def forwards(role: str, size: int) -> Forwards:
        counts = tuple(sorted(rows[role]))
        return Forwards(counts, np.array([seconds[role, size, n] for n in counts]).T, lost_share)

    return {(role, size): forwards(role, size) for size in models for role in rows}


def _measured_speedups(
    target: CausalLM, draft: CausalLM, models: Models, config: BenchConfig, acceptance: SyntheticAcceptance
) -> dict[tuple[int, int], Speedup | None]:
    """By batch size and K, of real loops with the planned acceptance, paired by round."""
    generator = torch.Generator().manual_seed(config.seed)
    prompt = tuple(torch.randint(target.vocab_size, (config.context,), generator=generator).tolist())

    def engine(size: int, k: int) -> EagerEngine | BatchedEngine:
        if size == 1:
            return forced_engine(target, draft if k else None, k, acceptance)
        decoder = NullDecoder()
        clock = SystemClock()
        rule = acceptance.rule()
        if not k:
            batch = BatchArS(models[size][0], config.sampling)
            return BatchedEngine(batch, decoder, target.device, clock)
        drafter = ModelBatchDrafter(models[size][1], config.sampling)
        loops = BatchSpS(models[size][0], config.sampling, drafter, k, rule.accept)
        return BatchedEngine(loops, decoder, target.device, clock, rule)

    engines = {(size, k): engine(size, k) for size in config.batches for k in (0, *config.ks)}
    measured = measure_forced(
        engines, prompt, config.sampling, tokens=_FORCED_TOKENS, rounds=_FORCED_ROUNDS, seed=config.seed
    )
    return {arm: made.speedup for arm, made in measured.items()}
