"""Alternative laws that an engine's texts may follow, to name what it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from spsbench.decode.sampling import warp
from spsbench.engines.rescore import Reading, own_entries
from spsbench.records import SamplingParams

FLOOR = 1e-6
"""Probability that a token is granted that a law holds to be impossible: it costs 14 nats."""


@dataclass(frozen=True, slots=True)
class Law:
    """A way of making rows of probabilities from the logits of target and draft.

    Attributes:
        rows: from [n, V] logits of the target and of the draft to [n, V] probabilities.
    """

    name: str
    rows: Callable[[Tensor, Tensor | None], Tensor]
    warped: Callable[[Tensor], Tensor] | None = None
    convention: bool = False

    @property
    def family(self) -> str:
        """What laws that differ in a number alone have in common."""
        return "the draft" if self.warped is None else self.name.partition(" ")[0]


@dataclass(slots=True)
class Fit:
    """How well a law fits texts: nats above the law that was asked for, and tokens of probability 0."""

    law: Law
    nats: float = 0.0
    impossible: int = 0


@dataclass(slots=True)
class Fits:
    """Fits of several laws to the same texts, added up text by text."""

    laws: Sequence[Law]
    found: list[Fit] = field(init=False)

    def __post_init__(self) -> None:
        self.found = [Fit(law) for law in self.laws]

    def add(self, reading: Reading) -> None:
        """Count one text."""
        base = 0.0
        for number, fit in enumerate(self.found):
            rows = fit.law.rows(reading.logits.float(), reading.draft_logits)
            own = own_entries(rows, reading.tokens).double()
            likelihood = float(own.clamp_min(FLOOR).log().sum())
            base = base if number else likelihood
            fit.nats += likelihood - base
            fit.impossible += int((own <= 0).sum())


def read_under(reading: Reading, law: Law | None) -> Reading:
    """A reading with both models' rows by another law, to the letter: nothing is granted to rounding."""
    if law is None:
        return reading
    if law.warped is None:
        raise ValueError(f"{law.name} is not a law of one model")
    q = law.warped(reading.logits.float())
    p = None if reading.draft_logits is None else law.warped(reading.draft_logits.float())
    outside = own_entries(q, reading.tokens) <= 0
    return replace(reading, q=q, p=p, impossible=outside, edge=torch.zeros_like(outside))


def laws_beside(sampling: SamplingParams, *, draft: bool) -> list[Law]:
    """What was asked for, and what engines are known to do in its place."""
    found = [_of_one("the target as asked for", lambda logits: warp(logits, sampling))]
    if not sampling.greedy:
        found += [*_temperatures(sampling), *_cuts(sampling)]
    return [*found, *(_mixtures(sampling) if draft else ())]


def _of_one(name: str, warped: Callable[[Tensor], Tensor], *, convention: bool = False) -> Law:
    return Law(name, lambda logits, _: warped(logits), warped, convention)


def _with(name: str, sampling: SamplingParams, *, convention: bool = False) -> Law:
    return _of_one(name, lambda logits: warp(logits, sampling), convention=convention)


def _temperatures(sampling: SamplingParams) -> Iterator[Law]:
    asked = sampling.temperature
    for factor in (0.25, 0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0):
        if not math.isclose(asked * factor, 1.0):
            yield _with(f"temperature {asked * factor:.3g}", replace(sampling, temperature=asked * factor))
    if asked != 1:
        yield _with("temperature 1", replace(sampling, temperature=1.0))
        yield _with("no temperature, top-k or top-p", SamplingParams())
        if sampling.top_p < 1 or sampling.top_k:
            yield _of_one(
                "top-k and top-p cut at temperature 1, then the temperature",
                lambda logits: _cut_first(logits, sampling),
                convention=True,
            )


def _cut_first(logits: Tensor, sampling: SamplingParams) -> Tensor:
    inside = warp(logits, replace(sampling, temperature=1.0)) > 0
    rows = warp(logits, replace(sampling, top_p=1.0, top_k=0)) * inside
    return rows / rows.sum(-1, keepdim=True)


def _cuts(sampling: SamplingParams) -> Iterator[Law]:
    if sampling.top_p == 1 and not sampling.top_k:
        for k in (40, 50):
            yield _with(f"top-k {k}", replace(sampling, top_k=k))
        for p in (0.95, 0.9):
            yield _with(f"top-p {p}", replace(sampling, top_p=p))
        yield _of_one("min-p 0.05", lambda logits: _min_p(warp(logits, sampling), 0.05))
        return
    yield _with("no top-k or top-p", replace(sampling, top_k=0, top_p=1.0))
    if sampling.top_p == 1:
        return
    for more in (1, 2):
        name = f"the nucleus and {more} token{'s' if more > 1 else ''} more"
        yield _of_one(name, partial(_longer, sampling=sampling, more=more), convention=True)
    yield _of_one(
        "the nucleus without its last token", lambda logits: _longer(logits, sampling, -1), convention=True
    )
    for top_p in (sampling.top_p + extra for extra in (0.01, 0.02, 0.05)):
        if top_p < 1:
            yield _with(f"top-p {top_p:.3g}", replace(sampling, top_p=top_p))


def _min_p(rows: Tensor, share: float) -> Tensor:
    kept = rows * (rows >= share * rows.max(-1, keepdim=True).values)
    return kept / kept.sum(-1, keepdim=True)


def _longer(logits: Tensor, sampling: SamplingParams, more: int) -> Tensor:
    """The nucleus with so many more of the most probable tokens, at least one."""
    sizes = (warp(logits, sampling) > 0).sum(-1)
    rows = warp(logits, replace(sampling, top_p=1.0))
    order = rows.argsort(dim=-1, descending=True, stable=True)
    places = torch.empty_like(order).scatter_(-1, order, torch.arange(rows.shape[-1]).expand_as(order))
    kept = rows * (places < (sizes + more).clamp(min=1).unsqueeze(-1))
    return kept / kept.sum(-1, keepdim=True)


def _mixtures(sampling: SamplingParams) -> Iterator[Law]:
    for share in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        yield Law(f"a share of {share:.0%} from the draft", _mixed(sampling, share))
    yield Law("the draft alone", _mixed(sampling, 1.0))


def _mixed(sampling: SamplingParams, share: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    def rows(logits: Tensor, drafts: Tensor | None) -> Tensor:
        assert drafts is not None, "a mixture needs a draft"
        return (1 - share) * warp(logits, sampling) + share * warp(drafts.float(), sampling)

    return rows
