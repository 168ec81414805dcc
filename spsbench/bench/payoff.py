"""What forwards alone allow: predicted speedup over alpha and K, and where it begins to pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spsbench.bench.forwards import Forwards
from spsbench.decode.theory import alpha_iid, expected_tokens

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def loop_cost(target: Forwards, draft: Forwards, k: int) -> float:
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
    costs = {k: loop_cost(target, draft, k) for k in ks}
    grid = []
    for alpha in ALPHAS:
        speedups = {k: expected_tokens(alpha, k) / cost for k, cost in costs.items()}
        best = max(speedups, key=lambda k: (speedups[k], -k))
        grid.append({"alpha": alpha, "speedups": speedups, "best_k": best if speedups[best] > 1 else 0})
    return {
        "costs": costs,
        "break_even": {k: _break_even(cost, k) for k, cost in costs.items()},
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


def _break_even(cost: float, k: int) -> float | None:
    return None if cost > k + 1 else alpha_iid(max(cost, 1.0), k)
