"""Numbers, names and sentences as every report writes them; Markdown that is safe for foreign text."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from spsbench.axes import label

# An underscore within a word is no markup on GitHub and reads better bare.
_SPECIAL = re.compile(r"([\\`*\[\]|~$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def escape(text: object) -> str:
    """The text as it reads, on one line: no markup, HTML, link or table border comes out of it."""
    line = " ".join(printable(str(text)).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)


def fence(text: str) -> list[str]:
    """A code block that the text cannot end."""
    body = [printable(line).rstrip() for line in text.splitlines()]
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    marks = "`" * max(3, longest + 1)
    return [marks, *body, marks]


NOTHING = "-"
FIRST_SCREEN = ("mean_acceptance_length", "alpha_beta", "draft_acceptance_rate")
MANY = 4
"""More speculative arms than this are not told one by one."""

_EXTRACTIONS = {
    "fence": "code taken from the first Python fence that defines the function, else from the first fence.",
    "none": "every answer run as it is, behind its prompt.",
}
_PREFERRED_METRICS = ("rouge2", "pass@1", "exact_match")


def number(value: float | None, digits: int) -> str:
    """The number with fixed decimals, or a dash where there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Three significant digits or so: 0.842, 7.52, 14.1, 231."""
    if value is None:
        return NOTHING
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def percent(share: float | None) -> str:
    """A share as a whole percentage."""
    return NOTHING if share is None else f"{100 * share:.0f}%"


def mebibytes(size_bytes: float | None) -> str:
    """Memory in MiB."""
    return NOTHING if size_bytes is None else f"{size_bytes / 2**20:,.0f} MiB"


def speedup(value: dict[str, Any] | None) -> str:
    """``1.92x [1.85, 1.99]``; without brackets where there is no interval."""
    if value is None:
        return NOTHING
    interval = "" if value["low"] is None else f" [{value['low']:.2f}, {value['high']:.2f}]"
    return f"{value['ratio']:.2f}x{interval}"


def row_speedup(row: dict[str, Any]) -> str:
    """The cell of the table: the baseline of a sampling reads ``1x``."""
    timed = row["sequences"] and row["ms_per_token"] is not None
    is_baseline = row["method"] == "ars" and row["baseline"] is None and timed
    return "1x" if is_baseline else speedup(row["speedup"])


def headline_metric(summary: dict[str, Any]) -> str | None:
    """Name of the metric that the table shows: the task's own choice, else the usual one."""
    names = list(dict.fromkeys(name for row in summary["rows"] for name in row["metrics"]))
    for name in (summary.get("headline_metric"), *_PREFERRED_METRICS):
        if name in names:
            return str(name)
    return names[0] if names else None


def metric_title(name: str | None) -> str:
    """``rouge2`` as papers print it: ``ROUGE-2``."""
    if name is None:
        return "metric"
    return f"ROUGE-{name.removeprefix('rouge')}" if name.startswith("rouge") else name


def metric(name: str | None, value: float | None) -> str:
    """A share of solved problems as a percentage, everything else as it is."""
    if name is not None and value is not None and name.startswith("pass@"):
        return f"{100 * value:.1f}%"
    return number(value, 3)


def extraction(summary: dict[str, Any]) -> str | None:
    """What of an answer was run; None where no code is, or the run is too old to tell."""
    said = _EXTRACTIONS.get(summary.get("extract") or "")
    shown = headline_metric(summary)
    return f"{metric_title(shown)}: {said}" if said and shown else None


def sentences(rows: list[dict[str, Any]]) -> list[str]:
    """One plain sentence per speculative arm; where they would be many, the fastest per sampling."""
    samplings = list(dict.fromkeys(row["sampling"] for row in rows))
    # A lossy rule's speed is bought with another distribution: it is in the table, not in a headline.
    arms = [row for row in rows if row["method"] == "sps" and row["speedup"] and row.get("lossless", True)]
    if len(arms) > MANY:
        groups = [[row for row in arms if row["sampling"] == name] for name in samplings]
        arms = [max(group, key=lambda row: row["speedup"]["ratio"]) for group in groups if group]
    return [_sentence(row, rows, len(samplings) > 1) for row in arms]


def _sentence(row: dict[str, Any], rows: list[dict[str, Any]], several: bool) -> str:
    baseline = next(label(other) for other in rows if other["arm"] == row["baseline"])
    under = f" under {row['sampling']} sampling" if several else ""
    text = f"{label(row)} ran {speedup(row['speedup'])} as fast as {baseline}{under}"
    low, high = row["speedup"]["low"], row["speedup"]["high"]
    if low is not None and low <= 1.0 <= high:
        return f"{text}: no clear difference."
    return f"{text}: slower." if row["speedup"]["ratio"] < 1.0 else f"{text}."


def title(summary: dict[str, Any]) -> str:
    """The task as it is labelled everywhere; synthetic data is always called so."""
    name = printable(str(summary.get("task_label") or summary.get("task") or "run"))
    return f"{name} (synthetic)" if summary.get("synthetic") and "synthetic" not in name else name


def printable(text: str) -> str:
    """The text without control and formatting characters, which could drive a terminal."""
    return "".join(" " if unicodedata.category(char).startswith("C") else char for char in text)
