"""Numbers, names and sentences as every report writes them; Markdown that is safe for foreign text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spsbench.base.axes import Row
from spsbench.base.errors import printable as printable
from spsbench.base.records import Interval
from spsbench.stats.messages import full_name as full_name
from spsbench.store.summary_types import Estimate, LoopLine, LoopTime, RatioInterval, Summary

Run = Mapping[str, Any]
"""The record of a run, as run.json has it."""

SYNTHETIC = "Synthetic data, or a pair trained on it: these numbers say nothing about real text."

# An underscore within a word is not markup on GitHub and reads better bare.
_SPECIAL = re.compile(r"([\\`*\[\]|~$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def escape(text: object) -> str:
    """Write the text as it reads, on one line: no markup, HTML, link or table border comes out of it."""
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
"""More speculative arms than this are not notes one by one."""

BLEU = "bleu"
_PREFERRED_METRICS = ("rouge2", "pass@1", "exact_match")


def number(value: float | None, digits: int) -> str:
    """Write the number with fixed decimals, or a dash where there is none."""
    return NOTHING if value is None else f"{value:z.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Write three significant digits or so: 0.842, 7.52, 14.1, 231."""
    if value is None:
        return NOTHING
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def measure(name: str, row: Row, digits: int = 3) -> str:
    """A measure of acceptance, e.g. one of ``FIRST_SCREEN``."""
    return number(row["acceptance"][name] if row["acceptance"] else None, digits)


def phase_ms(loop: LoopTime | None, phase: str) -> float | None:
    """The milliseconds of a loop's phase, one of ``spsbench.stats.summary.PHASES``."""
    times: Mapping[str, Any] = loop or {}
    return times.get(f"{phase}_ms")


def dashed(show: Callable[[float], str], value: float | None) -> str:
    """A number as ``show`` has it, or a dash where there is none."""
    return NOTHING if value is None else show(value)


percent = partial(dashed, "{:.0%}".format)
signed = partial(dashed, "{:+.2f}".format)
times = partial(dashed, "{:.2f}x".format)


def mebibytes(size_bytes: float | None) -> str:
    return NOTHING if size_bytes is None else f"{size_bytes / 2**20:,.0f} MiB"


def brackets(interval: Row | None, show: Callable[[float], str] = "{:.2f}".format) -> str:
    """The ends of an interval in brackets, after a space; nothing where there are none."""
    if interval is None or interval["low"] is None:
        return ""
    return f" [{show(interval['low'])}, {show(interval['high'])}]"


def speedup(value: RatioInterval | None) -> str:
    """Return ``1.92x [1.85, 1.99]``; without brackets where there is no interval."""
    return NOTHING if value is None else f"{value['ratio']:.2f}x{brackets(value)}"


def share_of_optimum(row: Row) -> str:
    """``97.8% [97.1, 98.4]``, or a dash; an end that a few prompts leave open is ``>1000``."""
    found = row.get("share_of_optimum")
    ends = brackets(found, lambda share: f"{100 * share:.1f}" if share < 10.0 else ">1000")
    return NOTHING if found is None else f"{found['ratio']:.1%}{ends}"


def has_optimum(row: Row) -> bool:
    """Return whether a share of the optimum was measured that could have been another: of drafts without
    chance, as greedy ones are, every lossless rule accepts the same."""
    found = row.get("share_of_optimum")
    return found is not None and not (found["low"] is None and abs(found["ratio"] - 1.0) < 1e-6)


def loop_line(line: LoopLine) -> str:
    """``12 + 0.25 K ms``, fitted; of two K, through which a line always goes, what each took."""
    if len(line["ks"]) > 2:
        sign = "-" if line["slope_ms"] < 0 else "+"
        return f"{line['intercept_ms']:.3g} {sign} {abs(line['slope_ms']):.3g} K ms"
    return " and ".join(f"{line['intercept_ms'] + line['slope_ms'] * k:.3g} ms at K={k}" for k in line["ks"])


def nodes(row: Row) -> str:
    """Tokens that a loop of a tree drafted; a dash of chains."""
    return number(row.get("nodes_per_loop"), 1)


def estimate(value: Estimate | None, unit: str = "") -> str:
    """Return ``interval`` of an entry of the summary, or a dash."""
    return NOTHING if value is None else f"{value['estimate']:.2f}{unit}{brackets(value)}"


def interval(value: Interval, unit: str = "") -> str:
    """Write ``4.10 [3.95, 4.21]``, with a unit after the estimate; without brackets if there are no ends."""
    return f"{value.estimate:.2f}{unit}{brackets({'low': value.low, 'high': value.high})}"


def interval_percent(value: Interval) -> str:
    """Return ``85% [82%, 88%]`` of a share; without brackets where there are no ends."""
    return f"{value.estimate:.0%}{brackets({'low': value.low, 'high': value.high}, '{:.0%}'.format)}"


def counted(count: int, noun: str) -> str:
    """Return ``1 prompt``, ``2 prompts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def row_speedup(row: Row, name: str = "speedup") -> str:
    """The cell of the table, by the entry of that name: the baseline of a sampling reads ``1x``."""
    timed = row["sequences"] and row["ms_per_token"] is not None
    is_baseline = row["method"] == "ars" and row["baseline"] is None and timed
    return "1x" if is_baseline else speedup(row[name])


def headline_metric(summary: Summary) -> str | None:
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
    if name == BLEU:
        return "BLEU"
    return f"ROUGE-{name.removeprefix('rouge')}" if name.startswith("rouge") else name


def metric(name: str | None, value: float | None) -> str:
    """A share of solved problems as a percentage, BLEU in points, everything else as it is."""
    if name is not None and value is not None and name.startswith("pass@"):
        return f"{100 * value:.1f}%"
    return number(value, 2 if name == BLEU else 3)


def quality(name: str | None, row: Row) -> str:
    """An arm's figure by a metric, with its interval where the metric is one figure of the corpus."""
    shown = metric(name, row["metrics"].get(name) if name else None)
    return shown + brackets(metric_ends(name, row), lambda value: metric(name, value))


def metric_ends(name: str | None, row: Row) -> Mapping[str, float | None] | None:
    found: Mapping[str, float | None] | None = (row.get("metric_intervals") or {}).get(name or "")
    return found


def difference_digits(metric_name: str | None) -> int:
    """Decimals of a difference of two figures: BLEU goes from 0 to 100, the others from 0 to 1."""
    return 2 if metric_name == BLEU else 4


def models(summary: Summary) -> str | None:
    """The pair and target: ``Qwen3-8B (pair qwen3)``; alone where that names the target or is embedded."""
    pair, model = summary.get("pair"), summary.get("model")
    if not pair or model is None or model in pair or summary.get("synthetic"):
        return f"pair {printable(pair)}" if pair else None
    return f"{printable(model)} (pair {printable(pair)})"


def tags(of: Mapping[str, Any]) -> str:
    """What the user said of a run by ``--tag``: ``gpu=a, branch=main``; empty without any."""
    return printable(", ".join(f"{name}={text}" for name, text in (of.get("tags") or {}).items()))


def title(summary: Summary) -> str:
    """Return the task as it is labelled everywhere: synthetic data is always called so, and a law that is
    not the task's stands behind it."""
    name = printable(str(summary.get("task_label") or summary.get("task") or "run"))
    name += " (synthetic)" if summary.get("synthetic") and "synthetic" not in name else ""
    return ", ".join([name, *([printable(law)] if (law := summary.get("law")) else [])])
