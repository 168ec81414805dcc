"""Where an engine's texts differ from the target: which tokens of a loop, which contexts, which other law."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spsbench.engines.rescore import Reading, own_entries
from spsbench.law.evidence import Sums, added, evidence
from spsbench.models.causal_lm import CausalLM
from spsbench.records import SamplingParams
from spsbench.summary_types import LocatedFacts
from spsbench.verify.bets import loops_of
from spsbench.verify.engine_audit import Drawn, reading_of
from spsbench.verify.laws import Fit, Fits, laws_beside

MOST_TEXTS = 60
"""Texts that are read again: enough to see what raised an alarm."""

FEWEST_TOKENS = 20
"""Fewer say nothing of a place."""

_DECISIVE_NATS = math.log(1000.0)
_CLEAR_NATS = math.log(20.0)

ACCEPTED, REJECTED, WHOLE = "accepted", "after a rejection", "after a whole draft"


@dataclass(frozen=True, slots=True)
class Place:
    """Tokens of one kind, and what they say.

    Attributes:
        name: e.g. ``after a rejection``.
        impossible: of these, of probability 0: in a loop under what modified rejection leaves at its place.
        leakage: share of the draft that fits them best; None without a draft.
    """

    name: str
    tokens: int
    impossible: int
    leakage: float | None
    leakage_z: float | None
    score_z: float | None


@dataclass(frozen=True, slots=True)
class Located:
    """What is known of where texts part from the target."""

    places: Mapping[str, Sequence[Place]]
    fits: Sequence[Fit]

    @property
    def explanation(self) -> Fit | None:
        """The best law, if the texts are 1,000 times as likely under it as under the one asked for, and 20
        times as likely as under the best law of another family."""
        best, *others = self.fits
        rival = next((fit.nats for fit in others if fit.law.family != best.law.family), 0.0)
        return best if best.nats > _DECISIVE_NATS and best.nats - rival > _CLEAR_NATS else None


def locate(
    drawn: Sequence[Drawn],
    models: tuple[CausalLM, CausalLM | None],
    sampling: SamplingParams,
    k: int | None = None,
) -> Located:
    """Read texts again and sort their tokens."""
    fits = Fits(laws_beside(sampling, draft=models[1] is not None))
    sums: dict[str, dict[str, Sums]] = {}
    counts: dict[str, dict[str, int]] = {}
    for each in drawn[:MOST_TEXTS]:
        reading = reading_of(each.text, models)
        fits.add(reading)
        for group, name, mask, law in _groups(each, reading, k or 0):
            part = sums.setdefault(group, {})
            part[name] = added(part.get(name, {}), _sums(reading, mask, law))
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


def _groups(drawn: Drawn, reading: Reading, k: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """(group, name, mask over the text's tokens, their law), names in the order in which they are to stand.

    That a token was accepted says something of it: what remains of the draft's row is min(p, q), and after
    a rejection (q - p)+, each normalised. By q alone neither would be centred for a right engine.
    """
    n, q, p = len(reading.tokens), reading.q, reading.p
    if drawn.accepted_per_loop is not None and p is not None and k:
        _, kinds, _ = loops_of(drawn.accepted_per_loop, n, k, drawn.free or 0, drawn.drafted_ids)
        laws = {"a": torch.minimum(p, q), "c": (q - p).clamp(min=0), "b": q}
        for kind, name in (("a", ACCEPTED), ("c", REJECTED), ("b", WHOLE)):
            law = laws[kind] / laws[kind].sum(-1, keepdim=True).clamp(min=1e-30)
            yield "place in the loop", name, _mask(each == kind for each in kinds), law
    if p is not None:
        apart = (q - p).abs().sum(-1) / 2
        for name, low, high in (("below 0.2", 0.0, 0.2), ("0.2 to 0.6", 0.2, 0.6), ("from 0.6", 0.6, 2.0)):
            yield "distance of draft and target", name, (apart >= low) & (apart < high), q
    place = torch.arange(n)
    for name, first, last in (("1st", 0, 1), ("2nd to 8th", 1, 8), ("from the 9th", 8, n)):
        yield "place in the text", name, (place >= first) & (place < last), q


def _mask(values: Iterator[bool]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.bool)


def _sums(reading: Reading, mask: Tensor, law: Tensor) -> Sums:
    p = None if reading.p is None else reading.p[mask]
    v = torch.full((int(mask.sum()),), 0.5, dtype=torch.float64)
    outside = own_entries(law, reading.tokens) <= 0 if law is not reading.q else reading.impossible
    granted = {"impossible": float((outside & mask).sum())}
    return evidence(reading.tokens[mask], law[mask], p, v) | granted


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
