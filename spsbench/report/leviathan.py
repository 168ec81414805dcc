"""Tables 1 to 3 of Leviathan et al. 2022 from our own runs, beside the figures that the paper prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from rich.console import Group
from rich.text import Text

from spsbench.law import theory
from spsbench.predict.factors import residual_cause, residual_factors
from spsbench.records import Interval
from spsbench.report import facts, judgement, wording
from spsbench.report.tables import Heading, Row, Table, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import ArmFactors, ArmPrediction, Estimate, Residual, Summary

if TYPE_CHECKING:
    from rich.console import RenderableType


class Expected(NamedTuple):
    """A row of Table 1, for c = c^ = 0; K is the paper's gamma."""

    alpha: float
    k: int
    operations: float
    speed: float


class Walltime(NamedTuple):
    """A row of Table 2: T5-XXL with a smaller T5 as its draft on a TPU-v4; K is the paper's gamma."""

    task: str
    draft: str
    temperature: int
    k: int
    alpha: float
    speed: float


class Alpha(NamedTuple):
    """A row of Table 3 whose target is T5-XXL."""

    task: str
    draft: str
    temperature: int
    alpha: float


TABLE_1 = (
    Expected(0.6, 2, 1.53, 1.96),
    Expected(0.7, 3, 1.58, 2.53),
    Expected(0.8, 2, 1.23, 2.44),
    Expected(0.8, 5, 1.63, 3.69),
    Expected(0.9, 2, 1.11, 2.71),
    Expected(0.9, 10, 1.60, 6.86),
)

TABLE_2 = (
    Walltime("ende", "small", 0, 7, 0.75, 3.4),
    Walltime("ende", "base", 0, 7, 0.80, 2.8),
    Walltime("ende", "large", 0, 7, 0.82, 1.7),
    Walltime("ende", "small", 1, 7, 0.62, 2.6),
    Walltime("ende", "base", 1, 5, 0.68, 2.4),
    Walltime("ende", "large", 1, 3, 0.71, 1.4),
    Walltime("cnndm", "small", 0, 5, 0.65, 3.1),
    Walltime("cnndm", "base", 0, 5, 0.73, 3.0),
    Walltime("cnndm", "large", 0, 3, 0.74, 2.2),
    Walltime("cnndm", "small", 1, 5, 0.53, 2.3),
    Walltime("cnndm", "base", 1, 3, 0.55, 2.2),
    Walltime("cnndm", "large", 1, 3, 0.56, 1.7),
)

TABLE_3 = (
    Alpha("ende", "unigram", 0, 0.08),
    Alpha("ende", "bigram", 0, 0.20),
    Alpha("ende", "unigram", 1, 0.07),
    Alpha("ende", "bigram", 1, 0.19),
    Alpha("cnndm", "unigram", 0, 0.13),
    Alpha("cnndm", "bigram", 0, 0.23),
    Alpha("cnndm", "unigram", 1, 0.08),
    Alpha("cnndm", "bigram", 1, 0.16),
    *(Alpha(row.task, row.draft, row.temperature, row.alpha) for row in TABLE_2),
)


def printed_alpha(task: str, draft: str, temperature: int) -> float | None:
    """The paper's alpha in Table 3 under these names, if it has one."""
    return next((row.alpha for row in TABLE_3 if row[:3] == (task, draft, temperature)), None)


REHEARSAL = "rehearsal"
"""A ``c_source``."""


class TheoryRow(TypedDict):
    """A row of Table 1: what the formulae give, and what the paper prints."""

    alpha: float
    k: int
    operations: float
    speed: float
    paper: dict[str, float]


class PrintedWalltime(TypedDict):
    """The paper's row of Table 2 under the same names; ``expected_tokens`` follow from its alpha and K."""

    k: int
    alpha: float
    speed: float
    expected_tokens: float


class WalltimeRow(TypedDict):
    """A row of Table 2.

    ``k`` was chosen by theory; all else is of the run, but c where ``c_source`` is ``rehearsal``; it is else
    as ``predict.costs.draft_over_target`` has it. ``predicted`` is the walltime factor at ``alpha`` and
    ``c``, ``residual`` is measured - predicted and ``cause`` the factor that does most for it.
    """

    task: str
    draft: str
    temperature: int
    part: str
    k: int
    alpha: Estimate | None
    c: float | None
    c_source: str
    tokens_per_loop: Estimate | None
    expected_tokens: float | None
    speedup: Estimate | None
    predicted: float | None
    residual: float | None
    residual_factors: list[Residual]
    cause: Residual | None
    operations: float | None
    paper: PrintedWalltime | None


class AlphaRow(TypedDict):
    """A row of Table 3: a draft's alpha over the target's text; ``positions`` is how many tokens that has."""

    task: str
    draft: str
    temperature: int
    alpha: Estimate
    positions: int
    paper: float | None


@dataclass(frozen=True, slots=True)
class WalltimeRun:
    """What a row of Table 2 is made from.

    Attributes:
        alpha: of its ArS text, see ``alpha_leviathan_interval``.
        tokens_per_loop: of its SpS arm, see ``mean_length``.
    """

    task: str
    draft: str
    temperature: int
    part: str
    summary: Summary
    alpha: Interval | None
    tokens_per_loop: Interval | None
    rehearsed_c: float


def table1() -> list[TheoryRow]:
    """The paper's pairs of alpha and K with c = c^ = 0."""
    return [
        {
            "alpha": row.alpha,
            "k": row.k,
            "operations": theory.operations_factor(row.alpha, 0.0, row.k),
            "speed": theory.walltime_factor(row.alpha, 0.0, row.k),
            "paper": {"operations": row.operations, "speed": row.speed},
        }
        for row in TABLE_1
    ]


def walltime_row(measured: WalltimeRun) -> WalltimeRow:
    """One row of Table 2 from its run."""
    summary = measured.summary
    prediction, why = summary.get("prediction"), summary.get("why")
    arm = _with_c(prediction["arms"][0], measured.rehearsed_c) if prediction else None
    factors: ArmFactors | None = why[0] if why else None
    causes = residual_factors(arm, factors) if arm and factors else []
    residual = arm["residual"] if arm else None
    row = next(row for row in summary["rows"] if row["method"] == "sps")
    found = row["speedup"]
    return {
        "task": measured.task,
        "draft": measured.draft,
        "temperature": measured.temperature,
        "part": measured.part,
        "k": row["k"],
        "alpha": _estimate(measured.alpha),
        "c": arm["c"] if arm else None,
        "c_source": arm["c_source"] if arm else "not measured",
        "tokens_per_loop": _estimate(measured.tokens_per_loop),
        "expected_tokens": arm["tokens_per_loop_predicted"] if arm else None,
        "speedup": _estimate(Interval(found["ratio"], found["low"], found["high"]) if found else None),
        "predicted": arm["predicted"] if arm else None,
        "residual": residual,
        "residual_factors": causes,
        "cause": residual_cause(residual, causes),
        "operations": arm["operations_factor"] if arm else None,
        "paper": _published(measured.task, measured.draft, measured.temperature),
    }


def _with_c(arm: ArmPrediction, rehearsed: float) -> ArmPrediction:
    """The prediction with the rehearsal's c where the run gives none: off a CPU phases are not timed."""
    if arm["c"] is not None:
        return arm
    alpha, measured = arm["alpha"], arm["measured"]
    predicted = None if alpha is None else theory.walltime_factor(alpha, rehearsed, arm["k"])
    residual = None if measured is None or predicted is None else measured - predicted
    return {**arm, "c": rehearsed, "c_source": REHEARSAL, "predicted": predicted, "residual": residual}


def _published(task: str, draft: str, temperature: int) -> PrintedWalltime | None:
    row = next((row for row in TABLE_2 if row[:3] == (task, draft, temperature)), None)
    if row is None:
        return None
    expected = theory.expected_tokens(row.alpha, row.k)
    return {"k": row.k, "alpha": row.alpha, "speed": row.speed, "expected_tokens": expected}


def _estimate(found: Interval | None) -> Estimate | None:
    """An interval as it stands in JSON."""
    return None if found is None else {"estimate": found.estimate, "low": found.low, "high": found.high}


def gather(
    rows: Sequence[WalltimeRow],
    alphas: Sequence[AlphaRow],
    summaries: Mapping[str, Summary],
    titles: Mapping[str, str],
    pair: str,
) -> dict[str, Any]:
    """What the page shows."""
    return {
        "of": "leviathan",
        "pair": pair,
        "synthetic": any(bool(part.get("synthetic")) for part in summaries.values()),
        "complete": all(part["complete"] for part in summaries.values()),
        "table1": table1(),
        "table2": list(rows),
        "table3": list(alphas),
        "parts": [_part(name, titles[name], part) for name, part in summaries.items()],
    }


def _part(name: str, title: str, part: Summary) -> dict[str, Any]:
    notes = [*facts.doubts(part), *judgement.losslessness(part), *facts.further_warnings(part)]
    prompts = max((row["prompts"] for row in part["rows"]), default=0)
    label = part["task_label"]
    return {"name": name, "title": title, "task": label, "prompts": prompts, "notes": notes}


_NOTE_1 = (
    "From the formulae alone, with c = c^ = 0: operations (1 - alpha)(K + 1) / (1 - alpha^(K+1)), speed "
    "(1 - alpha^(K+1)) / (1 - alpha). K is the paper's gamma."
)
_NOTE_2 = (
    "K (the paper's gamma) is chosen by the formula, up to {most_k}, from alpha and c of a rehearsal; "
    "alpha and the speedup are of the run itself, with 95% intervals over prompts. c, without an interval, "
    "is of the run's loops; on a GPU, where their phases are not timed, of the rehearsal. Predicted: (1 - "
    "alpha^(K+1)) / ((1 - alpha)(K c + 1)). Residual: measured - predicted. Cause: of the factors that the "
    "formula takes for 1, the one that does most for a residual of this sign; paper.json has all of them. "
    "It is not named on a GPU, and where other processes used the CPU meanwhile. The paper's figures are of "
    "T5-XXL on a TPU-v4."
)
_NOTE_3 = (
    "alpha is the mean of sum min(target, draft) over all positions of text that the target wrote, by "
    "teacher forcing; at T = 0 the share of positions where the most probable tokens agree. Unigram and "
    "bigram are counted on the target's texts of other prompts (ten folds), smoothed after Witten and Bell."
    " 95% intervals over prompts."
)


def render(page: Mapping[str, Any], figures: Sequence[Mapping[str, str]] = ()) -> str:
    """The page as GitHub renders it."""
    lines = [
        f"# {escape(_title(page))}",
        "",
        *(part for text in _about(page) for part in (escape(text), "")),
        "## Table 1: theory",
        "",
        *_table1(page).as_markdown(),
    ]
    lines += ["", escape(_NOTE_1), "", "## Table 2: walltime", "", *_table2(page).as_markdown(), ""]
    lines += [
        escape(f"{_NOTE_2.format(most_k=page['study']['most_k'])} {_c_sources(page)}"),
        "",
        "## Table 3: alpha",
        "",
        *_table3(page).as_markdown(),
        "",
        escape(_NOTE_3),
    ]
    lines += ["", "## Figures", ""] if figures else []
    for figure in figures:
        path = f"figures/{figure['name']}.svg"
        lines += [f"![{escape(figure['title'])}]({path})", "", escape(figure["caption"]), ""]
    lines += ["", "## The runs", ""]
    for part in page["parts"]:
        task = f"{escape(part['task'])}, {part['prompts']} prompts"
        lines.append(f"* [{escape(part['title'])}]({part['name']}/report.md): {task}")
        lines += [f"  * {escape(text)}" for text in part["notes"]]
    if page["synthetic"]:
        lines += ["", wording.SYNTHETIC]
    return "\n".join(lines) + "\n"


def screen(page: Mapping[str, Any]) -> RenderableType:
    """Tables 2 and 3 for the terminal; Table 1 needs no measurement."""
    return Group(
        Text(),
        Text(_title(page), style="bold"),
        *map(Text, _notes(page)),
        Text(),
        _table2(page, narrow=True).as_rich(gap=1),
        Text(_c_sources(page)),
        Text(),
        _table3(page).as_rich(),
        Text(),
    )


def _about(page: Mapping[str, Any]) -> list[str]:
    """The notes of the paper's file, and which models and tasks the tables' names stand for."""
    study = page["study"]
    target = study["target"] or f"of the pair {study['pair']}"
    drafts = ", ".join(f"{name} is {model['id']}" for name, model in study["drafts"].items())
    tasks = ", ".join(f"{name} is {task}" for name, task in study["tasks"].items())
    return [*_notes(page), f"Target: {target}. Drafts: {drafts}. Tasks: {tasks}."]


def _notes(page: Mapping[str, Any]) -> list[str]:
    return [page["study"]["notes"]] if page["study"]["notes"] else []


def _c_sources(page: Mapping[str, Any]) -> str:
    """Where c of Table 2 is from, and of how many rows."""
    sources = Counter(row["c_source"] for row in page["table2"])
    return f"Source of c: {', '.join(f'{source} (rows: {count})' for source, count in sources.items())}."


def _title(page: Mapping[str, Any]) -> str:
    made = " (synthetic)" if page["synthetic"] else ""
    return f"Tables 1 to 3 of Leviathan et al. 2022, measured with the {models(page)}{made}"


def models(page: Mapping[str, Any]) -> str:
    """What is measured, in a few words: the pair, or the target where no pair was named."""
    target = page["study"]["target"]
    return f"pair {page['pair']}" if target is None else f"target {target}"


def _table1(page: Mapping[str, Any]) -> Table:
    columns = [*map(right, ("alpha", "K", "operations", "paper", "speed", "paper"))]
    cells = [
        [
            f"{row['alpha']:.1f}",
            str(row["k"]),
            *(f"{row['operations']:.2f}x", f"{row['paper']['operations']:.2f}x"),
            *(f"{row['speed']:.2f}x", f"{row['paper']['speed']:.2f}x"),
        ]
        for row in page["table1"]
    ]
    return Table(columns, cells)


def _table2(page: Mapping[str, Any], *, narrow: bool = False) -> Table:
    """Grouped by task; on a terminal without tokens per loop, the cause and the paper's alpha."""
    titles = ["T", "K", "alpha", "c", *(() if narrow else ("tokens/loop", "E[tokens]"))]
    columns = [left("draft"), *map(right, titles), right("speedup", note="95%")]
    columns += [right("predicted"), right("residual")]
    columns += [] if narrow else [left("cause")]
    columns += [right("paper" if narrow else "paper: K, alpha, speed")]
    rows: list[Row | Heading] = []
    task = None
    for row in page["table2"]:
        if row["task"] != task:
            task = row["task"]
            rows.append(Heading(task))
        rows.append(_cells(row, narrow=narrow))
    return Table(columns, rows)


def _cells(row: WalltimeRow, *, narrow: bool) -> list[str]:
    paper, cause, residual = row["paper"], row["cause"], row["residual"]
    numbers = [str(row["temperature"]), str(row["k"])]
    numbers += [_interval(row["alpha"], short=narrow), wording.number(row["c"], 3)]
    lengths = [_interval(row["tokens_per_loop"]), wording.number(row["expected_tokens"], 2)]
    speeds = [_interval(row["speedup"], "x"), _times(row["predicted"])]
    speeds.append(wording.NOTHING if residual is None else f"{residual:+.2f}")
    why = wording.NOTHING if cause is None else f"{cause['title']} (x{cause['factor']:.2f})"
    said = wording.NOTHING
    if paper is not None:
        said = _times(paper["speed"], 1)
        said = said if narrow else f"{paper['k']}, {paper['alpha']:.2f}, {said}"
    wide = [] if narrow else [why]
    return [row["draft"], *numbers, *([] if narrow else lengths), *speeds, *wide, said]


def _table3(page: Mapping[str, Any]) -> Table:
    columns = [left("task"), left("draft"), right("T"), right("alpha", note="95%")]
    columns += [right("positions"), right("paper")]
    cells = [
        [
            row["task"],
            row["draft"],
            str(row["temperature"]),
            _interval(row["alpha"]),
            f"{row['positions']:,}",
            wording.number(row["paper"], 2),
        ]
        for row in page["table3"]
    ]
    return Table(columns, cells)


def _interval(found: Estimate | None, unit: str = "", *, short: bool = False) -> str:
    if found is None:
        return wording.NOTHING
    if short:
        return f"{found['estimate']:.2f}{unit}"
    return wording.interval(Interval(found["estimate"], found["low"], found["high"]), unit)


def _times(value: float | None, digits: int = 2) -> str:
    return wording.NOTHING if value is None else f"{value:.{digits}f}x"
