"""The museum as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.report.tables import Table, left, right
from spsbench.report.wording import number

_CONTROLS = {"alarm": "ALARM"}


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row an exhibit, of ``Visited.facts``."""
    columns = [left("exhibit"), left("release"), left("report"), left("setting")]
    columns += [right("texts until the alarm"), right("log10 e"), left("control")]
    columns += [right("texts"), left("verdict"), right("leakage at most")]
    return Table(columns, [_row(row) for row in rows])


def _row(row: Mapping[str, Any]) -> list[str]:
    flawed, control = row["flawed"], row["control"]
    after = flawed["alarm_after"]
    return [
        row["name"],
        flawed["version"],
        row["reports"][0],
        f"K={flawed['k']}, {row['sampling']}",
        f"no alarm in {flawed['texts']}" if after is None else str(after),
        number(flawed["log10_e_value"], 1),
        control["version"] + ("" if control["k"] else ", without a draft"),
        str(control["texts"]),
        _CONTROLS.get(control["decision"], "no alarm"),
        "-" if control["bound"] is None else f"{control['bound']:.1%}",
    ]
