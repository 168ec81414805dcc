"""A run's tables for others: LaTeX as papers print it, and tidy CSV, one number a cell."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.axes import label
from spsbench.report import facts, wording
from spsbench.report.measured import Measured
from spsbench.report.wording import NOTHING, printable
from spsbench.stats.conditions import untrusted_because
from spsbench.summary_types import Acceptance, ArmRow, RatioInterval

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}

_SPEEDUP_NOTE = (
    r"Speedup: time per token of ArS over that of the arm, decoding alone, in brackets its 95\% interval; "
    "end to end: with prefill."
)
_ACCEPTANCE_NOTE = (
    r"$\tau$: mean acceptance length, accepted tokens + 1 per loop. Acceptance rate: accepted over drafted "
    r"tokens. $\alpha$: mean of $\sum_x \min(p(x), q(x))$ over tested positions. "
    r"$r'$: (accepted + 1) / (K + 1)."
)


@dataclass(frozen=True, slots=True)
class Tabular:
    """One table float.

    Attributes:
        kind: of the table, in its label: ``results``.
    """

    kind: str
    caption: str
    align: str
    head: Sequence[str]
    groups: Sequence[Sequence[Sequence[str]]]


def to_latex(runs: Sequence[Measured]) -> str:
    """Two tables a run: results, in the shape of Table 1 of Chen et al. 2023, and acceptance.

    They need ``\\usepackage{booktabs}``. Comments say which run and version they come from, whether the
    data is synthetic, and whether the times are to be trusted.
    """
    return "\n".join(_run(measured) for measured in runs)


def escape(text: object) -> str:
    """The text as LaTeX prints it, on one line."""
    line = " ".join(printable(str(text)).split())
    return "".join(_SPECIAL.get(character, character) for character in line)


def _run(measured: Measured) -> str:
    tables = [_results(measured), _acceptance(measured)]
    shown = [_table(measured.name, table) for table in tables if table.groups]
    return "\n\n".join(["\n".join(_comments(measured)), *shown]) + "\n"


def _comments(measured: Measured) -> list[str]:
    summary, run = measured.summary, measured.run
    lines = [f"Run {measured.name}: {wording.title(summary)}", "Needs \\usepackage{booktabs}."]
    lines += [f"{name}: {value}" for name, value in facts.facts(summary, run)]
    if summary.get("synthetic"):
        lines.append("SYNTHETIC data, or a pair trained on it: these numbers say nothing about real text.")
    lines += [*facts.doubts(summary), facts.conditions_sentence(summary)]
    return [f"% {' '.join(printable(line).split())}" for line in lines if line]


def _table(run: str, table: Tabular) -> str:
    name = re.sub("[^a-z0-9]+", "-", run.lower()).strip("-") or "run"
    body = "\n\\midrule\n".join("\n".join(map(_row, group)) for group in table.groups)
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering\small",
            rf"\caption{{{table.caption}}}",
            rf"\label{{tab:{name}-{table.kind}}}",
            rf"\begin{{tabular}}{{@{{}}{table.align}@{{}}}}",
            r"\toprule",
            _row(table.head),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _results(measured: Measured) -> Tabular:
    metric = wording.headline_metric(measured.summary)
    rows = measured.summary["rows"]
    scored, several = metric is not None, _several_samplings(rows)
    head = ["Sampling method", *([escape(wording.metric_title(metric))] if scored else [])]
    head += ["ms/token", "Speedup", "End to end", "Tokens/loop"]

    def cells(row: ArmRow) -> list[str]:
        return [
            _name(row, several),
            *([_number(wording.quality(metric, row))] if scored else []),
            _number(wording.milliseconds(row["ms_per_token"])),
            _speedup(row, row["speedup"]),
            _speedup(row, row["end_to_end_speedup"]),
            _number(wording.number(row["tokens_per_loop"], 2)),
        ]

    caption = " ".join([_setup(measured), *map(escape, facts.doubts(measured.summary)), _SPEEDUP_NOTE])
    return Tabular("results", caption, f"l{'r' * scored}rllr", head, _groups(rows, cells))


def _acceptance(measured: Measured) -> Tabular:
    rows = [row for row in measured.summary["rows"] if row["acceptance"]]
    several = _several_samplings(rows)
    head = ["Sampling method", r"$\tau$", "Acceptance rate", r"$\alpha$", "$r'$"]

    def cells(row: ArmRow) -> list[str]:
        return [_name(row, several), *(_acceptance_cells(found) if (found := row["acceptance"]) else ())]

    caption = f"{_setup(measured)} {_ACCEPTANCE_NOTE}"
    return Tabular("acceptance", caption, "lrrrr", head, _groups(rows, cells))


def _acceptance_cells(found: Acceptance) -> list[str]:
    values = [
        (found["mean_acceptance_length"], 2),
        (found["draft_acceptance_rate"], 3),
        (found["alpha_beta"], 3),
        (found["r_prime"], 3),
    ]
    return [_number(wording.number(value, digits)) for value, digits in values]


def _groups(rows: Sequence[ArmRow], cells: Callable[[ArmRow], list[str]]) -> list[list[list[str]]]:
    """The rows of each sampling together."""
    samplings = dict.fromkeys(row["sampling"] for row in rows)
    return [[cells(row) for row in rows if row["sampling"] == name] for name in samplings]


def _several_samplings(rows: Sequence[ArmRow]) -> bool:
    return len({row["sampling"] for row in rows}) > 1


def _name(row: ArmRow, with_sampling: bool) -> str:
    """The arm; its sampling where the table has several, else the caption says it."""
    name = escape(f"{label(row)}, {row['sampling']}" if with_sampling else label(row))
    return re.sub(r"\bK=(\d+)", r"$K=\1$", name)


def _speedup(row: ArmRow, found: RatioInterval | None) -> str:
    if found is None:
        return _number("1x" if wording.row_speedup(row) == "1x" else NOTHING)
    return _number(wording.speedup(found))


def _number(text: str) -> str:
    """``1.94x [1.85, 2.08]``: a multiplication sign, the interval in small type, a dash where nothing is."""
    if text == NOTHING:
        return "--"
    estimate, _, ends = escape(text).partition(" [")
    estimate = re.sub(r"(?<=\d)x$", r"$\\times$", estimate)
    return f"{estimate} {{\\scriptsize [{ends}}}" if ends else estimate


def _setup(measured: Measured) -> str:
    """``xsum, 40 prompts. Target a, draft b, nucleus (T=1, top-p 0.8), float32, cpu (EPYC), 2 threads.``"""
    known = dict(facts.facts(measured.summary, measured.run))
    what = f"{wording.title(measured.summary)}, {known['Prompts']} prompts."
    models = [f"{role.lower()} {known[role]}" for role in ("Target", "Draft", "Pair") if role in known]
    machine = [known[name] for name in ("Sampling", "dtype", "Device") if name in known]
    threads = [f"{known['Threads']} threads"] if "Threads" in known else []
    settings = ", ".join([*models, *machine, *threads])
    return escape(f"{what} {settings[:1].upper()}{settings[1:]}." if settings else what)


Cell = str | int | float | bool | None
Line = dict[str, Cell]

_PREFIXES = {
    "acceptance": "",
    "loop_time": "",
    "macro": "macro_",
    "metrics": "metric_",
    "metric_intervals": "metric_",
    "prediction": "predicted_",
}
"""What the columns of a nested entry begin with, where that is not the entry's own name."""

_RATIOS = ("speedup", "end_to_end_speedup", "own_speedup")
_HALVES, _HALF_NAMES = "speedup_halves", ("speedup_first_half", "speedup_second_half")


def to_csv(runs: Sequence[Measured]) -> str:
    """One line per run and arm, a header first; a value that does not exist is an empty cell.

    Columns that only some runs have are empty for the others. ``docs/report.md`` describes every column.
    """
    found = [
        {_inert(name): _inert(value) for name, value in line.items()}
        for measured in runs
        for line in lines(measured)
    ]
    columns = list(dict.fromkeys(column for line in found for column in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return file.getvalue()


def _inert(cell: Any) -> Any:
    """A text without control characters that a spreadsheet takes for no formula."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def lines(measured: Measured) -> list[Line]:
    """One line per arm: the run's settings, the arm's axes, then what was measured."""
    shared, arms = _settings(measured), measured.run.get("arms") or ()
    params = {arm.get("sampling"): arm.get("params") or {} for arm in arms}
    judged = {
        arm["arm"]: arm["verdict"] for arm in (measured.summary["losslessness"] or {"arms": []})["arms"]
    }
    untrusted = "; ".join(untrusted_because(measured.summary))
    return [
        {
            **shared,
            **_axes(row),
            **_sampling(params.get(row["sampling"]) or {}),
            "losslessness": judged.get(row["arm"]),
            "untrusted": untrusted,
            **dict(_numbers(row)),
        }
        for row in measured.summary["rows"]
    ]


_AXES = ("arm", "method", "drafter", "rule", "policy", "engine", "batch", "k", "sampling")


def _settings(measured: Measured) -> Line:
    summary, run = measured.summary, measured.run
    data = summary.get("data")
    return {
        "run": measured.name,
        "task": summary.get("task_label"),
        "synthetic": bool(summary.get("synthetic")),
        "data": data.get("source") if isinstance(data, Mapping) else data,
        "target": facts.model(run, "target"),
        "draft": facts.model(run, "draft"),
        "device": facts.value(run, "identity", "device"),
        "device_name": facts.device_name(run),
        "dtype": facts.dtype(run),
        "threads": facts.value(run, "models", "threads"),
        "max_new_tokens": facts.value(run, "identity", "max_new_tokens"),
        "fixed_length": facts.value(run, "identity", "fixed_length"),
        "seed": facts.value(run, "identity", "seed"),
        "created_utc": run.get("created_utc"),
        "spsbench": facts.value(run, "environment", "spsbench"),
    }


def _axes(row: ArmRow) -> Line:
    known: Mapping[str, Any] = row
    return {name: known.get(name) for name in _AXES}


def _sampling(params: Mapping[str, Any]) -> Line:
    """``temperature`` is 0 for greedy decoding, as the field writes it."""
    greedy = bool(params.get("greedy"))
    return {
        "temperature": 0.0 if greedy else params.get("temperature"),
        "top_k": None if greedy else params.get("top_k"),
        "top_p": None if greedy else params.get("top_p"),
    }


def _numbers(row: ArmRow) -> Iterator[tuple[str, Cell]]:
    for name, value in row.items():
        if name not in _AXES:
            yield from _cells(name, value)


def _cells(name: str, value: Any) -> Iterator[tuple[str, Cell]]:
    """An entry of the summary as columns of one value each."""
    if name in _RATIOS or (isinstance(value, Mapping) and "low" in value):
        yield from _interval(name, value or {})
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _cells(_PREFIXES.get(name, f"{name}_") + key, part)
    elif name == _HALVES:
        yield from zip(_HALF_NAMES, value or (None, None), strict=True)
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}_{place}", part) for place, part in enumerate(value, 1))
    elif name not in _PREFIXES:  # what is nested and missing has no columns of its own
        yield name, value


def _interval(name: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    if name in _RATIOS:
        yield name, value.get("ratio")
    yield f"{name}_low", value.get("low")
    yield f"{name}_high", value.get("high")
