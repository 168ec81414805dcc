"""The warper once more, from its definition alone: the judge of the one that production uses.

Everything else that looks at a distribution calls ``decode.sampling.warp``, and would share its faults.
This one shares nothing with it: numpy, float64, one row, a full sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spsbench.records import SamplingParams

Row = NDArray[np.float64]


def brute_force(logits: Sequence[float] | Row, params: SamplingParams) -> Row:
    """Temperature, then top-k, then nucleus, of one row; tokens that tie at an edge are all kept.

    Args:
        logits: [V], finite or minus infinity.
        params: temperature, top_k, top_p, greedy (the one-hot row of the first largest logit).

    Returns:
        [V] probabilities that sum to 1.
    """
    scores = np.asarray(logits, dtype=np.float64)
    if params.greedy:
        return np.asarray(np.arange(len(scores)) == scores.argmax(), dtype=np.float64)
    scores = scores / params.temperature
    if 0 < params.top_k < len(scores):
        scores = np.where(scores < np.sort(scores)[-params.top_k], -np.inf, scores)
    probs: Row = np.exp(scores - scores.max())
    probs /= probs.sum()
    if params.top_p < 1.0:
        probs[probs < _edge(probs, params.top_p)] = 0.0
        probs /= probs.sum()
    return probs


def _edge(probs: Row, top_p: float) -> float:
    """Probability of the token with which the most probable ones together reach ``top_p``."""
    mass = 0.0
    for probability in np.sort(probs)[::-1].tolist():
        mass += probability
        if mass >= top_p:
            break
    return float(probability)


def is_clear(logits: Sequence[float] | Row, params: SamplingParams, slack: float) -> bool:
    """Whether rounding by ``slack`` leaves the same tokens: at an edge no two warpers need agree.

    Args:
        logits: [V].
        params: see ``brute_force``.
        slack: of the nucleus' mass, and of a logit relative to the largest.
    """
    if params.greedy:
        return True
    scores = np.asarray(logits, dtype=np.float64)
    least = slack * float(np.abs(scores[np.isfinite(scores)]).max())
    near = (params.top_p - slack, params.top_p, params.top_p + slack) if params.top_p < 1.0 else ()
    kept = [brute_force(scores, replace(params, top_p=min(max(p, 0.0), 1.0))) > 0 for p in near]
    before = brute_force(scores, replace(params, top_p=1.0)) > 0
    same = all(bool((some == kept[0]).all()) for some in kept)
    return same and all(_gap(scores, some) > least for some in (before, *kept))


def _gap(scores: Row, kept: NDArray[np.bool_]) -> float:
    """How far the least kept score lies above the largest dropped one."""
    return np.inf if kept.all() else float(scores[kept].min() - scores[~kept].max())
