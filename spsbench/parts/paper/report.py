"""Tables and figures of two papers from our own runs: Chen et al. 2023, and Leviathan et al. 2022."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from spsbench.base import Floats, Interval, Row, identity
from spsbench.law import theory
from spsbench.parts.paper import messages
from spsbench.parts.paper.folder import Page, linked_run, markdown
from spsbench.report import (
    ARM,
    NOTHING,
    SAMPLING,
    Drawing,
    Heading,
    Plate,
    Table,
    entry,
    escape,
    estimate,
    facts,
    judgement,
    left,
    milliseconds,
    number,
    printed,
    quiet,
    right,
    signed,
    speedup,
    style,
    table_of,
    times,
    why,
    wording,
)
from spsbench.stats import leviathan, loop_ms, residual_cause, residual_factors
from spsbench.store import ArmPrediction, ArmRow, Estimate, MeanSd, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType

Runs = Mapping[str, tuple[str, Summary]]
"""The title and summary of every run of a paper, by its name."""


def _runs_of_page(runs: Runs, notes: Callable[[Summary], list[str]]) -> dict[str, Any]:
    summaries = [summary for _, summary in runs.values()]
    parts = [
        {
            "name": name,
            "title": title,
            "task": wording.title(summary),
            "prompts": facts.prompts(summary),
            "notes": [*facts.doubts(summary), *judgement.losslessness(summary), *notes(summary)],
        }
        for name, (title, summary) in runs.items()
    ]
    return {
        "synthetic": any(summary.get("synthetic") for summary in summaries),
        "complete": all(summary["complete"] for summary in summaries),
        "parts": parts,
    }


def _markdown(page: Page, title: str, *parts: str | Table) -> str:
    runs = (
        linked_run(part["title"], part["name"], part["task"], part["prompts"], part["notes"])
        for part in page["parts"]
    )
    return markdown(page, title, parts, runs)


# --- Chen et al. 2023 ---

TABLE, FIGURE = "table1", "figure1"


def gather_chen(runs: Runs, images: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of Table 1 and Figure 1. No number is the paper's."""

    def notes(summary: Summary) -> list[str]:
        verdicts = why.verdicts(summary)
        return [*judgement.parity(summary), *(f"{answer} {beside}" for answer, beside in verdicts)]

    page = _runs_of_page(runs, notes)
    rows, curves = [], []
    for part, (name, (_, summary)) in zip(page["parts"], runs.items(), strict=True):
        part |= {"warnings": summary["warnings"], "image": images.get(name)}
        rows += [_table1_row(summary, row) for row in summary["rows"]] if name.startswith(TABLE) else []
        curves += _figure1_curves(summary) if name.startswith(FIGURE) else []
    _, first = next(iter(runs.values()))
    return {"pair": first.get("pair"), **page, TABLE: rows, FIGURE: curves}


def _table1_row(summary: Summary, row: ArmRow) -> dict[str, Any]:
    metric = wording.headline_metric(summary)
    known = dict(row)
    copied = ("baseline", "ms_per_token", "speedup", "sequences")
    return {
        "benchmark": wording.title(summary),
        "metric": metric,
        "value": row["metrics"].get(metric) if metric else None,
        "metrics": row["metrics"],
        **identity(row),
        **{name: known[name] for name in copied},
    }


def _figure1_curves(summary: Summary) -> list[dict[str, Any]]:
    timed, predicted = summary.get("tails"), summary.get("prediction")
    tails = {arm["arm"]: arm for arm in timed["arms"]} if timed else {}
    loops = {series["sampling"]: series["loop"] for series in predicted["samplings"]} if predicted else {}
    length = timed["n_tokens"] if timed else None
    curves = []
    for sampling in dict.fromkeys(row["sampling"] for row in summary["rows"]):
        points = []
        for row in summary["rows"]:
            if row["sampling"] != sampling or row["method"] == "draft":
                continue
            tail = tails.get(row["arm"])
            seen = row["acceptance"]
            point = {
                "k": row["k"],
                "time_s": None if tail is None else tail["sequence_s"],
                "paper_clock_s": None if tail is None else tail["paper_clock_s"],
                "r_prime": seen["r_prime"] if seen else 1.0 if row["k"] == 0 else None,
                "loop_ms": loop_ms(row),
                "speedup": row["speedup"],
            }
            points.append(point)
        title = f"{wording.title(summary)}, {sampling}, {length} tokens"
        curves.append({"title": title, "sampling": sampling, "points": points, "loop": loops.get(sampling)})
    return curves


def render_chen(page: Page) -> str:
    """The page as GitHub renders it."""
    parts: list[str | Table] = ["## Table 1", _chen_table(page), "## Figure 1"]
    parts += [f"![{escape(each['title'])}]({each['image']})" for each in page["parts"] if each["image"]]
    columns = [
        right("K", entry("k")),
        right("time ms", entry("time_s", _spread)),
        right("paper's clock ms", entry("paper_clock_s", _spread)),
        right("r'", entry("r_prime", number, 3)),
        right("loop ms", entry("loop_ms", milliseconds)),
        right("speedup", lambda at: "1x" if at["k"] == 0 else speedup(at["speedup"]), note="95%"),
    ]
    for curve in page[FIGURE]:
        parts += [f"### {escape(curve['title'])}", table_of(columns, curve["points"])]
        if line := curve["loop"]:
            parts.append(f"Loop time: {wording.loop_line(line)}.")
    return _markdown(page, _chen_title(page), *parts, messages.FIGURE_1)


def screen_chen(page: Page) -> RenderableType:
    """Table 1 and the best of Figure 1 for the terminal."""
    best = []
    for curve in page[FIGURE]:
        if known := [point for point in curve["points"] if point["speedup"]]:
            point = max(known, key=lambda point: point["speedup"]["ratio"])
            text = messages.FastestK(curve["title"], point["k"], speedup(point["speedup"]))
            best.append(Text(wording.printable(str(text))))
    title = Text(_chen_title(page), style="bold")
    return Group(Text(), title, Text(), _chen_table(page), Text(), *best, Text())


def _chen_title(page: Page) -> str:
    synthetic = " (synthetic)" if page["synthetic"] else ""
    return f"Table 1 and Figure 1 of Chen et al. 2023, measured with the pair {page['pair']}{synthetic}"


def _chen_table(page: Page) -> Table:
    def metric(row: Mapping[str, Any]) -> str:
        name = row["metric"]
        return f"{wording.metric_title(name)} {wording.metric(name, row['value'])}" if name else NOTHING

    columns = [
        ARM,
        left("benchmark", entry("benchmark")),
        SAMPLING,
        left("metric", metric),
        right("ms/token", entry("ms_per_token", milliseconds)),
        right("speedup", wording.row_speedup, note="95%"),
    ]
    return table_of(columns, page[TABLE])


def _spread(time_s: MeanSd | None) -> str:
    return NOTHING if time_s is None else f"{1e3 * time_s['mean']:.0f} ± {1e3 * time_s['sd']:.0f}"


# --- Leviathan et al. 2022: what the paper prints; K is its gamma ---

TABLE_1 = {
    (0.6, 2): (1.53, 1.96),
    (0.7, 3): (1.58, 2.53),
    (0.8, 2): (1.23, 2.44),
    (0.8, 5): (1.63, 3.69),
    (0.9, 2): (1.11, 2.71),
    (0.9, 10): (1.60, 6.86),
}
"""Operations and speed for c = c^ = 0, by alpha and K."""

TABLE_2 = {
    ("ende", "small", 0): (7, 0.75, 3.4),
    ("ende", "base", 0): (7, 0.80, 2.8),
    ("ende", "large", 0): (7, 0.82, 1.7),
    ("ende", "small", 1): (7, 0.62, 2.6),
    ("ende", "base", 1): (5, 0.68, 2.4),
    ("ende", "large", 1): (3, 0.71, 1.4),
    ("cnndm", "small", 0): (5, 0.65, 3.1),
    ("cnndm", "base", 0): (5, 0.73, 3.0),
    ("cnndm", "large", 0): (3, 0.74, 2.2),
    ("cnndm", "small", 1): (5, 0.53, 2.3),
    ("cnndm", "base", 1): (3, 0.55, 2.2),
    ("cnndm", "large", 1): (3, 0.56, 1.7),
}
"""K, alpha and speed of T5-XXL with a smaller T5 as its draft on a TPU-v4, by task, draft and temperature."""

TABLE_3 = {
    ("ende", "unigram", 0): 0.08,
    ("ende", "bigram", 0): 0.20,
    ("ende", "unigram", 1): 0.07,
    ("ende", "bigram", 1): 0.19,
    ("cnndm", "unigram", 0): 0.13,
    ("cnndm", "bigram", 0): 0.23,
    ("cnndm", "unigram", 1): 0.08,
    ("cnndm", "bigram", 1): 0.16,
    **{key: alpha for key, (_, alpha, _) in TABLE_2.items()},
}
"""alpha where the target is T5-XXL, by task, draft and temperature."""

REHEARSAL = "rehearsal"
"""A ``c_source``."""


def table1() -> list[dict[str, Any]]:
    """The paper's pairs of alpha and K with c = c^ = 0."""
    return [
        {
            "alpha": alpha,
            "k": k,
            "operations": theory.operations_factor(alpha, 0.0, k),
            "speed": theory.walltime_factor(alpha, 0.0, k),
            "paper": {"operations": operations, "speed": speed},
        }
        for (alpha, k), (operations, speed) in TABLE_1.items()
    ]


def walltime_row(
    place: tuple[str, str, int],
    part: str,
    summary: Summary,
    alpha: Interval | None,
    tokens_per_loop: Interval | None,
    rehearsed_c: float,
) -> dict[str, Any]:
    """One row of Table 2 from its run.

    ``k`` was chosen by theory; all else is of the run, but c where ``c_source`` is ``rehearsal``; it is else
    as ``stats.predict.costs.draft_over_target`` has it. ``predicted`` is the walltime factor at ``alpha`` and
    ``c``, ``residual`` is measured - predicted and ``cause`` the factor that does most for it. ``paper``:
    its row under the same names, ``expected_tokens`` by its alpha and K.

    Args:
        place: task, draft and temperature.
        alpha: of the run's ArS text, see ``alpha_leviathan_interval``.
        tokens_per_loop: of its SpS arm, see ``mean_length``.
    """
    prediction, explained = summary.get("prediction"), summary.get("why")
    arm = _predicted_with_c(prediction["arms"][0], rehearsed_c) if prediction else None
    causes = residual_factors(arm, explained[0]) if arm and explained else []
    residual = arm["residual"] if arm else None
    row = next(row for row in summary["rows"] if row["method"] == "sps")
    measured, paper = row["speedup"], None
    if place in TABLE_2:
        k, printed_alpha, speed = TABLE_2[place]
        expected = theory.expected_tokens(printed_alpha, k)
        paper = {"k": k, "alpha": printed_alpha, "speed": speed, "expected_tokens": expected}
    return {
        "task": place[0],
        "draft": place[1],
        "temperature": place[2],
        "part": part,
        "k": row["k"],
        "alpha": _estimate(alpha),
        "c": arm["c"] if arm else None,
        "c_source": arm["c_source"] if arm else "not measured",
        "tokens_per_loop": _estimate(tokens_per_loop),
        "expected_tokens": arm["tokens_per_loop_predicted"] if arm else None,
        "speedup": _estimate(
            Interval(measured["ratio"], measured["low"], measured["high"]) if measured else None
        ),
        "predicted": arm["predicted"] if arm else None,
        "residual": residual,
        "residual_factors": causes,
        "cause": residual_cause(residual, causes),
        "operations": arm["operations_factor"] if arm else None,
        "paper": paper,
    }


def _predicted_with_c(arm: ArmPrediction, rehearsed: float) -> ArmPrediction:
    """With the rehearsal's c where the run has none: phases are not timed everywhere."""
    if arm["c"] is not None:
        return arm
    alpha, measured = arm["alpha"], arm["measured"]
    predicted = None if alpha is None else theory.walltime_factor(alpha, rehearsed, arm["k"])
    residual = None if measured is None or predicted is None else measured - predicted
    return {**arm, "c": rehearsed, "c_source": REHEARSAL, "predicted": predicted, "residual": residual}


def _estimate(value: Interval | None) -> Estimate | None:
    return None if value is None else {"estimate": value.estimate, "low": value.low, "high": value.high}


def gather_leviathan(rows: Sequence[Row], alphas: Sequence[Row], runs: Runs, pair: str) -> dict[str, Any]:
    """The page's content; a row of ``alphas`` is of Table 3: a draft's alpha over the target's text."""
    tables = {"table1": table1(), "table2": list(rows), "table3": list(alphas)}
    return {
        "of": "leviathan",
        "pair": pair,
        **_runs_of_page(runs, lambda summary: summary["warnings"]),
        **tables,
    }


def render_leviathan(page: Page, figures: Sequence[Plate] = ()) -> str:
    """The page as GitHub renders it, with the notes of the paper's file and what its names stand for."""
    study = page["study"]
    columns = [*map(right, ("alpha", "K", "operations", "paper", "speed", "paper"))]
    target = study["target"] or f"of the pair {study['pair']}"
    drafts = ", ".join(f"{name} is {model['id']}" for name, model in study["drafts"].items())
    tasks = ", ".join(f"{name} is {task}" for name, task in study["tasks"].items())
    rows = []
    for row in page["table1"]:
        factors = [source[name] for name in ("operations", "speed") for source in (row, row["paper"])]
        rows.append([f"{row['alpha']:.1f}", str(row["k"]), *map(times, factors)])
    parts: list[str | Table] = [
        escape(study["notes"]),
        escape(f"Target: {target}. Drafts: {drafts}. Tasks: {tasks}."),
        *("## Table 1: theory", Table(columns, rows), escape(messages.TABLE_1)),
        *("## Table 2: walltime", _table2(page)),
        escape(f"{messages.Table2(study['most_k'])} {_sources_of_c(page)}"),
        *("## Table 3: alpha", _table3(page), escape(messages.TABLE_3)),
    ]
    parts += ["## Figures"] if figures else []
    for figure in figures:
        parts += [f"![{escape(figure.title)}](figures/{figure.name}.svg)", escape(figure.caption)]
    return _markdown(page, _leviathan_title(page), *parts)


def screen_leviathan(page: Page) -> RenderableType:
    """Tables 2 and 3 for the terminal; Table 1 needs no measurement."""
    title = Text(_leviathan_title(page), style="bold")
    notes = page["study"]["notes"]
    head = [Text(), title, *([Text(notes)] if notes else []), Text()]
    table2 = _table2(page, narrow=True).as_rich(gap=1)
    return Group(*head, table2, Text(_sources_of_c(page)), Text(), _table3(page), Text())


def _sources_of_c(page: Page) -> str:
    sources = Counter(row["c_source"] for row in page["table2"])
    return f"Source of c: {', '.join(f'{source} (rows: {count})' for source, count in sources.items())}."


def _leviathan_title(page: Page) -> str:
    synthetic = " (synthetic)" if page["synthetic"] else ""
    return f"Tables 1 to 3 of Leviathan et al. 2022, measured with the {_models(page)}{synthetic}"


def _models(page: Page) -> str:
    target = page["study"]["target"]
    return f"pair {page['pair']}" if target is None else f"target {target}"


def _table2(page: Page, *, narrow: bool = False) -> Table:
    """Grouped by task; a narrow one lacks tokens per loop, the cause and the paper's alpha."""

    def alpha(value: Estimate | None) -> str:
        return number(value["estimate"] if value else None, 2) if narrow else estimate(value)

    def printed(paper: Mapping[str, Any] | None) -> str:
        if paper is None:
            return NOTHING
        speed = f"{paper['speed']:.1f}x"
        return speed if narrow else f"{paper['k']}, {paper['alpha']:.2f}, {speed}"

    lengths = [
        right("tokens/loop", entry("tokens_per_loop", estimate)),
        right("E[tokens]", entry("expected_tokens", number, 2)),
    ]
    columns = [
        left("draft", entry("draft")),
        right("T", entry("temperature")),
        right("K", entry("k")),
        right("alpha", entry("alpha", alpha)),
        right("c", entry("c", number, 3)),
        *([] if narrow else lengths),
        right("speedup", entry("speedup", estimate, "x"), note="95%"),
        right("predicted", entry("predicted", times)),
        right("residual", entry("residual", signed)),
        *([] if narrow else [left("cause", entry("cause", why.cause))]),
        right("paper" if narrow else "paper: K, alpha, speed", entry("paper", printed)),
    ]
    rows = []
    for task in dict.fromkeys(row["task"] for row in page["table2"]):
        rows += [Heading(task), *(row for row in page["table2"] if row["task"] == task)]
    return table_of(columns, rows)


def _table3(page: Page) -> Table:
    columns = [
        left("task", entry("task")),
        left("draft", entry("draft")),
        right("T", entry("temperature")),
        right("alpha", entry("alpha", estimate), note="95%"),
        right("positions", entry("positions", "{:,}".format)),
        right("paper", entry("paper", number, 2)),
    ]
    return table_of(columns, page["table3"])


# --- Figures 2 to 4 of Leviathan et al.: the formulae as lines, our rows of Table 2 as points ---

_KS = (1, 3, 5, 7, 10)
_COSTS = (0.01, 0.05, 0.1, 0.2, 0.5)
_ALPHAS: Floats = np.linspace(0.0, 0.99, 199)
_MOST_TOKENS, _MOST_OPERATIONS = 10.5, 12.0
_MOST_K = 16
_NAMED_K = (14, 12, 8, 5, 3)
"""On which step of its line each c is named."""


def draw(page: Page) -> list[Plate]:
    """Figures 2, 3 and 4 from ``gather_leviathan``, with ``study`` as ``render_leviathan`` takes it."""
    with quiet():
        return [printed(figure(page)) for figure in (_figure2, _figure3, _figure4)]


def _figure2(page: Page) -> Drawing:
    """Expected tokens per loop against alpha, for several K."""
    figure, (axes,) = _sheet(page, (1,), 3.9)
    top = _axis_top(_MOST_TOKENS, page, ("expected_tokens", "tokens_per_loop"))
    _lines(axes, theory.expected_tokens, top)
    bound = _ALPHAS[top * (1.0 - _ALPHAS) > 1.0]
    axes.plot(bound, 1.0 / (1.0 - bound), color=style.FAINT, lw=0.9, linestyle=style.DASHES[4])
    _points(axes, page, "tokens_per_loop", "expected_tokens")
    _over_alpha(axes, "Expected tokens per loop", "tokens per loop", top)
    bound_key = style.key("K without limit", color=style.FAINT, linestyle=style.DASHES[4], lw=0.9)
    style.legend(figure, [*_keys(page, "by the formula, at its K"), bound_key])
    return Drawing("figure2", messages.FIGURE_2_TITLE, messages.FIGURE_2, figure)


def _figure3(page: Page) -> Drawing:
    """The best K against alpha, for several c."""
    figure, (axes,) = _sheet(page, (1,), 3.9)
    for index, c in enumerate(_COSTS):
        best = [leviathan(float(alpha), c).best_k(range(1, _MOST_K + 1)) for alpha in _ALPHAS]
        color = _line_colour(index, len(_COSTS))
        axes.plot(_ALPHAS, best, color=color, lw=1.2, drawstyle="steps-post")
        named = int(np.argmax(np.asarray(best) >= _NAMED_K[index]))
        _name(axes, f"c={c:g}", float(_ALPHAS[named]), _NAMED_K[index] - 0.5, color)
    _points(axes, page, "k")
    most = max(_MOST_K, *(row["k"] for row in page["table2"])) + 0.8
    _over_alpha(axes, "Best K", style.K_LABEL, most)
    style.legend(figure, _keys(page))
    caption = messages.Figure3(page["study"]["most_k"])
    return Drawing("figure3", messages.FIGURE_3_TITLE, str(caption), figure)


def _figure4(page: Page) -> Drawing:
    """Speedup and operations per token against alpha, for several K."""
    figure, (speed, operations) = _sheet(page, (1, 1), 3.7)
    fastest = _axis_top(_MOST_TOKENS, page, ("predicted", "speedup"))
    most = _axis_top(_MOST_OPERATIONS, page, ("operations",))
    _lines(speed, lambda alpha, k: theory.walltime_factor(alpha, 0.0, k), fastest)
    _lines(operations, lambda alpha, k: theory.operations_factor(alpha, 0.0, k), most, at=0.1)
    _points(speed, page, "speedup", "predicted")
    _points(operations, page, "operations")
    _over_alpha(speed, "Speedup (walltime factor)", "speedup (x)", fastest)
    _over_alpha(operations, "Operations per token", "multiple of ArS (x)", most)
    operations.set_yscale("log", base=2)
    operations.set_ylim(0.95, most)
    ticks = [2**power for power in range(int(np.log2(most)) + 1)]
    operations.set_yticks(ticks, list(map(str, ticks)))
    operations.minorticks_off()
    style.legend(figure, _keys(page, "by the formula, with its K and c"))
    return Drawing("figure4", messages.FIGURE_4_TITLE, messages.FIGURE_4, figure)


def _sheet(page: Page, panels: Sequence[float], height_in: float) -> Any:
    rows = len(page["table2"])
    stamp = f"{_models(page)}, {', '.join(_style_by_name(page, 'task'))}: {rows} rows of Table 2"
    return style.stamped_sheet(stamp, bool(page["synthetic"]), panels, height_in)


def _axis_top(least: float, page: Page, names: Sequence[str]) -> float:
    """At ``least``, or above the rows' values of these names and their intervals."""
    cells = [row[name] for row in page["table2"] for name in names if row[name] is not None]
    values = [
        max(cell["estimate"], cell["high"] or 0.0) if isinstance(cell, dict) else cell for cell in cells
    ]
    return float(max([least, *(1.05 * value for value in values)]))


def _lines(axes: Axes, formula: Callable[[float, int], float], top: float, at: float | None = None) -> None:
    """Draw one line per K, named on the line where it passes ``at``, or at the right of the panel."""
    for index, k in enumerate(_KS):
        values = np.asarray([formula(float(alpha), k) for alpha in _ALPHAS])
        color = _line_colour(index, len(_KS))
        axes.plot(_ALPHAS, values, color=color, lw=1.1)
        if at is None:
            end = 1.0, min(float(values[-1]), top)
            look: dict[str, Any] = {"fontsize": style.SMALL_PT, "color": color}
            axes.annotate(f"K={k}", end, (3, -3), textcoords="offset points", annotation_clip=False, **look)
        else:
            _name(axes, f"K={k}", at, float(np.interp(at, _ALPHAS, values)), color)


def _name(axes: Axes, text: str, x: float, y: float, color: str) -> None:
    box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8}
    axes.text(x, y, text, fontsize=style.SMALL_PT, color=color, ha="center", va="center", bbox=box)


def _line_colour(index: int, count: int) -> str:
    level = int(0xC4 - (0xC4 - 0x60) * index / max(count - 1, 1))
    return f"#{level:02x}{level:02x}{level:02x}"


def _style_by_name(page: Page, axis: str) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(row[axis] for row in page["table2"])
    look, looks = ("color", style.SERIES) if axis == "draft" else ("marker", style.MARKERS)
    return {name: {look: looks[index % len(looks)]} for index, name in enumerate(names)}


def _points(axes: Axes, page: Page, measured: str, predicted: str = "") -> None:
    """Draw the rows of Table 2 by an entry: colour by draft, marker by task, hollow at temperature 1.

    A dash is at what the formula predicts, with a line from it to what was measured: the residual.
    """
    drafts, tasks = _style_by_name(page, "draft"), _style_by_name(page, "task")
    for row in page["table2"]:
        alpha, interval = row["alpha"], row[measured]
        if alpha is None:
            continue
        if isinstance(interval, (int, float)):
            interval = {"estimate": float(interval), "low": None, "high": None}
        x = alpha["estimate"]
        by_formula = row[predicted] if predicted else None
        if by_formula is not None:
            axes.plot(x, by_formula, "_", color=style.INK, ms=7, zorder=4)
        if interval is None:
            continue
        if by_formula is not None:
            residual = [by_formula, interval["estimate"]]
            axes.plot([x, x], residual, color=style.INK, lw=0.6, linestyle=style.DASHES[4])
        look = drafts[row["draft"]] | tasks[row["task"]]
        look |= {"mfc": style.PAPER if row["temperature"] else look["color"], "markersize": 4.5}
        bars: dict[str, Any] = {"xerr": _bars(alpha), "yerr": _bars(interval), "elinewidth": 0.9}
        axes.errorbar(x, interval["estimate"], linestyle="", zorder=5, **bars, **look)


def _bars(interval: Estimate) -> Floats | None:
    """[2, 1] how far the interval's ends are from the estimate; None without an interval."""
    if interval["low"] is None or interval["high"] is None:
        return None
    estimate = interval["estimate"]
    return np.array([[estimate - interval["low"]], [interval["high"] - estimate]]).clip(0.0)


def _over_alpha(axes: Axes, title: str, label: str, top: float) -> None:
    style.name_axes(axes, title, label, "alpha (acceptance rate)")
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, top)


def _keys(page: Page, formula: str = "") -> list[Any]:
    faint = {"color": style.FAINT, "linestyle": ""}
    keys = [
        style.key(name, marker="o", linestyle="", **look)
        for name, look in _style_by_name(page, "draft").items()
    ]
    keys += [style.key(name, **look, **faint) for name, look in _style_by_name(page, "task").items()]
    keys.append(style.key("T = 1 (filled: T = 0)", marker="o", mfc="w", **faint))
    return [*keys, style.key(formula, color=style.INK, marker="_", linestyle="")] if formula else keys
