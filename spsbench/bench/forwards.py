"""How long a forward of n rows takes, and what that allows a loop to gain."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spsbench.models.causal_lm import CausalLM
from spsbench.predict.whatif import WhatIf, alpha_needed, independent

Floats = npt.NDArray[np.float64]

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_RESAMPLES, _SEED = 1_000, 20_230_202


@dataclass(frozen=True, slots=True)
class Forwards:
    """Times of one model.

    Attributes:
        rows: how many tokens were scored at once, in order.
        seconds: [rounds, len(rows)]; a round has one forward of each.
    """

    rows: tuple[int, ...]
    seconds: Floats

    def median_s(self, rows: int) -> float:
        """Median time of a forward of so many rows."""
        return float(np.median(self._of(rows)))

    def ratio(self, rows: int, to: int = 1) -> tuple[float, float, float]:
        """(median over median, and both ends of its 95% interval), resampling rounds."""
        one, other = self._of(rows), self._of(to)
        draws = np.random.default_rng(_SEED).integers(len(one), size=(_RESAMPLES, len(one)))
        drawn = np.median(one[draws], axis=1) / np.median(other[draws], axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(np.median(one) / np.median(other)), float(low), float(high)

    def _of(self, rows: int) -> Floats:
        return self.seconds[:, self.rows.index(rows)]


@torch.inference_mode()
def time_forwards(
    model: CausalLM, rows: Sequence[int], context: int, budget_s: float, seed: int = 0
) -> Forwards:
    """Time forwards of several sizes in turns, in an order shuffled anew each round.

    Args:
        model: its cache is used.
        rows: tokens at once, each at least 1; 1 is always among them.
        context: tokens in the cache before each forward, at least 1; of an encoder-decoder
            those of the source.
        budget_s: seconds after which no further round begins, if a few are done.
        seed: of tokens and order.
    """
    counts = tuple(sorted({1, *rows}))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(model.vocab_size, (context + max(counts),), generator=generator)
    tokens = drawn.to(model.device)
    model.score(model.begin(model.as_prompt(tokens[:context]).tolist()), last=1)
    read = model.length
    order, shuffler = list(counts), random.Random(seed)
    rounds: list[list[float]] = []
    started = time.perf_counter()
    while len(rounds) <= _LEAST_ROUNDS or (
        time.perf_counter() - started < budget_s and len(rounds) <= _MOST_ROUNDS
    ):
        shuffler.shuffle(order)
        taken = {n: _seconds(model, tokens[context : context + n], read) for n in order}
        rounds.append([taken[n] for n in counts])
    model.rollback(0)
    return Forwards(counts, np.array(rounds[1:]))  # the first of a shape is slow


def _seconds(model: CausalLM, tokens: torch.Tensor, read: int) -> float:
    started = _now(model.device)
    model.score(tokens, last=len(tokens))
    seconds = _now(model.device) - started
    model.rollback(read)
    return seconds


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def bench_loop_cost(target: Forwards, draft: Forwards, k: int) -> float:
    """Time of a loop's forwards in target steps: (K t_draft(1) + t_target(K+1)) / t_target(1)."""
    return (k * draft.median_s(1) + target.median_s(k + 1)) / target.median_s(1)


def payoff(target: Forwards, draft: Forwards, ks: Sequence[int]) -> dict[str, Any]:
    """The predicted speedup of every alpha and K.

    Args:
        target: with every K+1 among its rows.
        draft: with 1 among its rows.
        ks: lookaheads from 1.

    Returns:
        ``costs`` (a loop in target steps) and ``break_even`` (the alpha from which K gains; None: no
        alpha does), by K; ``grid``: per alpha its ``speedups`` by K and ``best_k`` (0: none gains).
    """
    costs = {k: bench_loop_cost(target, draft, k) for k in ks}
    grid = []
    for alpha in ALPHAS:
        loop = WhatIf(independent(alpha), costs.__getitem__)
        grid.append({"alpha": alpha, "speedups": {k: loop.speedup(k) for k in ks}, "best_k": loop.best_k(ks)})
    return {
        "costs": costs,
        "break_even": {k: alpha_needed(k, cost) for k, cost in costs.items()},
        "grid": grid,
    }


def verdict(found: dict[str, Any]) -> str:
    """One sentence: from which alpha on speculation can pay, and what it can bring."""
    needed = {k: alpha for k, alpha in found["break_even"].items() if alpha is not None}
    if not needed:
        return "Speculation cannot pay here: no K gains, not even if every draft token is accepted."
    k = min(needed, key=lambda k: (needed[k], k))
    usual = next(row for row in found["grid"] if row["alpha"] == 0.8)
    best = usual["best_k"]
    at = f"at alpha 0.8 the best K is {best}: {usual['speedups'][best]:.2f}x" if best else "not at alpha 0.8"
    return f"Speculation can pay here from alpha {needed[k]:.2f} on (K={k}); {at}, by the forwards alone."
