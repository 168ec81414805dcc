"""Policies by replay: what ``--policy`` names, and how their curves are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.drafters.stopping import StopReader
    from spsbench.records import Interval, Spec
    from spsbench.replay.adaptive import Choice, Curve, PolicyCell
    from spsbench.replay.policies import Policies
    from spsbench.replay.study import Study
    from spsbench.report.tables import Heading, Row, Table


def asked(text: str | None, drafters: Sequence[Spec]) -> Policies | None:
    """The policies that ``--policy`` names."""
    from spsbench.records import Spec
    from spsbench.replay.policies import policies_of

    return None if text is None else policies_of([Spec.parse(name) for name in text.split(",")], drafters)


def curves(study: Study, policies: Policies | None, readers: Mapping[Spec, StopReader]) -> list[Curve]:
    """Of every drafter that heeds a policy."""
    from spsbench.replay.adaptive import curve

    if policies is None:
        return []
    return [curve(study, drafter, reader, policies) for drafter, reader in readers.items()]


def facts(found: Sequence[Curve]) -> dict[str, Any]:
    """All of it, for JSON; nothing without policies."""
    return {"policies": [_of_curve(each) for each in found]} if found else {}


def _of_curve(found: Curve) -> dict[str, Any]:
    return {
        "drafter": str(found.drafter),
        "k": found.k,
        "cells": [_of_cell(cell) for cell in found.cells],
        "oracle": _of_cell(found.oracle),
        "choices": [asdict(choice) | {"policy": str(choice.policy)} for choice in found.choices],
        "beyond_ms": {name: asdict(taken) for name, taken in found.beyond_ms.items()},
        "rollouts": found.rollouts,
    }


def _of_cell(cell: PolicyCell) -> dict[str, Any]:
    return asdict(cell) | {"policy": None if cell.policy is None else str(cell.policy)}


def shown(found: Sequence[Curve]) -> Iterator[RenderableType]:
    """For a terminal: a table and sentences for each drafter."""
    for each in found:
        yield from ("", f"{each.drafter}, up to K={each.k}, by policy", "", _table(each).as_rich(), "")
        yield from _sentences(each)


def _table(found: Curve) -> Table:
    from spsbench.report.tables import Heading, Table, left, right

    rows: list[Row | Heading] = []
    before = None
    for cell in (*found.cells, found.oracle):
        name, label = _named(cell)
        if name != before:
            before = name
            rows.append(Heading(name))
        rows.append([label, *_numbers(cell)])
    titles = ("tokens/loop [95%]", "drafted/loop", "ms/token", "speedup [95%]")
    return Table([left(whole=True), *map(right, titles)], rows)


def _named(cell: PolicyCell) -> tuple[str, str]:
    """(name, threshold) of a policy."""
    if cell.policy is None:
        return "oracle", ""
    name, _, threshold = str(cell.policy).partition(":")
    return name, threshold


def _numbers(cell: PolicyCell) -> list[str]:
    from spsbench.report.wording import interval

    told = cell.predicted
    low, high = cell.bounds.low, cell.bounds.high
    between = "" if high - low < 0.005 else f" ({low:.2f}-{high:.2f})"
    return [
        interval(cell.tokens_per_loop),
        f"{cell.drafted_per_loop.estimate:.2f}{between}",
        "" if told is None else f"{told.ms_per_token.estimate:.3g}",
        "" if told is None else interval(told.speedup, "x"),
    ]


def _sentences(found: Curve) -> Iterator[str]:
    for choice in found.choices:
        yield from _judged(choice)
    for cell in found.cells:
        if cell.ran is not None:
            yield f"In the run {cell.policy} emitted {cell.ran.tokens_per_loop:.2f} tokens a loop."
    if found.rollouts:
        yield (
            "Tokens per loop are exact given the texts. What is drafted after rejected tokens is sampled "
            f"({found.rollouts:,} drafts); in brackets its bounds."
        )
    if found.choices:
        yield f"No policy with drafts of up to {found.k} tokens is faster than the oracle."
    if found.beyond_ms:
        costs = ", ".join(f"{name} {_signed(taken)}" for name, taken in found.beyond_ms.items())
        yield f"Beyond a fixed K that drafts as many a loop took here, in ms: {costs}; charged if above 0."


def _judged(choice: Choice) -> Iterator[str]:
    from spsbench.report.wording import interval, interval_percent

    yield (
        f"{choice.policy}, chosen on {choice.chosen_on} prompts: {interval(choice.gain, 'x')} as fast as the "
        f"best fixed K, {choice.fixed_k}, on {choice.judged_on} others."
    )
    if choice.fixed_share is not None and choice.policy_share is not None:
        fixed, own = map(interval_percent, (choice.fixed_share, choice.policy_share))
        yield (
            f"Of the time that the oracle saves there over ArS, fixed K={choice.fixed_k} already saves "
            f"{fixed}, {choice.policy} {own}."
        )


def _signed(value: Interval) -> str:
    ends = "" if value.low is None else f" [{value.low:+.2f}, {value.high:+.2f}]"
    return f"{value.estimate:+.2f}{ends}"
