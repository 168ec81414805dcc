"""Table 1 and Figure 1 of Chen et al. 2023 from our own runs, on one page. No number is the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from spsbench.axes import ArmIdentity, identity, label
from spsbench.predict.costs import loop_ms
from spsbench.report import judgement, why, wording
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import ArmRow, ArmTails, MeanSd, RatioInterval, Summary

if TYPE_CHECKING:
    from rich.console import RenderableType

TABLE, FIGURE = "table1", "figure1"
_FIGURE_NOTE = (
    "Time: mean ± standard deviation over sequences of equal length, by the wall and by the paper's clock "
    "(mean loop time times the sequence's loops). r': (accepted + 1) / (K + 1), 1 at K = 0."
)


def gather(
    summaries: Mapping[str, Summary], titles: Mapping[str, str], images: Mapping[str, str]
) -> dict[str, Any]:
    """What the page shows."""
    first = next(iter(summaries.values()))
    tables = [part for name, part in summaries.items() if name.startswith(TABLE)]
    return {
        "pair": first.get("pair"),
        "synthetic": bool(first.get("synthetic")),
        "complete": all(part["complete"] for part in summaries.values()),
        TABLE: [_row(part, row) for part in tables for row in part["rows"]],
        FIGURE: [
            curve for name, part in summaries.items() if name.startswith(FIGURE) for curve in _curves(part)
        ],
        "parts": [
            {**_part(name, titles[name], part), "image": images.get(name)} for name, part in summaries.items()
        ],
    }


def render(page: Mapping[str, Any]) -> str:
    """The page as GitHub renders it."""
    lines = [f"# {escape(_title(page))}", "", "## Table 1", "", *_table(page).as_markdown()]
    lines += ["", "## Figure 1", ""]
    for part in (part for part in page["parts"] if part["image"]):
        lines += [f"![{escape(part['title'])}]({part['image']})", ""]
    for curve in page[FIGURE]:
        lines += [f"### {escape(curve['title'])}", "", *_curve(curve), ""]
    lines += [_FIGURE_NOTE, "", "## The runs", ""]
    for part in page["parts"]:
        lines.append(f"* [{escape(part['title'])}]({part['name']}/report.md), {part['prompts']} prompts")
        lines += [f"  * {escape(text)}" for text in part["notes"]]
    if page["synthetic"]:
        lines += ["", wording.SYNTHETIC]
    return "\n".join(lines) + "\n"


def screen(page: Mapping[str, Any]) -> RenderableType:
    """Table 1 and the best of Figure 1 for the terminal."""
    best = [Text(text) for curve in page[FIGURE] if (text := _fastest(curve))]
    title = Text(_title(page), style="bold")
    return Group(Text(), title, Text(), _table(page).as_rich(), Text(), *best, Text())


def _title(page: Mapping[str, Any]) -> str:
    made = " (synthetic)" if page["synthetic"] else ""
    return f"Table 1 and Figure 1 of Chen et al. 2023, measured with the pair {page['pair']}{made}"


class TableRow(ArmIdentity):
    """A row of Table 1."""

    benchmark: str | None
    metric: str | None
    value: float | None
    metrics: dict[str, float | None]
    baseline: str | None
    ms_per_token: float | None
    speedup: RatioInterval | None
    sequences: int


def _row(part: Summary, row: ArmRow) -> TableRow:
    metric = wording.headline_metric(part)
    return {
        "benchmark": part["task_label"],
        "metric": metric,
        "value": row["metrics"].get(metric) if metric else None,
        "metrics": row["metrics"],
        **identity(row),
        "baseline": row["baseline"],
        "ms_per_token": row["ms_per_token"],
        "speedup": row["speedup"],
        "sequences": row["sequences"],
    }


def _cells(row: TableRow) -> list[str]:
    metric = f"{wording.metric_title(row['metric'])} {wording.metric(row['metric'], row['value'])}"
    return [
        label(row),
        str(row["benchmark"]),
        str(row["sampling"]),
        metric if row["metric"] else wording.NOTHING,
        wording.milliseconds(row["ms_per_token"]),
        wording.row_speedup(row),
    ]


def _table(page: Mapping[str, Any]) -> Table:
    words = map(left, ("arm", "benchmark", "sampling", "metric"))
    columns = [*words, right("ms/token"), right("speedup", note="95%")]
    return Table(columns, [_cells(row) for row in page[TABLE]])


def _curves(part: Summary) -> list[dict[str, Any]]:
    """One per sampling: time, r' and loop time against K."""
    timed, predicted = part.get("tails"), part.get("prediction")
    tails = {arm["arm"]: arm for arm in timed["arms"]} if timed else {}
    loops = {entry["sampling"]: entry["loop"] for entry in predicted["samplings"]} if predicted else {}
    length = timed["n_tokens"] if timed else None
    curves = []
    for sampling in dict.fromkeys(row["sampling"] for row in part["rows"]):
        rows = [row for row in part["rows"] if row["sampling"] == sampling and row["method"] != "draft"]
        title = f"{part['task_label']}, {sampling}, {length} tokens"
        points = [_point(row, tails.get(row["arm"])) for row in rows]
        curves.append({"title": title, "sampling": sampling, "points": points, "loop": loops.get(sampling)})
    return curves


def _point(row: ArmRow, tail: ArmTails | None) -> dict[str, Any]:
    r_prime = row["acceptance"]["r_prime"] if row["acceptance"] else 1.0 if row["k"] == 0 else None
    return {
        "k": row["k"],
        "time_s": None if tail is None else tail["sequence_s"],
        "paper_clock_s": None if tail is None else tail["paper_clock_s"],
        "r_prime": r_prime,
        "loop_ms": loop_ms(row),
        "speedup": row["speedup"],
    }


def _curve(curve: Mapping[str, Any]) -> list[str]:
    titles = ("K", "time ms", "paper's clock ms", "r'", "loop ms")
    cells = [
        [
            str(point["k"]),
            _spread(point["time_s"]),
            _spread(point["paper_clock_s"]),
            wording.number(point["r_prime"], 3),
            wording.milliseconds(point["loop_ms"]),
            "1x" if point["k"] == 0 else wording.speedup(point["speedup"]),
        ]
        for point in curve["points"]
    ]
    lines = Table([*map(right, titles), right("speedup", note="95%")], cells).as_markdown()
    line = curve["loop"]
    if line is None:
        return lines
    return [*lines, "", f"Loop time: {line['intercept_ms']:.3g} + {line['slope_ms']:.3g} K ms."]


def _spread(found: MeanSd | None) -> str:
    return wording.NOTHING if found is None else f"{1e3 * found['mean']:.0f} ± {1e3 * found['sd']:.0f}"


def _fastest(curve: Mapping[str, Any]) -> str:
    there = [point for point in curve["points"] if point["speedup"]]
    if not there:
        return ""
    best = max(there, key=lambda point: point["speedup"]["ratio"])
    text = f"{curve['title']}: fastest at K={best['k']}, {wording.speedup(best['speedup'])}."
    return wording.printable(text)


def _part(name: str, title: str, part: Summary) -> dict[str, Any]:
    notes = [*judgement.alarms(part), *judgement.losslessness(part), *judgement.parity(part)]
    notes += [f"{sentence} {beside}" for sentence, beside in why.verdicts(part)]
    prompts = max((row["prompts"] for row in part["rows"]), default=0)
    return {"name": name, "title": title, "prompts": prompts, "notes": notes, "warnings": part["warnings"]}
