"""Joules per token, where the machine counted them; else one line that says why they are not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.records import Interval
from spsbench.report import wording
from spsbench.report.naming import Naming, in_full
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import ArmEnergy, Energy, Summary


def measured(summary: Summary) -> Energy | None:
    """The energy of a run in which some was counted."""
    found = summary.get("energy")
    return found if found is not None and found["arms"] else None


def table(arms: Sequence[ArmEnergy], naming: Naming) -> Table:
    """Joules per token of every arm, and over those of ArS."""
    columns = [
        left("J/token", note="95%", whole=True),
        left("of ArS", note="95%", whole=True),
        right("sequences"),
    ]
    return naming.table(columns, arms, _cells)


def _cells(arm: ArmEnergy) -> list[str]:
    return [_joules(arm), wording.speedup(arm["ratio"]), str(arm["sequences"])]


def _joules(arm: ArmEnergy) -> str:
    """Three digits or so: joules a token are below 1 on a CPU and above 100 for large models."""
    found = arm["joules_per_token"]
    if found["estimate"] >= 1 or found["low"] is None or found["high"] is None:
        return wording.interval(Interval(found["estimate"], found["low"], found["high"]))
    return f"{found['estimate']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def note(found: Energy) -> str:
    """What the joules hold, and how finely they were counted."""
    step, length = found["update_s"], found["mean_sequence_s"]
    fine = ""
    if step is not None and length is not None:
        fine = f" The counter moves every {1e3 * step:.2g} ms, and a sequence took {1e3 * length:.3g} ms."
    return (
        f"Energy by {found['source']}, around each sequence with its prefill: its counterpart among the "
        f"times is the end-to-end speedup. It includes what idles and what others of the machine draw.{fine}"
    )


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The report's section; none for a run from before energy was looked for."""
    found = summary.get("energy")
    if found is None:
        return []
    if not found["arms"]:
        return [f"Energy: not known ({escape(found['reason'] or 'it was not counted')})."]
    notes = escape(" ".join([note(found), *uncounted(summary)]))
    return ["## Energy", "", *table(found["arms"], in_full()).as_markdown(), "", notes]


def uncounted(summary: Summary) -> list[str]:
    """A sentence that names the arms of which no joules are known, where others have some."""
    found = summary.get("energy")
    known = {arm["arm"] for arm in found["arms"]} if found is not None else set()
    others = [row["arm"] for row in summary["rows"] if row["arm"] not in known]
    if not known or not others:
        return []
    return [f"Not counted: {', '.join(others)}; an external engine may compute on another device or machine."]
