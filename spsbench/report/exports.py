"""A run's tables for others: LaTeX as papers print it, and tidy CSV, one number a cell."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from spsbench.base.axes import label
from spsbench.report import facts, wording
from spsbench.report.judgement import judged_arms
from spsbench.report.measured import Measured
from spsbench.report.messages.runs import LATEX_ACCEPTANCE_NOTE, LATEX_SPEEDUP_NOTE, LATEX_SYNTHETIC
from spsbench.report.results import UNTIMED, arm_columns
from spsbench.report.tables import Column, plain, right
from spsbench.report.wording import NOTHING, measure, printable
from spsbench.stats.conditions import contention_reasons, is_trusted, times_label
from spsbench.store.summary_types import ArmRow

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}

_ACCEPTANCE = (
    right("tau", partial(measure, "mean_acceptance_length", digits=2), latex=r"$\tau$"),
    right("Acceptance rate", partial(measure, "draft_acceptance_rate")),
    right("alpha", partial(measure, "alpha_beta"), latex=r"$\alpha$"),
    right("r'", partial(measure, "r_prime"), latex="$r'$"),
)


def to_latex(runs: Sequence[Measured]) -> str:
    """Return two tables a run: results, in the shape of Table 1 of Chen et al. 2023, and acceptance.

    They need ``\\usepackage{booktabs}``. Comments say which run and version they come from, whether the
    data is synthetic, and CPU contention in the times.
    """
    return "\n".join(_tables_of_run(measured) for measured in runs)


def escape(text: object) -> str:
    """Return the text as LaTeX prints it, on one line."""
    line = " ".join(printable(str(text)).split())
    return "".join(_SPECIAL.get(character, character) for character in line)


def _tables_of_run(measured: Measured) -> str:
    """With the comments above them."""
    summary, run = measured.summary, measured.run
    rows = summary["rows"]
    accepted = [row for row in rows if row["acceptance"]]
    results = arm_columns(rows, wording.headline_metric(summary))
    setup, doubts = _setup(measured), map(escape, facts.doubts(summary))
    comments = [f"Run {measured.name}: {wording.title(summary)}", "Needs \\usepackage{booktabs}."]
    comments += [f"{name}: {value}" for name, value in facts.facts(summary, run)]
    if summary.get("synthetic"):
        comments.append(LATEX_SYNTHETIC)
    comments += filter(None, [*facts.doubts(summary), facts.conditions_sentence(summary)])
    tables = [
        *_table_float(measured, "results", results, rows, " ".join([setup, *doubts, LATEX_SPEEDUP_NOTE])),
        *_table_float(measured, "acceptance", _ACCEPTANCE, accepted, f"{setup} {LATEX_ACCEPTANCE_NOTE}"),
    ]
    head = "\n".join(f"% {' '.join(printable(line).split())}" for line in comments)
    return "\n\n".join([head, *tables]) + "\n"


def _table_float(
    measured: Measured, kind: str, columns: Sequence[Column], rows: Sequence[ArmRow], caption: str
) -> list[str]:
    """With a rule between its samplings; none without rows."""
    samplings = list(dict.fromkeys(row["sampling"] for row in rows))
    name = re.sub("[^a-z0-9]+", "-", measured.name.lower()).strip("-") or "run"
    groups = []
    for sampling in samplings:
        lines = []
        for row in rows:
            if row["sampling"] == sampling:  # of a single one the caption says it
                arm = escape(wording.full_name(row) if len(samplings) > 1 else label(row))
                cells = [_number(plain(column.cell(row))) for column in columns]
                lines.append(" & ".join([re.sub(r"\bK=(\d+)", r"$K=\1$", arm), *cells]) + r" \\")
        groups.append("\n".join(lines))
    head = " & ".join(["Sampling method", *(column.latex or escape(column.title) for column in columns)])
    align = "".join("r" if column.numeric else "l" for column in columns)
    lines = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{name}-{kind}}}",
        rf"\begin{{tabular}}{{@{{}}l{align}@{{}}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        "\n\\midrule\n".join(groups),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return ["\n".join(lines)] if rows else []


def _number(text: str) -> str:
    """``1.94x [1.85, 2.08]``: a multiplication sign, the interval in small type, a dash where nothing is."""
    if text in (NOTHING, *UNTIMED):
        return "--"
    estimate, _, ends = escape(text).partition(" [")
    estimate = re.sub(r"(?<=\d)x$", r"$\\times$", estimate)
    return f"{estimate} {{\\scriptsize [{ends}}}" if ends else estimate


def _setup(measured: Measured) -> str:
    """``xsum, 40 prompts. Target a, draft b, nucleus (T=1, top-p 0.8), float32, cpu (EPYC), 2 threads.``"""
    known = dict(facts.facts(measured.summary, measured.run))
    prompts = wording.counted(facts.prompts(measured.summary), "prompt")
    what = f"{wording.title(measured.summary)}, {prompts}."
    parts = [f"{role.lower()} {known[role]}" for role in ("Target", "Draft", "Pair") if role in known]
    parts += [known[name] for name in ("Sampling", "dtype", "Device") if name in known]
    parts += [f"{known['Threads']} threads"] if "Threads" in known else []
    settings = ", ".join(parts)
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

_RATIOS = ("speedup", "end_to_end_speedup", "own_speedup", "share_of_optimum")
_AXES = ("arm", "method", "drafter", "rule", "policy", "engine", "batch", "k", "sampling")


def to_csv(runs: Sequence[Measured]) -> str:
    """Return one line per run and arm, after a header; a missing value is an empty cell.

    Columns that only some runs have are empty for the others. ``docs/report.md`` describes every column.
    """
    rows = [
        {_inert(name): _inert(value) for name, value in line.items()}
        for measured in runs
        for line in lines(measured)
    ]
    columns = list(dict.fromkeys(column for line in rows for column in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _inert(cell: Any) -> Any:
    """Without control characters, so that no spreadsheet takes a cell's text for a formula."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def lines(measured: Measured) -> list[Line]:
    """Return one line per arm: the run's settings, the arm's axes, then every entry of its summary row."""
    summary, run = measured.summary, measured.run
    data, setting = summary.get("data"), facts.value
    settings = {
        "run": measured.name,
        **{f"tag_{name}": text for name, text in (run.get("tags") or {}).items()},
        "task": summary.get("task_label"),
        "synthetic": bool(summary.get("synthetic")),
        "data": data.get("source") if isinstance(data, Mapping) else data,
        "target": facts.model(run, "target"),
        "draft": facts.model(run, "draft"),
        "device": setting(run, "identity", "device"),
        "device_name": facts.device_name(run),
        "dtype": facts.dtype(run),
        "threads": setting(run, "models", "threads"),
        **{name: setting(run, "identity", name) for name in ("max_new_tokens", "fixed_length", "seed")},
        "created_utc": run.get("created_utc"),
        "spsbench": setting(run, "environment", "spsbench"),
    }
    params = {arm.get("sampling"): arm.get("params") or {} for arm in run.get("arms") or ()}
    judged = {arm["arm"]: arm["verdict"] for arm in judged_arms(summary)}
    times = times_label(summary)
    untrusted = "" if is_trusted(summary) else "; ".join(contention_reasons(summary))
    arm_lines = []
    for row in summary["rows"]:
        axes: Mapping[str, Any] = row
        line = (
            settings | {name: axes.get(name) for name in _AXES} | _sampling(params.get(row["sampling"]) or {})
        )
        line |= {"losslessness": judged.get(row["arm"]), "untrusted": untrusted, "times": times}
        for name, value in row.items():
            line |= {} if name in _AXES else dict(_cells(name, value))
        arm_lines.append(line)
    return arm_lines


def _sampling(params: Mapping[str, Any]) -> Line:
    """``temperature`` is 0 for greedy decoding, as the field writes it."""
    if params.get("greedy"):
        return {"temperature": 0.0, "top_k": None, "top_p": None}
    return {name: params.get(name) for name in ("temperature", "top_k", "top_p")}


def _cells(name: str, value: Any) -> Iterator[tuple[str, Cell]]:
    """Of one entry, nested ones under dotted names."""
    if name in _RATIOS or (isinstance(value, Mapping) and "low" in value):
        ends = value or {}
        yield from [(name, ends.get("ratio"))] if name in _RATIOS else []
        yield from ((f"{name}_{end}", ends.get(end)) for end in ("low", "high"))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _cells(_PREFIXES.get(name, f"{name}_") + key, part)
    elif name == "speedup_halves":
        yield from zip(("speedup_first_half", "speedup_second_half"), value or (None, None), strict=True)
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}_{place}", part) for place, part in enumerate(value, 1))
    elif name not in _PREFIXES:  # what is nested and missing has no columns of its own
        yield name, value
