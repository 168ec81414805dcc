"""The tables of a run's arms: all, by category, by engine, by batch size and K, and joules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spsbench.axes import EAGER, label, unusual
from spsbench.records import Interval
from spsbench.report import wording
from spsbench.report.tables import Cell, Column, Heading, Naming, Row, Styled, Table, in_full, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import (
    ArmEnergy,
    ArmRow,
    CategoryPart,
    CategoryRow,
    Energy,
    EngineOfArm,
    PaysUpTo,
    RatioInterval,
    Summary,
    Surface,
    SurfaceCell,
)


def results(arms: Sequence[ArmRow], metric: str | None, naming: Naming, *, intervals: bool = True) -> Table:
    """Quality, time per token and both speedups of every arm, in the shape of the paper's Table 1."""
    columns, cells = _decoding(arms, metric)
    whole = left("end to end", note="95%", whole=True) if intervals else right("end to end")
    columns.insert(-1, whole)

    def with_whole(arm: ArmRow) -> list[Cell]:
        found = cells(arm)
        found.insert(-1, _end_to_end(arm, intervals=intervals))
        return found

    return naming.table(columns, arms, with_whole)


def decoding(arms: Sequence[ArmRow] | Sequence[CategoryRow], metric: str | None, naming: Naming) -> Table:
    """The same without the end-to-end speedup."""
    columns, cells = _decoding(arms, metric)
    return naming.table(columns, arms, cells)


def _decoding(
    arms: Sequence[ArmRow] | Sequence[CategoryRow], metric: str | None
) -> tuple[list[Column], Callable[[ArmRow | CategoryRow], list[Cell]]]:
    """Columns, and an arm's cells in them."""
    scored = metric is not None
    known = any(wording.metric_ends(metric, arm)[0] is not None for arm in arms)
    columns = [
        *([right(wording.metric_title(metric), note="95%" if known else "")] if scored else []),
        right("ms/token"),
        left("speedup", note="95%", whole=True),
        right("tokens/loop"),
    ]

    def cells(arm: ArmRow | CategoryRow) -> list[Cell]:
        return [
            *([wording.quality(metric, arm)] if scored else []),
            _time(arm),
            _speedup(arm),
            wording.number(arm["tokens_per_loop"], 2),
        ]

    return columns, cells


def _end_to_end(arm: ArmRow, *, intervals: bool) -> str:
    """The cell of the end-to-end speedup; that of the baseline as in the speedup's own column."""
    found = arm["end_to_end_speedup"]
    if found is None:
        return wording.row_speedup(arm)
    return wording.speedup(found) if intervals else f"{found['ratio']:.2f}x"


def times(arms: Sequence[ArmRow], naming: Naming) -> Table:
    """Times alone, for the sequences that were measured under one of several conditions."""
    columns = [right("sequences"), right("ms/token"), left("speedup", note="95%", whole=True)]
    return naming.table(columns, arms, lambda arm: [str(arm["sequences"]), _time(arm), _speedup(arm)])


def acceptance(arms: Sequence[ArmRow], naming: Naming, *, rule: bool = False) -> Table:
    """The first measures of acceptance, and by which rule, of speculative arms."""
    columns = [right(name, code=True) for name in wording.FIRST_SCREEN]
    columns += [left("verification rule")] if rule else []

    def cells(arm: ArmRow) -> list[Cell]:
        found: list[Cell] = [*wording.first_screen(arm["acceptance"])]
        return [*found, arm["verification_rule"] or wording.NOTHING] if rule else found

    return naming.table(columns, arms, cells)


def _time(arm: ArmRow | CategoryRow) -> str:
    if arm["sequences"]:
        return wording.milliseconds(arm["ms_per_token"])
    return "failed" if arm["failed"] else "not run"


def _speedup(arm: ArmRow | CategoryRow) -> Cell:
    return coloured(wording.row_speedup(arm), arm["speedup"])


def coloured(text: str, found: RatioInterval | None) -> Cell:
    """A speedup's text, coloured only where its interval leaves no doubt; nothing depends on seeing it."""
    if found is None or found["low"] is None:
        return text
    low, high = wording.ends(found)
    style = "green" if low > 1.0 else "red" if high < 1.0 else ""
    return Styled(text, style) if style else text


def category_table(parts: Sequence[CategoryPart], metric: str | None, naming: Naming) -> Table:
    """The results of every arm under a heading for each category."""
    rows: list[Row | Heading] = []
    made = [(_category_title(part), decoding(part["rows"], metric, naming)) for part in parts]
    for title, own in made:
        groups = [row for row in own.rows if isinstance(row, Heading) and row.title]
        rows += [] if groups else [Heading(title)]
        for row in own.rows:
            if not isinstance(row, Heading):
                rows.append(row)
            elif row.title:
                rows.append(Heading(f"{title}, {row.title}"))
    return Table(made[0][1].columns, rows, names=made[0][1].names)


def categories(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The table of a run with several categories."""
    parts = summary.get("by_category") or []
    if not parts:
        return []
    made = category_table(parts, wording.headline_metric(summary), in_full())
    return ["## By category", "", *made.as_markdown()]


def _category_title(part: CategoryPart) -> str:
    name = "no category" if part["category"] is None else part["category"]
    return f"{name} ({part['prompts']} prompt{'' if part['prompts'] == 1 else 's'})"


ENGINES_NOTE = (
    "Speedup over the ArS of the arm's own engine, which says whether speculation pays there, and over the "
    "fastest ArS of the run, which says whether it is worth using."
)


def speculative(summary: Summary) -> list[ArmRow]:
    """The arms with two baselines: those that speculate, where the run has several engines."""
    rows = summary["rows"]
    several = len({row["engine"] for row in rows}) > 1
    return [row for row in rows if row["method"] == "sps"] if several else []


def baselines(rows: Sequence[ArmRow], naming: Naming) -> Table:
    """Each arm against the ArS of its own engine and against the fastest ArS of all."""
    columns = [
        left("over its own ArS", note="95%", whole=True),
        left("over the fastest", note="95%", whole=True),
    ]
    return naming.table(
        columns, rows, lambda row: [wording.speedup(row.get("own_speedup")), wording.speedup(row["speedup"])]
    )


def engine_notes(summary: Summary) -> list[str]:
    """Where external engines ran with other settings, and which of their times are unknown."""
    found = summary.get("engines")
    if found is None:
        return []
    unseen = ((engine["name"], clause) for engine in found["arms"] for clause in engine["unseen"])
    return [*found["unequal"], *_by_engine(unseen)]


def engines(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The report's section on engines; none for a run of one."""
    rows = speculative(summary)
    found = summary.get("engines")
    lines = ["", ENGINES_NOTE, "", *baselines(rows, in_full()).as_markdown()] if rows else []
    if found is not None:
        lines += ["", *_answered(summary, found["arms"]).as_markdown()]
        limits = ((engine["name"], limit) for engine in found["arms"] for limit in engine["limits"])
        notes = [*engine_notes(summary), *_by_engine(limits)]
        lines += ["", *(f"* {escape(text)}" for text in notes)] if notes else []
    return ["## Engines", *lines] if lines else []


def _answered(summary: Summary, engines: Sequence[EngineOfArm]) -> Table:
    """What answered for each arm, in which version and by which rule."""
    rows = {row["arm"]: row for row in summary["rows"]}
    cells = [
        [
            label(rows[engine["arm"]]),
            rows[engine["arm"]]["sampling"],
            " ".join([engine["name"], engine["version"] or wording.NOTHING]),
            engine["rule"] or wording.NOTHING,
        ]
        for engine in engines
        if engine["arm"] in rows
    ]
    return Table([left("arm"), left("sampling"), left("engine and version"), left("rule")], cells)


def _by_engine(notes: Iterator[tuple[str, str]]) -> list[str]:
    """Each sentence of an engine once, however many arms it answers for."""
    return list(dict.fromkeys(f"{name}: {text.rstrip('.')}." for name, text in notes))


def measured_energy(summary: Summary) -> Energy | None:
    """The energy of a run in which some was counted."""
    found = summary.get("energy")
    return found if found is not None and found["arms"] else None


def energy_table(arms: Sequence[ArmEnergy], naming: Naming) -> Table:
    """Joules per token of every arm, and over those of ArS."""
    columns = [
        left("J/token", note="95%", whole=True),
        left("of ArS", note="95%", whole=True),
        right("sequences"),
    ]
    return naming.table(columns, arms, _energy_cells)


def _energy_cells(arm: ArmEnergy) -> list[str]:
    return [_joules(arm), wording.speedup(arm["ratio"]), str(arm["sequences"])]


def _joules(arm: ArmEnergy) -> str:
    """Three digits or so: joules a token are below 1 on a CPU and above 100 for large models."""
    found = arm["joules_per_token"]
    if found["estimate"] >= 1 or found["low"] is None or found["high"] is None:
        return wording.interval(Interval(found["estimate"], found["low"], found["high"]))
    return f"{found['estimate']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def energy_note(found: Energy) -> str:
    """What the joules hold, and how finely they were counted."""
    step, length = found["update_s"], found["mean_sequence_s"]
    fine = ""
    if step is not None and length is not None:
        fine = f" The counter moves every {1e3 * step:.2g} ms, and a sequence took {1e3 * length:.3g} ms."
    return (
        f"Energy by {found['source']}, around each sequence with its prefill: its counterpart among the "
        f"times is the end-to-end speedup. It includes what idles and what others of the machine draw.{fine}"
    )


def energy(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The report's section; none for a run from before energy was looked for."""
    found = summary.get("energy")
    if found is None:
        return []
    if not found["arms"]:
        return [f"Energy: not known ({escape(found['reason'] or 'it was not counted')})."]
    notes = escape(" ".join([energy_note(found), *uncounted(summary)]))
    return ["## Energy", "", *energy_table(found["arms"], in_full()).as_markdown(), "", notes]


def uncounted(summary: Summary) -> list[str]:
    """A sentence that names the arms of which no joules are known, where others have some."""
    found = summary.get("energy")
    known = {arm["arm"] for arm in found["arms"]} if found is not None else set()
    others = [row["arm"] for row in summary["rows"] if row["arm"] not in known]
    if not known or not others:
        return []
    return [f"Not counted: {', '.join(others)}; an external engine may compute on another device or machine."]


SURFACES_NOTE = (
    "Speedup of SpS over ArS of the same batch size B. Tokens/s: of the whole batch while every row is "
    "taken. ms/token: what a sequence waits for each token. Both of SpS: at its fastest K."
)


def surfaces(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The section of report.md; nothing for a run of one batch size."""
    lines: list[str] = []
    for surface in summary.get("surfaces") or []:
        lines += [
            "",
            f"### {wording.escape(surface_title(surface))}",
            "",
            *surface_table(surface).as_markdown(),
        ]
        lines += [line for text in surface_sentences(surface) for line in ("", wording.escape(text))]
    return ["## Batches", "", wording.escape(SURFACES_NOTE), *lines] if lines else []


def surface_title(surface: Surface) -> str:
    """What the surface is of, beside batch size and K."""
    engine = [] if surface["engine"] == EAGER else [f"@{surface['engine']}"]
    return ", ".join(
        ["Speedup by batch size", surface["sampling"], *unusual({"method": "sps", **surface}), *engine]
    )


def surface_table(surface: Surface, *, intervals: bool = True) -> Table:
    """A row a batch size, a column a K; without intervals it fits on a screen."""
    ks = sorted({cell["k"] for cell in surface["cells"]} - {0})
    columns = [right("B"), right("ArS tokens/s"), right("ms/token")]
    columns += [left(f"K={k}", note="95%", whole=True) if intervals else right(f"K={k}") for k in ks]
    columns += [right("SpS tokens/s"), right("ms/token")]
    return Table(columns, [_row(batch, surface, ks, intervals=intervals) for batch in batch_sizes(surface)])


def batch_sizes(surface: Surface) -> list[int]:
    """The batch sizes, ascending."""
    return sorted({cell["batch"] for cell in surface["cells"]})


def _row(batch: int, surface: Surface, ks: list[int], *, intervals: bool) -> list[Cell]:
    cells = {cell["k"]: cell for cell in surface["cells"] if cell["batch"] == batch}
    speculative = [cells[k] for k in ks if k in cells]
    best = max(speculative, key=lambda cell: cell["tokens_per_s"], default=None)
    return [
        str(batch),
        *_rates(cells.get(0)),
        *(_surface_speedup(cells.get(k), intervals=intervals) for k in ks),
        *_rates(best),
    ]


def _rates(cell: SurfaceCell | None) -> tuple[str, str]:
    if cell is None:
        return wording.NOTHING, wording.NOTHING
    return f"{cell['tokens_per_s']:,.0f}", wording.milliseconds(cell["latency_ms_per_token"])


def _surface_speedup(cell: SurfaceCell | None, *, intervals: bool) -> Cell:
    found = None if cell is None else cell["speedup"]
    text = wording.speedup(found) if intervals or found is None else f"{found['ratio']:.2f}x"
    return coloured(text, found)


def surface_sentences(surface: Surface) -> list[str]:
    """Up to which batch size each K pays, and whether batches write what batch size 1 writes."""
    largest = batch_sizes(surface)[-1]
    lines = [" ".join(_pays(line, largest) for line in surface["pays_up_to"])]
    return [*lines, *_same_tokens(surface)]


def _same_tokens(surface: Surface) -> list[str]:
    compared = [cell for cell in surface["cells"] if cell["batch"] > 1 and cell["as_alone"] is not None]
    if not compared:
        return []
    same = sum(cell["as_alone"] or 0 for cell in compared)
    of = sum(cell["compared"] for cell in compared)
    if same == of:
        return [f"Outputs of batches are identical to those of batch size 1 on all {of:,}."]
    return [
        f"{of - same:,} of {of:,} outputs of batches differ from those of batch size 1. Forwards of more "
        "rows may round otherwise; what the evidence says of each arm stands under losslessness."
    ]


def _pays(line: PaysUpTo, largest: int) -> str:
    k, batch = line["k"], line["batch"]
    if line["beyond"]:
        least = "" if line["low"] is None else f" (at least B = {line['low']:.3g}, 95%)"
        return f"K={k} pays up to the largest batch, {largest}{least}."
    if batch is None:
        return f"Of K={k} it is not known."
    if batch == 0:
        return f"K={k} pays at no batch size."
    return f"K={k} pays up to B = {batch:.3g}{_ends(line, largest)}."


def _ends(line: PaysUpTo, largest: int) -> str:
    if line["low"] is None:
        return ""
    high = f"beyond {largest}" if line["high"] is None else f"{line['high']:.3g}"
    return f" [{line['low']:.3g}, {high}]"
