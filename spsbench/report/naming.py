"""What tables call their arms: each by its whole name, or by what sets it apart from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spsbench.axes import EAGER, AnyRow, axes, label, shown_engine, unusual
from spsbench.axes import Row as Arm
from spsbench.report.tables import SCREEN_WIDTH, Cell, Column, Heading, Row, Table, left

_DRAFTING = ("drafter", "rule", "policy")
_GROUND = ("batch", "engine")
ROOM = SCREEN_WIDTH - 2
"""Columns for a table, with a space on either side."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The first cells of the rows about arms, and the groups that the rows are in.

    Attributes:
        columns: of the first cells.
        cells: the first cells of an arm's row.
        group: of an arm; where it changes, a new group of rows begins.
        titled: whether groups are shown with their names.
        common: what all arms have and none is called by; empty where names are whole.
    """

    columns: tuple[Column, ...]
    cells: Callable[[Arm], list[str]]
    group: Callable[[Arm], str]
    titled: bool = False
    common: str = ""

    def table(
        self, columns: Sequence[Column], arms: Sequence[AnyRow], cells: Callable[[AnyRow], Sequence[Cell]]
    ) -> Table:
        """A table with a row per arm.

        Args:
            columns: after those of the name.
            arms: what the rows are about.
            cells: of an arm, after those of its name.
        """
        rows: list[Row | Heading] = []
        previous: str | None = None
        for arm in arms:
            group = self.group(arm)
            if group != previous and (rows or self.titled):
                rows.append(Heading(group if self.titled else ""))
            previous = group
            rows.append([*self.cells(arm), *cells(arm)])
        return Table([*self.columns, *columns], rows, names=len(self.columns))


def in_full(*, sampling: bool = True) -> Naming:
    """Every arm by its label and, unless it is left out, its sampling."""

    def cells(arm: Arm) -> list[str]:
        return [label(arm), arm["sampling"]] if sampling else [label(arm)]

    columns = (left("arm"), left("sampling")) if sampling else (left("arm"),)
    return Naming(columns, cells, lambda arm: str(arm["sampling"]))


def apart(arms: Sequence[Arm], *, each: bool = False) -> Naming:
    """Groups of arms that differ in K alone, under what sets the groups apart.

    Args:
        arms: of the table.
        each: only where one K was measured, so that such groups would be single rows: call each row by
            its drafter, rule, policy and engine, and group by sampling.
    """
    differing = _differing(arms)
    above = [name for name in differing if name == "sampling" or not each]
    beside = [name for name in differing if name not in above]

    def cells(arm: Arm) -> list[str]:
        own = _said(arm, beside) if arm["method"] == "sps" else []
        if not own:
            return [_short(arm, keep_engine="engine" in beside)]
        return [", ".join([*own, *([] if arm.get("lossless", True) else ["lossy"])])]

    return Naming(
        (left("arm"),),
        cells,
        lambda arm: ", ".join(_said(arm, above)),
        titled=True,
        common=", ".join(_common(arms, differing, with_k=bool(beside))),
    )


def fitting(
    arms: Sequence[Arm], make: Callable[[Naming], Table], whole: Naming, room: int = ROOM
) -> tuple[Table, Naming]:
    """The table with whole names if it fits into ``room`` columns, else by what sets arms apart.

    Where that does not fit either, names are whole again: such a table is written row by row.
    """
    one_k = len({arm["k"] for arm in arms if arm["method"] == "sps"}) == 1
    for naming in (whole, *([apart(arms, each=True)] if one_k else []), apart(arms)):
        table = make(naming)
        if table.width() <= room:
            return table, naming
    return make(whole), whole


def _differing(arms: Sequence[Arm]) -> list[str]:
    """The axes, other than method and K, on which the arms are at more than one place."""
    drafting = [arm for arm in arms if arm["method"] == "sps"]
    asked = [
        ("sampling", arms),
        *((name, drafting) for name in _DRAFTING),
        *((name, arms) for name in _GROUND),
    ]
    return [name for name, own in asked if len({_place(arm)[name] for arm in own}) > 1]


def _place(arm: Arm) -> Arm:
    """The arm's axes, to be asked by a name that is not written out."""
    return axes(arm)


def _said(arm: Arm, names: Sequence[str]) -> list[str]:
    """The arm's places on these axes, as labels write them."""
    place = _place(arm)
    found = [(name, place[name]) for name in names if place[name] is not None]
    written = {"engine": lambda value: f"@{shown_engine(value)}", "batch": lambda value: f"B={value}"}
    return [written.get(name, str)(value) for name, value in found]


def _common(arms: Sequence[Arm], differing: Sequence[str], *, with_k: bool) -> list[str]:
    """What need not be said of each arm: the sampling, and what is unusual about all of them."""
    first = next((arm for arm in arms if arm["method"] == "sps"), arms[0])
    found = [str(first["sampling"])] if "sampling" not in differing else []
    found += [_short(first)] if with_k else []
    shared = {name: first.get(name) for name in _DRAFTING if name not in differing}
    found += unusual({**first, **dict.fromkeys(_DRAFTING), **shared})
    if "engine" not in differing and first["engine"] != EAGER:
        found.append(f"@{shown_engine(first['engine'])}")
    return found


def _short(arm: Arm, *, keep_engine: bool = False) -> str:
    """The label without drafter, rule and policy, e.g. ``SpS (K=4, lossy)``."""
    engine = arm["engine"] if keep_engine else EAGER
    return label({**arm, **dict.fromkeys(_DRAFTING), "engine": engine})
