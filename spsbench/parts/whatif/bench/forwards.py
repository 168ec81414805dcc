"""How long a forward of n rows takes, and what that allows a loop to gain."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from spsbench.base import Floats
from spsbench.decode import device_now
from spsbench.models import CausalLM, text_config
from spsbench.parts.whatif.bench.turns import budgeted_rounds, turns_watched
from spsbench.parts.whatif.messages.bench import (
    NO_K_GAINS,
    FasterThanOneRow,
    ForwardsUntrusted,
    KSpeedup,
    PaysFrom,
)
from spsbench.stats import WhatIf, alpha_needed, independent
from spsbench.store import CLEAN

_RESAMPLES, _SEED = 1_000, 20_230_202


@dataclass(frozen=True, slots=True)
class Forwards:
    """Times of one model; ``seconds``: [rounds, len(rows)]; a round has one forward of each.

    ``lost_share``: CPU contention in the time of these rounds, on average; 0 if unknown.
    """

    rows: tuple[int, ...]
    seconds: Floats
    lost_share: float = 0.0

    def median_s(self, rows: int) -> float:
        """Return the median time of a forward of so many rows."""
        return float(np.median(self.of(rows)))

    def ratio(self, rows: int, to: int = 1) -> tuple[float, float, float]:
        """(median over median, and both ends of its 95% interval), resampling rounds."""
        return _ratio(self.of(rows), self.of(to))

    def over(self, other: Forwards) -> tuple[float, float, float]:
        """Return the ratio of one row's forward to another model's, measured in the same rounds."""
        return _ratio(self.of(1), other.of(1))

    def of(self, rows: int) -> Floats:
        """[rounds] seconds of a forward of so many rows."""
        return self.seconds[:, self.rows.index(rows)]


def _ratio(one: Floats, other: Floats) -> tuple[float, float, float]:
    draws = np.random.default_rng(_SEED).integers(len(one), size=(_RESAMPLES, len(one)))
    drawn = np.median(one[draws], axis=1) / np.median(other[draws], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(one) / np.median(other)), float(low), float(high)


def time_forwards(
    model: CausalLM, rows: Sequence[int], context: int, budget_s: float, seed: int = 0
) -> Forwards:
    """Time forwards of several sizes in turns, in an order reshuffled each round.

    Args:
        budget_s: seconds after which no further round begins, if a few are done.
    """
    return time_in_turns([(model, rows)], [context], budget_s, seed)[0][context]


@torch.inference_mode()
def time_in_turns(
    models: Sequence[tuple[CausalLM, Sequence[int]]], contexts: Sequence[int], budget_s: float, seed: int = 0
) -> list[dict[int, Forwards]]:
    """Time several models after several contexts: each round has them all, in shuffled order.

    The longest context is read once. A shorter one is a rollback, and a longer one takes the rollback back:
    what is scored are the very tokens that lie there, so that the cache keeps what was read. Before the
    forwards of a model after a context goes one that does not count: in a loop, too, forwards of a kind
    follow each other.
    """
    probes = [_Probe(model, rows, max(contexts), seed) for model, rows in models]
    places = [(probe, context) for probe in range(len(probes)) for context in contexts]
    shuffler = random.Random(seed)

    def forwards_s(probe: int, context: int, number: int) -> list[float]:
        if len(places) > 1:
            probes[probe].settle(context)
        return probes[probe].round(context, shuffler)

    turns = {place: partial(forwards_s, *place) for place in places}
    seconds, lost_share = turns_watched(turns, budgeted_rounds(budget_s), seed)
    for timed_model in probes:
        timed_model.model.rollback(0)
    return [
        {
            context: Forwards(timed_model.counts, np.array(seconds[probe, context]), lost_share)
            for context in contexts
        }
        for probe, timed_model in enumerate(probes)
    ]


class _Probe:
    """A model that has read the longest context, and the tokens that lie in its cache and after it."""

    def __init__(self, model: CausalLM, rows: Sequence[int], longest: int, seed: int) -> None:
        self.model, self.counts = model, tuple(sorted({1, *rows}))
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(model.vocab_size, (longest + max(self.counts),), generator=generator)
        self._tokens, self._order = drawn.to(model.device), list(self.counts)
        read_context(model, self._tokens[:longest])
        self._beyond = model.length - longest  # what an encoder-decoder begins with

    def settle(self, context: int) -> None:
        """Move to a context, and run a forward there that is not timed."""
        self.model.restore(context)
        self._seconds(1, context)

    def round(self, context: int, shuffler: random.Random) -> list[float]:
        """Return the seconds of one forward of each number of rows, in order of the numbers."""
        shuffler.shuffle(self._order)
        seconds = {n: self._seconds(n, context) for n in self._order}
        return [seconds[n] for n in self.counts]

    def _seconds(self, rows: int, context: int) -> float:
        tokens = self._tokens[context : context + rows]
        return _seconds(self.model, tokens, context + self._beyond)


MOST_BLOCK, _LEAST_BLOCK = 512, 16
_MOST_SCORES_BYTES = 256 << 20


def block_rows(config: Any, context: int) -> int:
    """Return how many tokens of a context are read at once: attention scores take 256 MiB at most.

    All heads of one layer, float32. Fused kernels never hold them as a whole; others do.
    """
    heads = getattr(text_config(config), "num_attention_heads", None) or 1
    return min(max(_MOST_SCORES_BYTES // (4 * heads * context), _LEAST_BLOCK), MOST_BLOCK)


def read_context(model: CausalLM, tokens: torch.Tensor) -> None:
    """Forget the last sequence and read tokens [n] in blocks; to an encoder-decoder they are a source."""
    if model.border is not None:
        model.score(model.begin(model.as_prompt(tokens).tolist()), last=1)
        return
    model.rollback(0)
    rows = block_rows(model.config, len(tokens))
    for start in range(0, len(tokens), rows):
        model.score(tokens[start : start + rows], last=1)


def _seconds(model: CausalLM, tokens: torch.Tensor, read: int) -> float:
    started = device_now(model.device)
    model.score(tokens, last=len(tokens))
    seconds = device_now(model.device) - started
    model.rollback(read)
    return seconds


ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def bench_loop_cost(target: Forwards, draft: Forwards, k: int) -> float:
    """Return the time of a loop's forwards in target steps: (K t_draft(1) + t_target(K+1)) / t_target(1)."""
    return (k * draft.median_s(1) + target.median_s(k + 1)) / target.median_s(1)


def reading_again(target: Forwards, k: int, alpha: float) -> float:
    """Return what a loop reads again at an acceptance of ``alpha``, in target steps.

    After a rejection at place a the pending token and a accepted ones; times between those that were measured
    lie on lines.
    """
    rows = np.arange(1, k + 1)
    seconds = np.interp(rows, target.rows, [target.median_s(n) for n in target.rows])
    return float(np.sum(alpha ** (rows - 1) * (1.0 - alpha) * seconds) / target.median_s(1))


def payoff(target: Forwards, draft: Forwards, ks: Sequence[int], *, replays: bool = False) -> dict[str, Any]:
    """Return the predicted speedup of every alpha and K.

    Args:
        replays: whether the target reads accepted tokens again after a rejection; ``planes`` is then the
            same for an engine that keeps its states.
    """
    costs = {k: bench_loop_cost(target, draft, k) for k in ks}
    if replays:
        return payoff_grid(ks, costs, lambda k, alpha: costs[k] + reading_again(target, k, alpha)) | {
            "planes": payoff_grid(ks, costs, lambda k, alpha: costs[k])
        }
    return payoff_grid(ks, costs, lambda k, alpha: costs[k])


def payoff_grid(
    ks: Sequence[int], costs: Mapping[int, float], cost: Callable[[int, float], float]
) -> dict[str, Any]:
    """Return ``payoff`` where a loop of K costs so many target steps at an alpha.

    Args:
        costs: without a rollback.
    """
    grid = []
    for alpha in ALPHAS:

        def at_alpha(k: int, alpha: float = alpha) -> float:
            return cost(k, alpha)

        loop = WhatIf(independent(alpha), at_alpha)
        grid.append({"alpha": alpha, "speedups": {k: loop.speedup(k) for k in ks}, "best_k": loop.best_k(ks)})
    return {
        "costs": costs,
        "break_even": {k: alpha_needed(k, cost) for k, cost in costs.items()},
        "grid": grid,
    }


def verdict(facts: Mapping[str, Any]) -> PaysFrom | str:
    """From which alpha on speculation can pay, and its gain at alpha 0.8."""
    needed = {k: alpha for k, alpha in facts["break_even"].items() if alpha is not None}
    if not needed:
        return NO_K_GAINS
    k = min(needed, key=lambda k: (needed[k], k))
    planes = facts.get("planes")
    return PaysFrom(needed[k], k, best_at(0.8, facts), None if planes is None else best_at(0.8, planes))


def best_at(alpha: float, facts: Mapping[str, Any]) -> KSpeedup:
    """The best K of a payoff at an alpha, with its speedup."""
    row = next(row for row in facts["grid"] if row["alpha"] == alpha)
    k = row["best_k"]
    return k, row["speedups"][k] if k else 1.0


_FASTER = 0.95
"""Times are doubted where the whole interval of t(n)/t(1) is lower: kernels for one row may be slower."""


def untrusted(times: Mapping[str, Forwards]) -> ForwardsUntrusted | None:
    """Why no prediction from these times, by role, can be trusted; None if it can.

    Either CPU contention took more of the rounds than ``CLEAN``, or a forward took clearly less time than
    one of fewer rows, all of whose work it does.
    """
    lost = max(forwards.lost_share for forwards in times.values())
    faster = [
        (*forwards.ratio(rows), rows, role)
        for role, forwards in times.items()
        for rows in forwards.rows
        if forwards.ratio(rows)[2] < _FASTER
    ]
    if lost <= CLEAN and not faster:
        return None
    impossible = None
    if faster:
        ratio, low, high, rows, role = min(faster)
        impossible = FasterThanOneRow(rows, role, ratio, low, high)
    return ForwardsUntrusted(lost if lost > CLEAN else 0.0, impossible)
