"""What must stand beside times: whether other processes used the CPU, and the conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.report import judgement
from spsbench.report.naming import in_full
from spsbench.report.results import times
from spsbench.report.wording import escape
from spsbench.stats.conditions import distrust, untrusted_because
from spsbench.summary_types import Summary

_UNTOLD = "unknown"
_SHORT_HASH = 16


def untrusted(summary: Summary) -> list[str]:
    """One sentence where others took the CPU while the run measured."""
    return distrust(untrusted_because(summary))


def further_warnings(summary: Summary) -> list[str]:
    """The warnings without that of ``untrusted``, which stands at the top."""
    return [text for text in summary["warnings"] if text not in untrusted(summary)]


def doubts(summary: Summary) -> list[str]:
    """What must stand beside the numbers wherever they go: alarms, and times that are not to be trusted."""
    return [*judgement.alarms(summary), *untrusted(summary)]


def titles(summary: Summary) -> list[str]:
    """What sets each of several conditions apart, e.g. ``threads 1, backend torch``."""
    entries = summary.get("conditions") or []
    return [
        ", ".join(f"{name} {_shown(value)}" for name, value in entry["differ"].items()) for entry in entries
    ]


def sentence(summary: Summary) -> str:
    """Why the main table has no times; empty for a run of one condition."""
    count = len(summary.get("conditions") or [])
    if not count:
        return ""
    return f"Measured under {count} different conditions; times are shown under each and not pooled."


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The times of a run of several conditions, under each."""
    entries = summary.get("conditions") or []
    if not entries:
        return []
    lines = ["## Times by condition", "", sentence(summary)]
    for entry, title in zip(entries, titles(summary), strict=True):
        table = times(entry["rows"], in_full())
        lines += ["", f"### {escape(title)}", "", *table.as_markdown()]
    return lines


def token_hash(summary: Summary) -> str:
    """The first digits of the hash over all token ids, as ``--expect`` takes them; empty if there is none."""
    found = summary.get("token_sha256")
    return f"Hash of all token ids: {found[:_SHORT_HASH]}" if found else ""


def _shown(value: Any) -> str:
    if value is None or value == []:
        return _UNTOLD
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
