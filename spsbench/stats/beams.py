"""Whether a beam search by speculation found what exact beam search finds; nothing is sampled, so no law.

Two facts, each with an excuse for rounding alone. *Identity*: every finished hypothesis of a prompt, its
score and its place are those of exact beam search. Where hypotheses differ, the smallest gap by which either
search chose shows whether rounding can have made the difference; where two changed places, the gap between
them does. *Log-probability*: an uncached forward of the target over the best output gives what the search
says of it; it knows no tree, cache or loop, so a wrong mask, position or column shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypedDict

from spsbench.records import BEAM_CLOSEST, BEAM_LOG_PROB, RESCORED_BEAM_LOG_PROB
from spsbench.stats.speedup import finished
from spsbench.summary_types import BeamFacts, BeamIdentity, BeamScores

if TYPE_CHECKING:
    import pandas as pd


class _Found(TypedDict):
    """What ``_same`` reads of a row of ``hypotheses``; see ``Hypothesis``."""

    tokens: list[int]
    score: float
    log_prob: float


_KEY = ("process", "example_id", "sample_index")


def beam_facts(baseline: pd.DataFrame | None, arm: pd.DataFrame, *, precise: bool) -> BeamFacts:
    """What is known of an arm of beam search."""
    return {
        "identity": None if baseline is None else _identity(baseline, arm, precise=precise),
        "scores": _scores(arm, precise=precise),
    }


def slack(tokens: int, *, precise: bool) -> float:
    """By how much rounding may move the log-probability of so many tokens, in nats.

    Independent errors of each token. In 16 bit that is 0.39 nats at 60 tokens, wider than the closest choice
    of any search in docs/beam-search.md: little can be contradicted. In float32 the embedded pair's errors on
    a CPU are smaller by a factor of 100.
    """
    return (2e-4 if precise else 5e-2) * math.sqrt(1 + tokens)


def _identity(baseline: pd.DataFrame, arm: pd.DataFrame, *, precise: bool) -> BeamIdentity | None:
    key = [name for name in _KEY if name in baseline and name in arm]
    columns = [*key, "new_tokens", "hypotheses", "losslessness"]
    ours, theirs = (finished(frame)[columns] for frame in (baseline, arm))
    both = ours.merge(theirs, on=key, suffixes=("_base", "_arm"))
    if both.empty:
        return None
    rows = both.to_dict("records")
    verdicts = [_same(row, precise=precise) for row in rows]
    return {
        "sequences": len(both),
        "identical": sum(same is True for same in verdicts),
        "rounding": sum(same is None for same in verdicts),
        "contradicted": sum(same is False for same in verdicts),
        "allowance": max(_granted(row, precise=precise) for row in rows),
        "precise": precise,
    }


def _granted(both: Mapping[Any, Any], *, precise: bool) -> float:
    """What rounding may explain between two searches of one prompt, in nats."""
    return slack(max(both["new_tokens_base"], both["new_tokens_arm"]), precise=precise)


def _same(both: Mapping[Any, Any], *, precise: bool) -> bool | None:
    """Whether two searches found the same in the same order; None if not, and rounding explains it."""
    sides = ("_base", "_arm")
    granted = _granted(both, precise=precise)
    found, again = (_hypotheses(both[f"hypotheses{side}"]) for side in sides)
    if found.keys() != again.keys():
        closest = min(_fact(both[f"losslessness{side}"], BEAM_CLOSEST, math.inf) for side in sides)
        return None if closest <= granted else False
    apart = [abs(found[tokens]["log_prob"] - again[tokens]["log_prob"]) for tokens in found]
    swapped = _swapped(list(found.values()), list(again))
    if max([*apart, *swapped], default=0.0) > granted:
        return False
    return None if swapped else True


def _hypotheses(text: Any) -> dict[tuple[int, ...], _Found]:
    """The finished hypotheses by their tokens, best first."""
    rows = json.loads(text) if isinstance(text, str) else []
    return {tuple(row["tokens"]): row for row in rows}


def _swapped(found: Sequence[_Found], again: Sequence[tuple[int, ...]]) -> list[float]:
    """How far apart those are, in nats, whose order the other search has reversed."""
    place = {tokens: index for index, tokens in enumerate(again)}
    return [
        _gap(better, worse)
        for better, worse in combinations(found, 2)
        if place[tuple(better["tokens"])] > place[tuple(worse["tokens"])]
    ]


def _gap(one: _Found, other: _Found) -> float:
    """The difference of two scores in nats: times the smaller of both powers of lengths in them."""
    divisors = [found["log_prob"] / found["score"] if found["score"] else 1.0 for found in (one, other)]
    return abs(one["score"] - other["score"]) * min(divisors)


def _fact(facts: Any, name: str, default: float) -> float:
    value = facts.get(name) if isinstance(facts, Mapping) else None
    return default if value is None else float(value)


def _scores(arm: pd.DataFrame, *, precise: bool) -> BeamScores | None:
    done = finished(arm)
    found = [
        (int(tokens), _fact(facts, BEAM_LOG_PROB, math.nan) - _fact(facts, RESCORED_BEAM_LOG_PROB, math.nan))
        for tokens, facts in zip(done["new_tokens"], done["losslessness"], strict=True)
    ]
    known = [(tokens, abs(apart)) for tokens, apart in found if not math.isnan(apart)]
    if not known:
        return None
    return {
        "sequences": len(known),
        "largest_difference": max(apart for _, apart in known),
        "contradicted": sum(apart > slack(tokens, precise=precise) for tokens, apart in known),
    }
