"""A run's tables as LaTeX, as papers print them: booktabs, an interval in small type after its estimate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spsbench.axes import label
from spsbench.report import conditions, facts, wording
from spsbench.report.measured import Measured
from spsbench.report.wording import NOTHING, printable
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
    lines += [*conditions.doubts(summary), conditions.sentence(summary)]
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

    caption = " ".join([_setup(measured), *map(escape, conditions.doubts(measured.summary)), _SPEEDUP_NOTE])
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
