"""report.md: verdict, table, figures, proof, why, details, caveats, and how to repeat it.

A report is a list of sections; each takes the summary and the run's own record and answers its
lines, or none where it has nothing to say. More sections can join without touching these.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spsbench.axes import label
from spsbench.report import (
    categories,
    conditions,
    energy,
    engines,
    facts,
    gallery,
    judgement,
    proof,
    sections_latency,
    sections_why,
    stopping,
    surfaces,
    verdict,
    wording,
    workers,
)
from spsbench.report.naming import in_full
from spsbench.report.results import acceptance, results
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import escape, fence
from spsbench.stats.acceptance import LEGEND, PER_POSITION
from spsbench.summary import COMM, PHASES
from spsbench.summary_types import ArmRow, Summary

Run = Mapping[str, Any]
Section = Callable[[Summary, Run], list[str]]

STANDING_CAVEATS = (
    "Speedup is the ratio of pooled decoding time per token, prefill apart; end to end counts prefill too.",
    "Equal metrics are no proof of equal distributions; `spsbench verify` tests the sampler.",
)
_ONE_DRAW = (
    "One process is one draw: memory layout, clocks and autotuning vary between processes, and the interval "
    "does not contain that."
)
ONE_PROCESS = f"The speedup's 95% interval is a jackknife over prompts, paired (Student's t). {_ONE_DRAW}"
STOPPED = f"The speedup's 95% interval is that of a confidence sequence over prompts, paired. {_ONE_DRAW}"
SEVERAL_PROCESSES = "The speedup's 95% interval is a jackknife over processes and over prompts (Student's t)."


def render(summary: Summary, run: Run) -> str:
    """The report as GitHub renders it."""
    blocks = [lines for section in SECTIONS if (lines := section(summary, run))]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _heading(summary: Summary, run: Run) -> list[str]:
    lines = [f"# {escape(wording.title(summary))}"]
    notes = [*conditions.untrusted(summary), *judgement.alarms(summary), *judgement.headline(summary)]
    lines += ["", *(f"**{escape(text)}**  " for text in notes)]
    for answer, beside in verdict.verdicts(summary):
        lines.append(f"**{escape(answer)}** {escape(beside)}".rstrip() + "  ")
    lines += [f"{escape(text)}  " for text in judgement.losslessness(summary)]
    if summary.get("synthetic"):
        lines += ["", wording.SYNTHETIC]
    return lines


def _results(summary: Summary, run: Run) -> list[str]:
    rows = summary["rows"]
    if not rows:
        return ["## Results", "", "Nothing was measured."]
    table = results(rows, wording.headline_metric(summary), in_full())
    notes = [text for text in (wording.extraction(summary), wording.left_out(summary)) if text]
    notes = [*stopping.sentences(summary), *notes, *wording.signatures(summary)]
    return ["## Results", "", *table.as_markdown(), *(line for text in notes for line in ("", escape(text)))]


def _details(summary: Summary, run: Run) -> list[str]:
    """Every metric, and where the time went."""
    parts = [part for part in (_quality(summary), _timing(summary), _loops(summary)) if part]
    return ["## Details", *(line for part in parts for line in ("", *part))] if parts else []


def _quality(summary: Summary) -> list[str]:
    rows = [row for row in summary["rows"] if row["metrics"]]
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    if len(names) < 2:
        return []
    columns = [right(wording.metric_title(name)) for name in names]

    def cells(row: ArmRow) -> list[str]:
        return [wording.quality(name, row) for name in names]

    return ["### All metrics", "", *in_full().table(columns, rows, cells).as_markdown()]


def _timing(summary: Summary) -> list[str]:
    columns = [
        *map(right, ("sequences", "failed", "tokens")),
        *map(right, ("first half", "second half", "prompts slower", "peak memory")),
    ]

    def cells(row: ArmRow) -> list[str]:
        return [
            *(str(row[name]) for name in ("sequences", "failed", "tokens")),
            *(wording.number(half, 2) for half in row["speedup_halves"] or (None, None)),
            wording.percent(row["share_slower"]),
            wording.mebibytes(row["peak_memory_bytes"]),
        ]

    rows = summary["rows"]
    return ["### Timing", "", *in_full().table(columns, rows, cells).as_markdown()] if rows else []


def _loops(summary: Summary) -> list[str]:
    rows = [row for row in summary["rows"] if row["loop_time"]]
    if not rows:
        return []
    split = any("comm_ms" in (row["loop_time"] or {}) for row in rows)
    phases = (*PHASES[:-1], COMM, PHASES[-1]) if split else PHASES
    columns = [*(right(f"{phase} ms") for phase in phases), left("target mode"), left("draft mode")]

    def cells(row: ArmRow) -> list[str]:
        return [
            *(wording.milliseconds(wording.phase_ms(row["loop_time"], phase)) for phase in phases),
            *(row[mode] or wording.NOTHING for mode in ("target_mode", "draft_mode")),
        ]

    return ["### Mean time of a loop", "", *in_full().table(columns, rows, cells).as_markdown()]


def _acceptance(summary: Summary, run: Run) -> list[str]:
    rows = [row for row in summary["rows"] if row["acceptance"]]
    if not rows:
        return []
    lines = ["## Acceptance", "", *acceptance(rows, in_full(), rule=True).as_markdown()]
    lines += ["", "### Every name", "", "Pooled over loops / mean over prompts.", ""]
    lines += _every_name(rows).as_markdown()
    legend = [f"* `{name}`: {escape(text)}" for name, text in LEGEND.items()]
    return [*lines, "", "### Legend", "", *legend]


def _every_name(rows: list[ArmRow]) -> Table:
    columns = [left("name"), *(right(f"{label(row)}, {row['sampling']}") for row in rows)]
    found: list[Mapping[str, Any]] = [row["acceptance"] for row in rows if row["acceptance"]]
    lines = [
        [name, *(f"{_value(name, own[name])} / {_value(name, own['macro'][name])}" for own in found)]
        for name in LEGEND
    ]
    return Table(columns, lines)


def _value(name: str, value: Any) -> str:
    if name in PER_POSITION:
        return " ".join(wording.number(part, 2) for part in value)
    return wording.number(value, 3)


def _caveats(summary: Summary, run: Run) -> list[str]:
    several = any(row.get("processes", 1) > 1 for row in summary["rows"])
    found = summary.get("stopping")
    interval = STOPPED if found and found["anytime"] else SEVERAL_PROCESSES if several else ONE_PROCESS
    lines = [*map(escape, conditions.further_warnings(summary)), *STANDING_CAVEATS, interval]
    return ["## Caveats", "", *(f"* {line}" for line in lines)]


def _environment(summary: Summary, run: Run) -> list[str]:
    facts = [(name, value) for name, value in _flat(run.get("environment") or {}) if name != "command"]
    facts += [("sha256 of all token ids", digest)] if (digest := summary.get("token_sha256")) else []
    table = Table([left("what"), left("value")], facts)
    return ["## Environment", "", *table.as_markdown()] if facts else []


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested mappings under dotted names; what is unknown is left out."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _flat(part, f"{name}.{index}")
    elif value is not None:
        yield name, f"{value:.6g}" if isinstance(value, float) else str(value)


def _reproduce(summary: Summary, run: Run) -> list[str]:
    command = run.get("command") or (run.get("environment") or {}).get("command")
    if not command:
        return []
    text = command if isinstance(command, str) else shlex.join(map(str, command))
    return ["## Reproduce", "", *fence(text)]


SECTIONS: tuple[Section, ...] = (
    _heading,
    facts.section,
    _results,
    surfaces.section,
    engines.section,
    categories.section,
    conditions.section,
    gallery.figures,
    proof.losslessness,
    proof.parity,
    verdict.section,
    *sections_why.SECTIONS,
    *sections_latency.SECTIONS,
    _acceptance,
    _details,
    *sections_latency.DETAILS,
    energy.section,
    _caveats,
    workers.section,
    _environment,
    _reproduce,
)
