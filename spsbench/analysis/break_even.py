"""How far alpha, c and K are from where SpS no longer gains, each with all else as measured."""

from __future__ import annotations

from typing import Any

from spsbench.analysis.matched import ArmSums
from spsbench.decode.theory import alpha_iid, expected_tokens

MOST_K = 64
"""Larger lookaheads are not looked at."""


def break_even(k: int, ars: ArmSums, sps: ArmSums, slope_ms: float | None = None) -> dict[str, Any]:
    """The alpha, c and K at which the arm would be exactly as fast as ArS.

    * alpha: with the measured times, correlation and loss at the end.
    * c: how long a draft token may take, in target steps, with the measured tokens per loop.
    * K: the largest that would still gain, if tokens follow alpha (independent tests, times the
      measured correlation) and one more K costs ``slope_ms``.

    Args:
        k: the arm's lookahead, at least 1.
        ars, sps: sums over the same sequences.
        slope_ms: of the sweep's loop time against K; None takes the arm's own drafting time.

    Returns:
        ``alpha`` (0: any gains; None: none does), ``c`` (None: not even a free draft, or not seen),
        ``k`` (0: none gains; ``k_found`` False: all up to ``MOST_K`` gain; None: no times),
        ``measured_alpha`` and ``measured_c``.
    """
    step, loop = ars.seconds / ars.tokens, sps.seconds / sps.loops
    emitted = sps.tokens / sps.loops
    kept = emitted / expected_tokens(sps.alpha, k)
    needed = loop / step / kept
    found: dict[str, Any] = {
        "measured_alpha": sps.alpha,
        "alpha": alpha_iid(max(needed, 1.0), k) if needed <= k + 1.0 else None,
        "measured_c": None,
        "c": None,
    }
    slope = None if slope_ms is None else slope_ms / 1e3
    target = ars.verify_s / ars.loops
    if ars.sees_phases and sps.sees_phases and target > 0:
        drafting = sps.draft_s / sps.loops
        drafted = sps.drafted / sps.loops or float(k)
        slope = drafting / drafted if slope is None else slope
        allowed = (emitted * step - (loop - drafting)) / drafted / target
        found |= {"measured_c": drafting / drafted / target, "c": allowed if allowed > 0 else None}
    return found | _largest_k(k, sps.alpha, kept, step, loop, slope)


def _largest_k(
    k: int, alpha: float, kept: float, step: float, loop: float, slope: float | None
) -> dict[str, Any]:
    """The largest K up to ``MOST_K`` whose modelled speedup is above 1."""
    if slope is None:
        return {"k": None, "k_found": False}
    gaining = [
        other
        for other in range(1, MOST_K + 1)
        if expected_tokens(alpha, other) * kept * step > max(loop + (other - k) * slope, 0.0)
    ]
    largest = max(gaining, default=0)
    return {"k": largest, "k_found": largest < MOST_K}
