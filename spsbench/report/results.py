"""The tables of a run's arms that the terminal and report.md both show."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.report import wording
from spsbench.report.naming import Naming
from spsbench.report.tables import Cell, Styled, Table, left, right
from spsbench.summary_types import ArmRow, CategoryRow, RatioInterval


def results(arms: Sequence[ArmRow] | Sequence[CategoryRow], metric: str | None, naming: Naming) -> Table:
    """Quality, time per token and speedup of every arm, in the shape of the paper's Table 1.

    Quality has no column where no output was scored, and ``metric`` is therefore None.
    """
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

    return naming.table(columns, arms, cells)


def times(arms: Sequence[ArmRow], naming: Naming) -> Table:
    """Times alone, for the sequences that were measured under one of several conditions."""
    columns = [right("sequences"), right("ms/token"), left("speedup", note="95%", whole=True)]
    return naming.table(columns, arms, lambda arm: [str(arm["sequences"]), _time(arm), _speedup(arm)])


def acceptance(arms: Sequence[ArmRow], naming: Naming, *, rule: bool = False) -> Table:
    """The first measures of acceptance, and by which rule, of speculative arms.

    Args:
        arms: those that have acceptance.
        naming: of the arms.
        rule: whether there is a column for the verification rule.
    """
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
