"""Where an engine's texts differ from the target: which tokens of a loop, which contexts, which other law."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spsbench.base import Drafting, Processing, SamplingParams
from spsbench.decode import CONVENTIONS, warp, with_history
from spsbench.engines import Reading, own_entries
from spsbench.law import Sums, added, sums_of
from spsbench.models import CausalLM
from spsbench.parts.audit.bet_table import cut_to
from spsbench.parts.audit.bets import loops_of
from spsbench.parts.audit.messages import faults
from spsbench.runner import Foreign, reading_of
from spsbench.store import LocatedFacts

MOST_TEXTS = 60
"""Texts that are read again: enough to see what raised an alarm."""

FEWEST_TOKENS = 20
"""Fewer say nothing of a place."""

FLOOR = 1e-6
"""Probability that a token is granted that a law holds to be impossible: it costs 14 nats."""

_DECISIVE_NATS = math.log(1000.0)
_CLEAR_NATS = math.log(20.0)


@dataclass(frozen=True, slots=True)
class Law:
    """A law that texts may follow: the target's logits warped, or a mixture of both models' so.

    With ``processed`` other processing than was asked for comes before: it starts from the raw logits.
    """

    name: str
    warped: Callable[[Tensor], Tensor]  # from [n, V] logits to [n, V] probabilities
    share: float = 0.0  # of the draft
    convention: bool = False  # another reading of the same parameters
    processed: SamplingParams | None = None

    @property
    def family(self) -> str:
        """What laws that differ only in a number have in common."""
        return "the draft" if self.share else self.name.partition(" ")[0]

    def rows(self, reading: Reading) -> Tensor:
        """[n, V] probabilities of a text's tokens."""
        logits = reading.logits.float()
        drafts = reading.draft_logits
        raw = reading.raw
        if self.processed is not None and raw is not None:
            before = [*reading.prompt, *reading.tokens.tolist()[:-1]]
            logits = with_history(raw.float(), self.processed.history, before, len(reading.prompt))
        if not self.share:
            return self.warped(logits)
        assert drafts is not None
        return (1 - self.share) * self.warped(logits) + self.share * self.warped(drafts.float())


@dataclass(slots=True)
class Fit:
    """How well a law fits texts: nats above the law that was asked for, and tokens of probability 0."""

    law: Law
    nats: float = 0.0
    impossible: int = 0


def read_under(reading: Reading, law: Law | None) -> Reading:
    """Return a reading with both models' rows by another law, without tolerance for rounding."""
    if law is None:
        return reading
    if law.share:
        raise ValueError(f"{law.name} is not a law of one model")
    q = law.rows(reading)
    p = None if reading.draft_logits is None else law.warped(reading.draft_logits.float())
    outside = own_entries(q, reading.tokens) <= 0
    return replace(reading, q=q, p=p, impossible=outside, edge=torch.zeros_like(outside))


def drafted_from(reading: Reading, drafting: Drafting | None) -> Reading:
    """Return a reading with the draft's rows cut as an engine declares that it draws from them."""
    if drafting is None or not drafting.top_k or reading.p is None:
        return reading
    rows = cut_to(reading.p.double().cpu().numpy(), drafting.top_k)
    return replace(reading, p=torch.from_numpy(rows).to(reading.p))


def laws_beside(sampling: SamplingParams, *, draft: bool) -> list[Law]:
    """Return the law that was asked for, and those that engines are known to use in its place."""
    laws = [_law_of(faults.AS_ASKED, sampling)]
    if not sampling.greedy:
        laws += [*_temperatures(sampling), *_cuts(sampling)]
    laws += _processings(sampling)
    if draft:
        for share in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0):
            laws.append(replace(_law_of(str(faults.DraftShare(share)), sampling), share=share))
    return laws


def _law_of(name: str, sampling: SamplingParams) -> Law:
    return Law(name, lambda logits: warp(logits, sampling))


def _processings(sampling: SamplingParams) -> Iterator[Law]:
    """Other conventions, each step left out, and penalties that count otherwise."""
    if sampling.process is None:
        return
    process = sampling.process
    plain = Processing()
    seen = {sampling}
    names = [f.name for f in fields(Processing) if f.name != "convention"]
    others: dict[str, dict[str, Any]] = {
        f"the convention {name}": {"convention": name} for name in CONVENTIONS
    }
    others |= {f"no {name.replace('_', ' ')}": {name: getattr(plain, name)} for name in names}
    others[faults.UNPROCESSED] = {name: getattr(plain, name) for name in names}
    for penalty in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        value = getattr(process, penalty)
        twice = value**2 if penalty == "repetition_penalty" else 2 * value
        others[f"the {penalty.replace('_', ' ')} twice"] = {penalty: twice}
    for name, changed in others.items():
        other = replace(sampling, process=replace(process, **changed))
        if other not in seen:
            seen.add(other)
            yield replace(_law_of(name, other), convention="convention" in changed, processed=other)


def _temperatures(sampling: SamplingParams) -> Iterator[Law]:
    temperature = sampling.temperature
    for factor in (0.25, 0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0):
        if not math.isclose(temperature * factor, 1.0):
            yield _law_of(
                f"temperature {temperature * factor:.3g}", replace(sampling, temperature=temperature * factor)
            )
    if temperature != 1:
        yield _law_of("temperature 1", replace(sampling, temperature=1.0))
        yield _law_of(faults.NO_WARP, SamplingParams())
        if sampling.top_p < 1 or sampling.top_k:
            yield Law(faults.CUT_BEFORE_TEMPERATURE, partial(_cut_first, sampling=sampling), convention=True)


def _cut_first(logits: Tensor, sampling: SamplingParams) -> Tensor:
    inside = warp(logits, replace(sampling, temperature=1.0)) > 0
    rows = warp(logits, replace(sampling, top_p=1.0, top_k=0)) * inside
    return rows / rows.sum(-1, keepdim=True)


def _cuts(sampling: SamplingParams) -> Iterator[Law]:
    """Cuts where none was asked for, none where some were, and wider nuclei."""
    if sampling.top_p == 1 and not sampling.top_k:
        for k in (40, 50):
            yield _law_of(f"top-k {k}", replace(sampling, top_k=k))
        for p in (0.95, 0.9):
            yield _law_of(f"top-p {p}", replace(sampling, top_p=p))
        yield Law("min-p 0.05", partial(_min_p, sampling=sampling, share=0.05))
        return
    yield _law_of(faults.NO_CUT, replace(sampling, top_k=0, top_p=1.0))
    if sampling.top_p == 1:
        return
    for more, name in ((1, faults.ONE_TOKEN_MORE), (2, faults.TWO_TOKENS_MORE), (-1, faults.ONE_TOKEN_LESS)):
        yield Law(name, partial(_longer_nucleus, sampling=sampling, more=more), convention=True)
    for top_p in (sampling.top_p + extra for extra in (0.01, 0.02, 0.05)):
        if top_p < 1:
            yield _law_of(f"top-p {top_p:.3g}", replace(sampling, top_p=top_p))


def _min_p(logits: Tensor, sampling: SamplingParams, share: float) -> Tensor:
    rows = warp(logits, sampling)
    kept = rows * (rows >= share * rows.max(-1, keepdim=True).values)
    return kept / kept.sum(-1, keepdim=True)


def _longer_nucleus(logits: Tensor, sampling: SamplingParams, more: int) -> Tensor:
    """Extend the nucleus by so many more of the most probable tokens, at least one."""
    sizes = (warp(logits, sampling) > 0).sum(-1)
    rows = warp(logits, replace(sampling, top_p=1.0))
    order = rows.argsort(dim=-1, descending=True, stable=True)
    places = torch.empty_like(order).scatter_(-1, order, torch.arange(rows.shape[-1]).expand_as(order))
    kept = rows * (places < (sizes + more).clamp(min=1).unsqueeze(-1))
    return kept / kept.sum(-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Tokens of one kind, and what they say."""

    name: str  # e.g. ``after a rejection``
    tokens: int
    impossible: int  # of probability 0: in a loop under what modified rejection leaves at its place
    leakage: float | None  # share of the draft that fits them best
    leakage_z: float | None
    score_z: float | None


@dataclass(frozen=True, slots=True)
class Located:
    """What is known of where texts part from the target."""

    places: Mapping[str, Sequence[Place]]
    fits: Sequence[Fit]

    @property
    def explanation(self) -> Fit | None:
        """The best law, if the texts are 1,000 times as likely under it as under the requested one, and
        20 times as likely as under the best law of another family.
        """
        best, *others = self.fits
        rival = next((fit.nats for fit in others if fit.law.family != best.law.family), 0.0)
        return best if best.nats > _DECISIVE_NATS and best.nats - rival > _CLEAR_NATS else None

    def facts(self) -> LocatedFacts:
        best = self.explanation
        return {
            "places": {group: [asdict(place) for place in places] for group, places in self.places.items()},
            "laws": [
                {"law": fit.law.name, "nats": fit.nats, "impossible": fit.impossible} for fit in self.fits[:5]
            ],
            "explanation": None if best is None else best.law.name,
        }


def locate(
    drawn: Sequence[Foreign],
    models: tuple[CausalLM, CausalLM | None],
    sampling: SamplingParams,
    k: int | None = None,
    drafting: Drafting | None = None,
) -> Located:
    """Read texts again and sort their tokens."""
    as_asked, *others = fits = [Fit(law) for law in laws_beside(sampling, draft=models[1] is not None)]
    sums: dict[str, dict[str, Sums]] = {}
    counts: dict[tuple[str, str], int] = {}
    for each in drawn[:MOST_TEXTS]:
        reading = reading_of(each, models)
        base = 0.0
        for fit in fits:
            rows = fit.law.rows(reading)
            probability = own_entries(rows, reading.tokens).double()
            likelihood = float(probability.clamp_min(FLOOR).log().sum())
            base = likelihood if fit is as_asked else base
            fit.nats += likelihood - base
            fit.impossible += int((probability <= 0).sum())
        for group, name, mask, law in _groups(each, drafted_from(reading, drafting), k or 0):
            part = sums.setdefault(group, {})
            part[name] = added(part.get(name, {}), _sums(reading, mask, law))
            counts[group, name] = counts.get((group, name), 0) + int(mask.sum())
    places = {
        group: [
            _place(name, counts[group, name], part)
            for name, part in parts.items()
            if counts[group, name] >= FEWEST_TOKENS
        ]
        for group, parts in sums.items()
    }
    return Located(places, [*sorted(others, key=lambda fit: -fit.nats), as_asked])


def _groups(text: Foreign, reading: Reading, k: int) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """(group, name, mask over the text's tokens, their law), names in display order.

    That a token was accepted says something of it: what remains of the draft's row is min(p, q), and after
    a rejection (q - p)+, each normalised. By q alone neither would be centred for a right engine.
    """
    n = len(reading.tokens)
    q = reading.q
    p = reading.p
    answer = text.told
    if answer is not None and answer.accepted_per_loop is not None and p is not None and k:
        _, kinds, _ = loops_of(answer.accepted_per_loop, n, k, text.free or 0, answer.drafted_ids)
        laws = {"a": torch.minimum(p, q), "c": (q - p).clamp(min=0), "b": q}
        for kind, name in (("a", faults.ACCEPTED), ("c", faults.REJECTED), ("b", faults.WHOLE)):
            law = laws[kind] / laws[kind].sum(-1, keepdim=True).clamp(min=1e-30)
            yield faults.PLACE_IN_LOOP, name, torch.from_numpy(kinds == kind), law
    if p is not None:
        apart = (q - p).abs().sum(-1) / 2
        for name, low, high in (("below 0.2", 0.0, 0.2), ("0.2 to 0.6", 0.2, 0.6), ("from 0.6", 0.6, 2.0)):
            yield faults.DISTANCE, name, (apart >= low) & (apart < high), q
    place = torch.arange(n)
    for name, first, last in (("1st", 0, 1), ("2nd to 8th", 1, 8), ("from the 9th", 8, n)):
        yield faults.PLACE_IN_TEXT, name, (place >= first) & (place < last), q


def _sums(reading: Reading, mask: Tensor, law: Tensor) -> Sums:
    p = None if reading.p is None else reading.p[mask]
    v = torch.full((int(mask.sum()),), 0.5, dtype=torch.float64)
    outside = own_entries(law, reading.tokens) <= 0 if law is not reading.q else reading.impossible
    granted = {"impossible": float((outside & mask).sum())}
    return sums_of(reading.tokens[mask], law[mask], p, v) | granted


def _place(name: str, tokens: int, sums: Sums) -> Place:
    information = sums.get("leak_all_information", 0.0)
    variance = sums.get("leak_all_var", 0.0)
    leakage = sums["leak_all_score"] / information if information > 0 else None
    z = sums["leak_all_score"] / math.sqrt(variance) if variance > 0 else None
    spread = sums["log_score_var"]
    score = sums["log_score"] / math.sqrt(spread) if spread > 0 else None
    return Place(name, tokens, int(sums["impossible"]), leakage, z, score)
