"""Where an engine's texts differ from the target: which tokens of a loop, which contexts, which other law."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spsbench.decode.evidence import Sums, added, evidence
from spsbench.engines.rescore import Reading
from spsbench.models.causal_lm import CausalLM
from spsbench.records import SamplingParams
from spsbench.summary_types import LocatedFacts
from spsbench.verify.engine_audit import Drawn, reading_of
from spsbench.verify.laws import Fit, Fits, laws_beside

MOST_TEXTS = 60
"""Texts that are read again: enough to see what raised an alarm."""

FEWEST_TOKENS = 20
"""Fewer say nothing of a place."""

_DECISIVE_NATS = math.log(1000.0)

ACCEPTED, CORRECTED = "accepted", "behind them"


@dataclass(frozen=True, slots=True)
class Place:
    """Tokens of one kind, and what they say.

    Attributes:
        name: e.g. ``accepted, 2nd of a loop``.
        tokens: how many.
        impossible: of these, of probability 0 under the target.
        leakage: share of the draft that fits them best; None without a draft.
        leakage_z: its distance from 0 in standard errors.
        score_z: of the log-score: above 0 the tokens are too probable, below too improbable.
    """

    name: str
    tokens: int
    impossible: int
    leakage: float | None
    leakage_z: float | None
    score_z: float | None


@dataclass(frozen=True, slots=True)
class Located:
    """What is known of where texts part from the target.

    Attributes:
        places: by group: place in the loop, closeness of the models.
        fits: laws other than the one asked for, the best first, and that one at the end.
    """

    places: Mapping[str, Sequence[Place]]
    fits: Sequence[Fit]

    @property
    def explanation(self) -> Fit | None:
        """The best law, if the texts are 1,000 times as likely under it as under the one asked for."""
        best = self.fits[0]
        return best if best.nats > _DECISIVE_NATS else None


def locate(
    drawn: Sequence[Drawn], models: tuple[CausalLM, CausalLM | None], sampling: SamplingParams
) -> Located:
    """Read texts again and sort their tokens.

    Args:
        drawn: of one engine and setting.
        models: target and draft.
        sampling: what was asked for.
    """
    fits = Fits(laws_beside(sampling, draft=models[1] is not None))
    sums: dict[str, dict[str, Sums]] = {}
    counts: dict[str, dict[str, int]] = {}
    for each in drawn[:MOST_TEXTS]:
        reading = reading_of(each.text, models)
        fits.add(reading)
        for group, name, mask in _groups(each, reading):
            part = sums.setdefault(group, {})
            part[name] = added(part.get(name, {}), _sums(reading, mask))
            tally = counts.setdefault(group, {})
            tally[name] = tally.get(name, 0) + int(mask.sum())
    places = {
        group: [
            _place(name, counts[group][name], part)
            for name, part in parts.items()
            if counts[group][name] >= FEWEST_TOKENS
        ]
        for group, parts in sums.items()
    }
    asked, *others = fits.found
    return Located(places, [*sorted(others, key=lambda fit: -fit.nats), asked])


def _groups(drawn: Drawn, reading: Reading) -> Iterator[tuple[str, str, Tensor]]:
    """(group, name, mask over the text's tokens), names in the order in which they are to stand."""
    n = len(reading.tokens)
    if drawn.accepted_per_loop is not None:
        kinds = _kinds(drawn.accepted_per_loop, n)
        for name in dict.fromkeys((ACCEPTED, CORRECTED, *kinds)):
            yield "place in the loop", name, _mask(kind == name for kind in kinds)
    if reading.p is not None:
        apart = (reading.q - reading.p).abs().sum(-1) / 2
        for name, low, high in (("below 0.2", 0.0, 0.2), ("0.2 to 0.6", 0.2, 0.6), ("from 0.6", 0.6, 2.0)):
            yield "distance of draft and target", name, (apart >= low) & (apart < high)
    place = torch.arange(n)
    for name, first, last in (("1st", 0, 1), ("2nd to 8th", 1, 8), ("from the 9th", 8, n)):
        yield "place in the text", name, (place >= first) & (place < last)


def _kinds(accepted: Sequence[int], n: int) -> list[str]:
    """Of every token, whether its loop had drafted it; what the loops do not cover has no kind."""
    kinds: list[str] = []
    for count in accepted:
        kinds += [ACCEPTED] * count + [CORRECTED]
    return (kinds + [""] * n)[:n]


def _mask(values: Iterator[bool]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.bool)


def _sums(reading: Reading, mask: Tensor) -> Sums:
    p = None if reading.p is None else reading.p[mask]
    v = torch.full((int(mask.sum()),), 0.5, dtype=torch.float64)
    granted = {"impossible": float((reading.impossible & mask).sum())}
    return evidence(reading.tokens[mask], reading.q[mask], p, v) | granted


def _place(name: str, tokens: int, sums: Sums) -> Place:
    information, variance = sums.get("leak_all_information", 0.0), sums.get("leak_all_var", 0.0)
    leakage = sums["leak_all_score"] / information if information > 0 else None
    z = sums["leak_all_score"] / math.sqrt(variance) if variance > 0 else None
    spread = sums["log_score_var"]
    score = sums["log_score"] / math.sqrt(spread) if spread > 0 else None
    return Place(name, tokens, int(sums["impossible"]), leakage, z, score)


def facts_of(found: Located) -> LocatedFacts:
    """All of it, for JSON and for reports."""
    best = found.explanation
    return {
        "places": {group: [asdict(place) for place in places] for group, places in found.places.items()},
        "laws": [
            {"law": fit.law.name, "nats": fit.nats, "impossible": fit.impossible} for fit in found.fits[:5]
        ],
        "explanation": None if best is None else best.law.name,
    }
