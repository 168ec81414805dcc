"""The distance between draft and target that gives an alpha."""

from __future__ import annotations

import math

from spsbench.errors import UsageError
from spsbench.records import SamplingParams
from spsbench.simulate.chain import Chain
from spsbench.simulate.sources import Language, Source

REACHED = 1e-3
"""An alpha that differs by less is the one that was asked for."""

_NEAREST = 1e-7
_HALVINGS = 60


def alpha_at(source: Source, language: Language, sampling: SamplingParams, distance: float) -> float:
    """``alpha_leviathan`` of target and draft at a distance, exact for an endless text of the target."""
    return Chain(source.make(language, distance).warped(sampling)).alpha


def distance_of(source: Source, language: Language, sampling: SamplingParams, alpha: float) -> float:
    """The distance at which draft and target have this alpha, by bisection of its logarithm.

    Alpha falls as the distance grows.
    """
    farthest = source.farthest(language.unequal)
    low, high = math.log(_NEAREST), math.log(farthest)
    least = alpha_at(source, language, sampling, farthest)
    if alpha < least - REACHED:
        raise _out_of_reach(source, alpha, f"the farthest draft still has alpha {least:.3f}")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        nearer = alpha_at(source, language, sampling, math.exp(middle)) < alpha
        low, high = (low, middle) if nearer else (middle, high)
    found = alpha_at(source, language, sampling, math.exp(low))
    if abs(found - alpha) > REACHED:
        raise _out_of_reach(source, alpha, f"the closest that is reached is {found:.4f}")
    return math.exp(low)


def _out_of_reach(source: Source, alpha: float, found: str) -> UsageError:
    return UsageError(
        f"{alpha:g} cannot be reached with --source {source.name}: {found}.",
        flag="--alpha",
        remedy="Give another alpha, --vocabulary, --sharpness, --contexts or --source, or no truncation.",
    )
