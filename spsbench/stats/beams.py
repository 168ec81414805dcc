"""Whether a beam search by speculation found what exact beam search finds; nothing is sampled, so no law.

Two facts, each with an excuse for rounding alone. *Identity*: every finished hypothesis of a prompt, and its
score, is that of exact beam search. Where hypotheses differ, the smallest gap by which either search chose
tells whether rounding can have made the difference. *Log-probability*: an uncached forward of the target
over the best output gives what the search says of it; it knows no tree, cache or loop, so a wrong mask,
position or column shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spsbench.stats.speedup import finished
from spsbench.summary_types import BeamFacts, BeamIdentity, BeamScores

if TYPE_CHECKING:
    import pandas as pd

CLOSEST, LOG_PROB, RESCORED_LOG_PROB = "beam_closest", "beam_log_prob", "rescored_beam_log_prob"

_KEY = ["example_id", "sample_index"]


def beam_facts(baseline: pd.DataFrame | None, arm: pd.DataFrame, *, precise: bool) -> BeamFacts:
    """What is known of an arm of beam search.

    Args:
        baseline: rows of ``samples`` of exact beam search; None without one, or for itself.
        arm: its own rows.
        precise: whether the target computes in float32 or finer.
    """
    return {
        "identity": None if baseline is None else _identity(baseline, arm, precise=precise),
        "scores": _scores(arm, precise=precise),
    }


def slack(tokens: int, *, precise: bool) -> float:
    """By how much rounding may move the log-probability of so many tokens, in nats.

    Per token as much as the self-tests of loading grant a row of logits.
    """
    return (1e-3 if precise else 5e-2) * math.sqrt(1 + tokens)


def _identity(baseline: pd.DataFrame, arm: pd.DataFrame, *, precise: bool) -> BeamIdentity | None:
    ours, theirs = (finished(frame).set_index(_KEY) for frame in (baseline, arm))
    shared = ours.index.intersection(theirs.index, sort=False)
    if shared.empty:
        return None
    verdicts = [_same(ours.loc[key], theirs.loc[key], precise=precise) for key in shared]
    return {
        "sequences": len(shared),
        "identical": sum(same is True for same in verdicts),
        "rounding": sum(same is None for same in verdicts),
        "contradicted": sum(same is False for same in verdicts),
    }


def _same(one: Any, other: Any, *, precise: bool) -> bool | None:
    """Whether two searches found the same; None if not, and rounding explains it."""
    granted = slack(max(one["new_tokens"], other["new_tokens"]), precise=precise)
    found, again = (_hypotheses(row["hypotheses"]) for row in (one, other))
    if found.keys() == again.keys():
        apart = max((abs(found[tokens] - again[tokens]) for tokens in found), default=0.0)
        return apart <= granted
    closest = min(_fact(row["losslessness"], CLOSEST, math.inf) for row in (one, other))
    return None if closest <= granted else False


def _hypotheses(text: Any) -> dict[tuple[int, ...], float]:
    """Log-probability by the tokens of every finished hypothesis."""
    rows = json.loads(text) if isinstance(text, str) else []
    return {tuple(row["tokens"]): float(row["log_prob"]) for row in rows}


def _fact(facts: Any, name: str, default: float) -> float:
    value = facts.get(name) if isinstance(facts, Mapping) else None
    return default if value is None else float(value)


def _scores(arm: pd.DataFrame, *, precise: bool) -> BeamScores | None:
    done = finished(arm)
    found = [
        (int(tokens), _fact(facts, LOG_PROB, math.nan) - _fact(facts, RESCORED_LOG_PROB, math.nan))
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
