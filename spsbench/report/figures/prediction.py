"""What the summary predicts, where it does; a summary without predictions is no fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.axes import place


def predicted(row: Mapping[str, Any], name: str) -> float | None:
    """The speedup that a formula (``leviathan`` or ``chen``) predicts for a row, or None."""
    value = (row.get("prediction") or {}).get(name)
    return None if value is None else float(value)


def loop_line(summary: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The line fitted to the loop's time against K for the series along K of a row, or None."""
    for found in (summary.get("prediction") or {}).get("samplings") or ():
        if place({"k": None, "method": "sps", **found}, "k") == place(row, "k"):
            line: dict[str, Any] | None = found["loop"]
            return line
    return None
