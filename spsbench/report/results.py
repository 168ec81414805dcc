"""The tables of a run's arms that the terminal and report.md both show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spsbench.report import wording
from spsbench.report.naming import Naming
from spsbench.report.tables import Cell, Column, Styled, Table, left, right
from spsbench.summary_types import ArmRow, CategoryRow, RatioInterval


def results(arms: Sequence[ArmRow], metric: str | None, naming: Naming, *, intervals: bool = True) -> Table:
    """Quality, time per token and both speedups of every arm, in the shape of the paper's Table 1."""
    columns, cells = _decoding(arms, metric)
    whole = left("end to end", note="95%", whole=True) if intervals else right("end to end")
    columns.insert(-1, whole)

    def with_whole(arm: ArmRow) -> list[Cell]:
        found = cells(arm)
        found.insert(-1, _end_to_end(arm, intervals=intervals))
        return found

    return naming.table(columns, arms, with_whole)


def decoding(arms: Sequence[ArmRow] | Sequence[CategoryRow], metric: str | None, naming: Naming) -> Table:
    """The same without the end-to-end speedup."""
    columns, cells = _decoding(arms, metric)
    return naming.table(columns, arms, cells)


def _decoding(
    arms: Sequence[ArmRow] | Sequence[CategoryRow], metric: str | None
) -> tuple[list[Column], Callable[[ArmRow | CategoryRow], list[Cell]]]:
    """Columns, and an arm's cells in them."""
    scored = metric is not None
    known = any(wording.metric_ends(metric, arm)[0] is not None for arm in arms)
    columns = [
        *([right(wording.metric_title(metric), note="95%" if known else "")] if scored else []),
        right("ms/token"),
        left("speedup", note="95%", whole=True),
        right("tokens/loop"),
    ]

    def cells(arm: ArmRow | CategoryRow) -> list[Cell]:
        return [
            *([wording.quality(metric, arm)] if scored else []),
            _time(arm),
            _speedup(arm),
            wording.number(arm["tokens_per_loop"], 2),
        ]

    return columns, cells


def _end_to_end(arm: ArmRow, *, intervals: bool) -> str:
    """The cell of the end-to-end speedup; that of the baseline as in the speedup's own column."""
    found = arm["end_to_end_speedup"]
    if found is None:
        return wording.row_speedup(arm)
    return wording.speedup(found) if intervals else f"{found['ratio']:.2f}x"


def times(arms: Sequence[ArmRow], naming: Naming) -> Table:
    """Times alone, for the sequences that were measured under one of several conditions."""
    columns = [right("sequences"), right("ms/token"), left("speedup", note="95%", whole=True)]
    return naming.table(columns, arms, lambda arm: [str(arm["sequences"]), _time(arm), _speedup(arm)])


def acceptance(arms: Sequence[ArmRow], naming: Naming, *, rule: bool = False) -> Table:
    """The first measures of acceptance, and by which rule, of speculative arms."""
    columns = [right(name, code=True) for name in wording.FIRST_SCREEN]
    columns += [left("verification rule")] if rule else []

    def cells(arm: ArmRow) -> list[Cell]:
        found: list[Cell] = [*wording.first_screen(arm["acceptance"])]
        return [*found, arm["verification_rule"] or wording.NOTHING] if rule else found

    return naming.table(columns, arms, cells)


def _time(arm: ArmRow | CategoryRow) -> str:
    if arm["sequences"]:
        return wording.milliseconds(arm["ms_per_token"])
    return "failed" if arm["failed"] else "not run"


def _speedup(arm: ArmRow | CategoryRow) -> Cell:
    return coloured(wording.row_speedup(arm), arm["speedup"])


def coloured(text: str, found: RatioInterval | None) -> Cell:
    """A speedup's text, coloured only where its interval leaves no doubt; nothing depends on seeing it."""
    if found is None or found["low"] is None:
        return text
    low, high = wording.ends(found)
    style = "green" if low > 1.0 else "red" if high < 1.0 else ""
    return Styled(text, style) if style else text
