"""The tables of a run's arms: all, by category, by engine, by batch size and K; of several runs; joules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from spsbench.base.axes import EAGER, Row, both_arms, label, unusual
from spsbench.base.messages import Message
from spsbench.report import wording
from spsbench.report.facts import condition_titles, conditions_sentence, value
from spsbench.report.messages import runs as said
from spsbench.report.tables import (
    ARM,
    IN_FULL,
    SAMPLING,
    Cell,
    Column,
    Heading,
    Styled,
    Table,
    bullets,
    entry,
    left,
    paragraphs,
    right,
    table_of,
)
from spsbench.report.wording import Run, escape, full_name, milliseconds, number, speedup
from spsbench.store.summary_types import (
    ArmEnergy,
    ArmRow,
    CategoryPart,
    RatioInterval,
    Summary,
    Surface,
    SurfaceCell,
    TurnPart,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.report.measured import Measured

UNTIMED = ("failed", "not run")
TOKENS = right("tokens/loop", entry("tokens_per_loop", number, 2), latex="Tokens/loop")


def arm_columns(
    arms: Sequence[Row], metric: str | None, end_to_end: Literal["interval", "ratio"] | None = "interval"
) -> list[Column]:
    """The columns of the table of arms, in the shape of the paper's Table 1.

    The screen, report.md, the page and LaTeX all take them from here. The speedup end to end stands there
    with its interval, as a ratio alone, or not at all: that is what a narrow screen can do without.
    """
    has_interval = any((wording.metric_ends(metric, arm) or {}).get("low") is not None for arm in arms)
    title, quality = wording.metric_title(metric), partial(wording.quality, metric)
    whole = partial(wording.row_speedup, name="end_to_end_speedup")
    by_width = {
        "interval": [left("end to end", whole, note="95%", whole=True, latex="End to end")],
        "ratio": [right("end to end", lambda arm: whole(arm).partition(" [")[0])],
        None: [],
    }
    return [
        *([right(title, quality, note="95%" if has_interval else "")] if metric else []),
        *TIMES,
        *by_width[end_to_end],
        TOKENS,
    ]


def further_passes(summary: Summary) -> list[str]:
    """pass@10 and pass@100 of every arm that has enough samples; the table has pass@1."""
    rows, several = summary["rows"], len({row["sampling"] for row in summary["rows"]}) > 1
    found = []
    for name in ("pass@10", "pass@100"):
        known = [row for row in rows if row["metrics"].get(name) is not None]
        cells = (
            f"{wording.full_name(row) if several else label(row)} "
            f"{wording.metric(name, row['metrics'][name])}"
            for row in known
        )
        found += [f"{name}: {'; '.join(cells)}."] if known else []
    return found


def rolling_back(summary: Summary) -> list[str]:
    """How running states are rolled back, and what of a loop that takes."""
    if not (how := summary.get("rollback")):
        return []
    several = len({row["sampling"] for row in summary["rows"]}) > 1
    times = [
        (full_name(row) if several else label(row), spent, loop)
        for row in summary["rows"]
        if (time := row["loop_time"])
        and (spent := time.get("rollback_ms")) is not None
        and (loop := time.get("loop_ms"))
    ]
    return [str(said.StatesRolledBack(tuple(how.items()), tuple(times)))]


def _time(arm: Row) -> str:
    if arm["sequences"]:
        return milliseconds(arm["ms_per_token"])
    return UNTIMED[0] if arm["failed"] else UNTIMED[1]


def _speedup(arm: Row) -> Cell:
    return _coloured(wording.row_speedup(arm), arm["speedup"])


def _coloured(text: str, speedup: RatioInterval | None) -> Cell:
    """A speedup's text, coloured only where its interval leaves no doubt; nothing depends on seeing it."""
    if speedup is None or speedup["low"] is None:
        return text
    low, high = speedup["low"], speedup["ratio"] if speedup["high"] is None else speedup["high"]
    style = "green" if low > 1.0 else "red" if high < 1.0 else ""
    return Styled(text, style) if style else text


TIMES = (right("ms/token", _time), left("speedup", _speedup, note="95%", whole=True, latex="Speedup"))
CONDITION = (right("sequences", entry("sequences")), *TIMES)
"""Times alone, for the sequences that were measured under one of several conditions."""


def conditions(summary: Summary, run: Run) -> list[str]:
    parts: list[str | Table] = []
    for found, title in zip(summary.get("conditions") or [], condition_titles(summary), strict=True):
        parts += [f"### {escape(title)}", IN_FULL.table(CONDITION, found["rows"])]
    return paragraphs("## Times by condition", conditions_sentence(summary), *parts) if parts else []


def acceptance_columns(arms: Sequence[Row]) -> list[Column]:
    """The first measures of acceptance of speculative arms."""
    known = any(map(wording.has_optimum, arms))
    trees = any(arm.get("nodes_per_loop") for arm in arms)
    return [
        *(right(name, partial(wording.measure, name), code=True) for name in wording.FIRST_SCREEN),
        *([right("nodes/loop", wording.nodes)] if trees else []),
        *([left("share of optimum", wording.share_of_optimum, note="95%", whole=True)] if known else []),
    ]


def by_category(
    parts: Sequence[CategoryPart], metric: str | None
) -> tuple[list[Row | Heading], list[Column]]:
    """The arms of every category under its heading, and the columns of their table."""
    rows: list[Row | Heading] = []
    for part in parts:
        name = "no category" if part["category"] is None else part["category"]
        rows += [Heading(f"{name} ({wording.counted(part['prompts'], 'prompt')})"), *part["rows"]]
    return rows, arm_columns(parts[0]["rows"], metric, None)


def by_turn(parts: Sequence[TurnPart], metric: str | None) -> tuple[list[Row | Heading], list[Column]]:
    """The arms of every turn under its heading, and the columns of their table."""
    rows: list[Row | Heading] = []
    for part in parts:
        asked = wording.counted(part["prompts"], "prompt")
        rows += [Heading(f"turn {part['turn']} ({asked})"), *part["rows"]]
    return rows, arm_columns(parts[0]["rows"], metric, None)


def turns(summary: Summary, run: Run) -> list[str]:
    parts = summary.get("by_turn") or []
    if not parts:
        return []
    rows, columns = by_turn(parts, wording.headline_metric(summary))
    return paragraphs("## By turn", said.TURNS_NOTE, IN_FULL.table(columns, rows))


def categories(summary: Summary, run: Run) -> list[str]:
    parts = summary.get("by_category") or []
    if not parts:
        return []
    rows, columns = by_category(parts, wording.headline_metric(summary))
    return paragraphs("## By category", IN_FULL.table(columns, rows))


BASELINES = (
    left("over its own ArS", lambda row: speedup(row.get("own_speedup")), note="95%", whole=True),
    left("over the fastest", entry("speedup", speedup), note="95%", whole=True),
)
"""Each arm against the ArS of its own engine and against the fastest ArS of all."""


def speculative(summary: Summary) -> list[ArmRow]:
    """The arms with two baselines: those that speculate, where the run has several engines."""
    rows = summary["rows"]
    several = len({row["engine"] for row in rows}) > 1
    return [row for row in rows if row["method"] == "sps"] if several else []


def engine_notes(summary: Summary) -> list[str]:
    """Where external engines ran with other settings, and which of their times are unknown."""
    found = summary.get("engines")
    if found is None:
        return []
    unseen = ((engine["name"], clause) for engine in found["arms"] for clause in engine["unseen"])
    return [*found["unequal"], *_by_engine(unseen)]


def engines(summary: Summary, run: Run) -> list[str]:
    """The report's section on engines; none for a run of one."""
    rows, found = speculative(summary), summary.get("engines")
    parts: list[str | Table | list[str]] = [said.ENGINES_NOTE, IN_FULL.table(BASELINES, rows)] if rows else []
    if found is not None:
        by_arm = {row["arm"]: row for row in summary["rows"]}
        answered = [
            [
                *(str(column.cell(by_arm[one["arm"]])) for column in (ARM, SAMPLING)),
                f"{one['name']} {one['version'] or wording.NOTHING}",
                one["rule"] or wording.NOTHING,
            ]
            for one in found["arms"]
            if one["arm"] in by_arm
        ]
        limits = ((engine["name"], limit) for engine in found["arms"] for limit in engine["limits"])
        columns = [ARM, SAMPLING, left("engine and version"), left("rule")]
        parts += [Table(columns, answered), bullets([*engine_notes(summary), *_by_engine(limits)])]
    return paragraphs("## Engines", *parts) if parts else []


def _by_engine(notes: Iterator[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(f"{name}: {text.rstrip('.')}." for name, text in notes))


def _joules(arm: ArmEnergy) -> str:
    """Three digits or so: joules a token are below 1 on a CPU and above 100 for large models."""
    found = arm["joules_per_token"]
    if found["estimate"] >= 1 or found["low"] is None or found["high"] is None:
        return wording.estimate(found)
    return f"{found['estimate']:.3f}{wording.brackets(found, '{:.3f}'.format)}"


ENERGY = (
    left("J/token", _joules, note="95%", whole=True),
    left("of ArS", entry("ratio", speedup), note="95%", whole=True),
    right("sequences", entry("sequences")),
)
"""Joules per token of every arm, and over those of ArS."""


def energy(summary: Summary, run: Run) -> list[str]:
    """The report's section; none for a run from before energy was looked for."""
    found = summary.get("energy")
    if found is None:
        return []
    if not found["arms"]:
        return [f"Energy: not known ({escape(found['reason'] or 'it was not counted')})."]
    notes = escape(" ".join([str(said.EnergyCounted(found)), *uncounted(summary)]))
    return paragraphs("## Energy", IN_FULL.table(ENERGY, found["arms"]), notes)


def uncounted(summary: Summary) -> list[str]:
    """A sentence that names the arms of which no joules are known, where others have some."""
    found = summary.get("energy")
    known = {arm["arm"] for arm in found["arms"]} if found is not None else set()
    others = [row["arm"] for row in summary["rows"] if row["arm"] not in known]
    if not known or not others:
        return []
    return [str(said.EnergyUncounted(tuple(others)))]


def surfaces(summary: Summary, run: Run) -> list[str]:
    """The section of report.md; nothing for a run of one batch size."""
    parts: list[str | Table] = []
    for surface in summary.get("surfaces") or []:
        parts += [f"### {escape(surface_title(surface))}", surface_table(surface)]
        parts += map(escape, surface_sentences(surface))
    return paragraphs("## Batches", escape(said.SURFACES_NOTE), *parts) if parts else []


def surface_title(surface: Surface) -> str:
    """What the surface is of, beside batch size and K."""
    engine = [] if surface["engine"] == EAGER else [f"@{surface['engine']}"]
    parts = ["Speedup by batch size", surface["sampling"], *unusual({"method": "sps", **surface}), *engine]
    return ", ".join(parts)


def batch_sizes(surface: Surface) -> list[int]:
    return sorted({cell["batch"] for cell in surface["cells"]})


def surface_table(surface: Surface, *, intervals: bool = True) -> Table:
    """A row a batch size, a column a K; without intervals it fits on a screen."""
    ks = sorted({cell["k"] for cell in surface["cells"]} - {0})
    by_k = [left(f"K={k}", note="95%", whole=True) if intervals else right(f"K={k}") for k in ks]
    columns = [
        *map(right, ("B", "ArS tokens/s", "ms/token")),
        *by_k,
        *map(right, ("SpS tokens/s", "ms/token")),
    ]
    rows = []
    for batch in batch_sizes(surface):
        cells = {cell["k"]: cell for cell in surface["cells"] if cell["batch"] == batch}
        speculating = [cells[k] for k in ks if k in cells]
        best = max(speculating, key=lambda cell: cell["tokens_per_s"], default=None)
        row: list[Cell] = [str(batch), *_rates(cells.get(0))]
        for found in (cells[k]["speedup"] if k in cells else None for k in ks):
            text = speedup(found) if intervals or found is None else f"{found['ratio']:.2f}x"
            row.append(_coloured(text, found))
        rows.append([*row, *_rates(best)])
    return Table(columns, rows)


def _rates(cell: SurfaceCell | None) -> tuple[str, str]:
    if cell is None:
        return wording.NOTHING, wording.NOTHING
    return f"{cell['tokens_per_s']:,.0f}", milliseconds(cell["latency_ms_per_token"])


def surface_sentences(surface: Surface) -> list[str]:
    """Up to which batch size each K pays, and whether batches write what batch size 1 writes."""
    largest = batch_sizes(surface)[-1]
    lines = [" ".join(str(said.PaysUpToBatch(line, largest)) for line in surface["pays_up_to"])]
    compared = [cell for cell in surface["cells"] if cell["batch"] > 1 and cell["as_alone"] is not None]
    same = sum(cell["as_alone"] or 0 for cell in compared)
    of = sum(cell["compared"] for cell in compared)
    return [*lines, str(said.BatchesAlike(of - same, of))] if compared else lines


# --- two runs, paired ---


def compared_screen(compared: Mapping[str, Any]) -> RenderableType:
    """Times, then metrics, then what may explain a difference."""
    arms = compared["arms"]
    columns = [
        left("ms/token and speedup", _both_names),
        right("A", entry("a_ms_per_token", milliseconds)),
        right("B", entry("b_ms_per_token", milliseconds)),
        right("B/A time", entry("time_ratio", _ratio), note="95%"),
        right("A", entry("a_speedup", wording.times)),
        right("B", entry("b_speedup", wording.times)),
    ]
    title = str(said.RunsCompared(compared["prompts"]))
    names = [_with_tags(compared, side) for side in ("a", "b")]
    parts: list[RenderableType] = [Text(), Text(title, style="bold"), *map(Text, names), Text()]
    parts.append(table_of(columns, arms))
    for sentences in ([*_speedups(arms)], [*_metrics(arms)], [*map(str, _tokens(arms))]):
        parts += [Text(), *map(Text, sentences)] if sentences else []
    notes = [str(said.PromptsUnfinished(arm)) for arm in compared["unfinished"]]
    notes += [*compared["refusals"], *compared["machine"], *compared["warnings"]]
    notes += [f"{arm} is in {side} only" for side in ("A", "B") for arm in compared[f"only_{side.lower()}"]]
    parts += [Text(), *(Text(f"! {wording.printable(text)}.") for text in notes)]
    return Group(*parts, Text(said.NOT_INTERLEAVED, style="dim"), Text())


def _with_tags(compared: Mapping[str, Any], side: str) -> str:
    """Letter and name of one of the runs, and what its user said of it."""
    tags = wording.tags({"tags": compared.get("tags", {}).get(side)})
    name = f"{side.upper()}  {wording.printable(str(compared[side]))}"
    return f"{name}: {tags}" if tags else name


def _both_names(arm: Mapping[str, Any]) -> str:
    """An arm's name, and that of the arm of B where it is another one."""
    return full_name(arm) if arm["arm"] == arm["b_arm"] else both_arms(arm)


def _speedups(arms: list[dict[str, Any]]) -> Iterator[str]:
    """B's speedup over A's, and the tokens per loop of both."""
    for arm in arms:
        parts = []
        if arm["speedup_ratio"] is not None:
            parts.append(f"{said.SPEEDUP_RATIO} {_ratio(arm['speedup_ratio'])}")
        loops = [arm["a_tokens_per_loop"], arm["b_tokens_per_loop"]]
        if arm["method"] == "sps" and None not in loops:
            parts.append(f"tokens/loop {loops[0]:.2f} -> {loops[1]:.2f}")
        if parts:
            yield f"{_both_names(arm)}: {', '.join(parts)}"


def _ratio(interval: Row) -> str:
    return f"{interval['ratio']:.3f}{wording.brackets(interval, '{:.3f}'.format)}"


def _metrics(arms: list[dict[str, Any]]) -> Iterator[str]:
    for arm in arms:
        for found in arm["metrics"]:
            digits = wording.difference_digits(found["metric"])
            ends = wording.brackets(found, f"{{:+.{digits}f}}".format)
            title = wording.metric_title(found["metric"])
            yield (
                f"{_both_names(arm)}: {title} {found['a']:.{digits}f} -> {found['b']:.{digits}f}, "
                f"{found['difference']:+.{digits}f}{ends}"
            )


def _tokens(arms: list[dict[str, Any]]) -> Iterator[Message]:
    """Which outputs are the same, and how close the decision was where two first parted."""
    for arm in arms:
        same = arm["tokens"]
        if same is None:
            continue
        identical = round(same["identical"] * same["sequences"])
        if identical == same["sequences"]:
            yield said.TokensIdentical(full_name(arm), identical)
        else:
            yield said.TokensPart(full_name(arm), identical, same["sequences"], same["first_divergence"])


# --- several runs, side by side ---

_FACTS = {
    "tags": ("tags",),
    "task": ("task_label",),
    "data": ("data", "source"),
    "prompts": ("identity", "prompt_sha256"),
    "pair": ("pair",),
    "synthetic": ("synthetic",),
    "dtype": ("identity", "dtype"),
    "device": ("identity", "device"),
    "max_new_tokens": ("identity", "max_new_tokens"),
    "fixed_length": ("identity", "fixed_length"),
    "seed": ("identity", "seed"),
    "threads": ("models", "threads"),
    "cpu": ("environment", "cpu", "model"),
    "gpus": ("environment", "gpus"),
    "gpu": ("gpu", "name"),
    "driver": ("gpu", "driver"),
    "cuda": ("gpu", "cuda"),
    "power_limit_w": ("gpu", "power_limit_w"),
    "sm_clock_most_mhz": ("gpu", "sm_clock_most_mhz"),
    "spsbench": ("environment", "spsbench"),
    "git": ("environment", "git"),
    "torch": ("environment", "libraries", "torch"),
}


def several_runs(runs: Sequence[Measured], names: Sequence[str]) -> Table:
    """One row per arm of every run; quality goes by the metric's name where all runs have the same."""
    metrics = [wording.headline_metric(measured.summary) for measured in runs]
    mixed = len(set(metrics)) > 1
    rows = []
    for name, measured, metric in zip(names, runs, metrics, strict=True):
        for row in measured.summary["rows"]:
            quality = wording.metric(metric, row["metrics"].get(metric)) if metric else wording.NOTHING
            if mixed and quality != wording.NOTHING:
                quality = f"{wording.metric_title(metric)} {quality}"
            rows.append({**row, "run": name, "quality": quality})
    title = "quality" if mixed else wording.metric_title(metrics[0])
    columns = [left("run", entry("run")), ARM, SAMPLING, right(title, entry("quality"))]
    return table_of([*columns, *TIMES, TOKENS], rows)


def differences(runs: Sequence[Measured], names: Sequence[str]) -> Table:
    """What makes the runs different experiments: a row per fact, its value in each run."""
    found = []
    for fact, path in _FACTS.items():
        values = [_shown(value(measured.run, *path)) for measured in runs]
        if len(set(values)) > 1:
            found.append([fact, *values])
    return Table([left("differs"), *map(left, names)], found)


def _shown(value: Any) -> str:
    if value is None:
        return wording.NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def side_by_side(runs: Sequence[Measured]) -> RenderableType:
    """The table for a terminal of 80 columns: runs go by letters, listed above it."""
    letters = [chr(ord("A") + place) if place < 26 else str(place + 1) for place in range(len(runs))]
    parts: list[RenderableType] = [Text()]
    for letter, run in zip(letters, runs, strict=True):
        name = wording.printable(run.name)
        parts.append(Text(f"{letter}  {name}: {wording.title(run.summary)}", overflow="fold"))
    parts += [Text(), several_runs(runs, letters)]
    different = differences(runs, letters)
    parts += [Text(), different] if different.rows else []
    return Group(*(Padding(part, (0, 1)) for part in parts), Text())
