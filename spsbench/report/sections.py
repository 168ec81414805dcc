"""One list of sections, from which report.md, a terminal's screen and the page's parts are made.

A section takes the summary and answers its lines, or none where it has nothing to say; report.md's also
know the run's own record, the screen's the columns that there are.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from spsbench.base.axes import Row, label
from spsbench.report import facts, judgement, results, why, wording
from spsbench.report.messages import runs as said
from spsbench.report.tables import (
    ARM,
    IN_FULL,
    SCREEN_WIDTH,
    Naming,
    Styled,
    Table,
    entry,
    fitting,
    left,
    paragraphs,
    right,
)
from spsbench.report.wording import Run, escape, fence, full_name
from spsbench.stats.acceptance import PER_POSITION
from spsbench.stats.certainty import OVER_TIME
from spsbench.stats.conditions import contention_reasons, disturbance
from spsbench.stats.messages import LEGEND
from spsbench.stats.messages.timings import contention_named
from spsbench.stats.predict.costs import one_launch
from spsbench.stats.summary import PHASES
from spsbench.store.summary_types import ArmRow, Summary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from spsbench.report.figures import Gallery

Block = list["RenderableType"]
"""Lines of a screen, with an empty one around them."""

FOLDER = "figures"


def render(summary: Summary, run: Run) -> str:
    """The report as GitHub renders it."""
    return "\n\n".join("\n".join(block) for block in markdown(summary, run)) + "\n"


def markdown(summary: Summary, run: Run, *, setup: bool = True) -> list[list[str]]:
    """The lines of every section of report.md; without the setup for a page, which shows it otherwise."""
    sections = (made for made, _ in SECTIONS if made is not None and (setup or made is not facts.setup))
    return [lines for section in sections if (lines := section(summary, run))]


def show(summary: Summary, console: Console) -> None:
    """Print a run's summary; reads well without colour, in 80 columns, and in fewer and more."""
    console.print(screen(summary, console.width))


def screen(summary: Summary, width: int = SCREEN_WIDTH) -> RenderableType:
    """Heading, verdict, tables, proof, reasons, acceptance and warnings, for so many columns."""
    blocks: Iterable[Block] = [[_title(summary, "")], [Text(said.NOTHING_MEASURED)]]
    if summary["rows"]:
        blocks = (block for _, made in SECTIONS if made for block in made(summary, width - 2))
    parts: list[RenderableType] = [Text()]
    for block in blocks:
        parts += [*(Padding(part, (0, 1, 0, 1)) for part in block), *([Text()] if block else [])]
    return Group(*parts)


def _heading(summary: Summary, run: Run) -> list[str]:
    lines = [f"# {escape(wording.title(summary))}", ""]
    notes = [*judgement.alarms(summary), *judgement.doubted_times(summary), *judgement.weak(summary)]
    lines += [f"**{escape(text)}**  " for text in notes]
    for answer, beside in why.verdicts(summary):
        lines.append(f"**{escape(answer)}** {escape(beside)}".rstrip() + "  ")
    if contention := disturbance(summary):
        lines.append(f"**{escape(contention)}**  ")
    lines += [f"{escape(text)}  " for text in judgement.losslessness(summary)]
    lines += [f"Engine {escape(engine)}.  "] if (engine := summary.get("engine")) else []
    return [*lines, "", wording.SYNTHETIC] if summary.get("synthetic") else lines


def _results(summary: Summary, run: Run) -> list[str]:
    rows = summary["rows"]
    if not rows:
        return paragraphs("## Results", said.NOTHING_MEASURED)
    table = IN_FULL.table(results.arm_columns(rows, wording.headline_metric(summary)), rows)
    notes = [*results.rolling_back(summary), *facts.stopping(summary), *facts.data_notes(summary)]
    return paragraphs("## Results", table, *map(escape, notes))


def _details(summary: Summary, run: Run) -> list[str]:
    rows = summary["rows"]
    scored = [row for row in rows if row["metrics"]]
    metrics = list(dict.fromkeys(name for row in scored for name in row["metrics"]))
    qualities = [right(wording.metric_title(name), partial(wording.quality, name)) for name in metrics]
    looped = [row for row in rows if row["loop_time"]]
    named = (name.removesuffix("_ms") for row in looped for name in row["loop_time"] or ())
    phases = (*PHASES[:-1], *dict.fromkeys(name for name in named if name not in PHASES), PHASES[-1])
    loops = [
        *(right(f"{phase} ms", partial(_phase, phase)) for phase in phases),
        left("target mode", lambda row: row["target_mode"] or wording.NOTHING),
        left("draft mode", lambda row: row["draft_mode"] or wording.NOTHING),
    ]
    tables = {
        "### All metrics": (qualities, scored if len(metrics) > 1 else [], ""),
        "### Timing": (TIMING, rows, ""),
        "### Mean time of a loop": (loops, looped, _at_once(looped)),
    }
    parts: list[str | Table] = []
    for title, (columns, shown, note) in tables.items():
        parts += [title, IN_FULL.table(columns, shown), *([note] if note else [])] if shown else []
    return paragraphs("## Details", *parts) if parts else []


def _at_once(rows: Sequence[ArmRow]) -> str:
    """Of which arms `verify` is more than the forward; empty where of none."""
    these = [row for row in rows if one_launch(row)]
    if not these:
        return ""
    named = these if len(these) < len(rows) else []
    return str(said.ForwardHoldsDraws(tuple(escape(full_name(row)) for row in named)))


def _half(place: int, row: Row) -> str:
    return wording.number((row["speedup_halves"] or (None, None))[place], 2)


def _phase(phase: str, row: Row) -> str:
    return wording.milliseconds(wording.phase_ms(row["loop_time"], phase))


TIMING = (
    right("sequences", entry("sequences")),
    right("failed", entry("failed")),
    right("tokens", entry("tokens")),
    right("speedup, first half", partial(_half, 0)),
    right("second half", partial(_half, 1)),
    right("prompts slower", entry("share_slower", wording.percent)),
    right("peak memory", entry("peak_memory_bytes", wording.mebibytes)),
)


def _acceptance(summary: Summary, run: Run) -> list[str]:
    rows = [row for row in summary["rows"] if row["acceptance"]]
    if not rows:
        return []
    rule = left("verification rule", lambda row: row["verification_rule"] or wording.NOTHING)
    columns = [left("name"), *(right(full_name(row)) for row in rows)]
    found: list[Mapping[str, Any]] = [row["acceptance"] for row in rows if row["acceptance"]]
    cells = [
        [name, *(f"{_value(name, own[name])} / {_value(name, own['macro'][name])}" for own in found)]
        for name in LEGEND
    ]
    known = any(map(wording.has_optimum, rows))
    return paragraphs(
        "## Acceptance",
        IN_FULL.table([*results.acceptance_columns(rows), rule], rows),
        *([said.OPTIMUM_NOTE] if known else []),
        *("### Every name", said.BOTH_MEANS, Table(columns, cells)),
        *("### Legend", [f"* `{name}`: {escape(text)}" for name, text in LEGEND.items()]),
    )


def _value(name: str, value: Any) -> str:
    if name in PER_POSITION:
        return " ".join(wording.number(part, 2) for part in value)
    return wording.number(value, 3)


def _caveats(summary: Summary, run: Run) -> list[str]:
    stopping, reasons = summary.get("stopping"), contention_reasons(summary)
    contention = contention_named(reasons)
    taken = [said.ContentionReason(contention, reason) for reason in reasons]
    lines = [
        *map(escape, [*facts.repeated(summary), *summary["warnings"], *taken]),
        said.POOLED_TIME,
        said.EQUAL_METRICS,
    ]
    speedups = [row["speedup"] for row in summary["rows"]]
    if any(found and found["low"] is not None for found in speedups):  # busy machines give none
        whose = "the shards'" if run.get("shards") else "the run's"
        interval = said.IntervalOfSpeedup(
            anytime=bool(stopping and stopping["anytime"]),
            processes=any(row.get("processes", 1) > 1 for row in summary["rows"]),
            over_time=whose if run.get("interval") == OVER_TIME else None,
            contention=contention if reasons else None,
        )
        lines.append(str(interval))
    return paragraphs("## Caveats", [f"* {line}" for line in lines])


def _environment(summary: Summary, run: Run) -> list[str]:
    rows = [pair for pair in _flat(run.get("environment") or {}) if pair[0] != "command"]
    rows += _flat(run.get("gpu") or {}, "gpu")
    rows += [("sha256 of all token ids", digest)] if (digest := summary.get("token_sha256")) else []
    return paragraphs("## Environment", Table([left("what"), left("value")], rows)) if rows else []


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested mappings under dotted names; what is unknown is left out."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield name, f"{value:.6g}" if isinstance(value, float) else str(value)


def _reproduce(summary: Summary, run: Run) -> list[str]:
    command = run.get("command") or (run.get("environment") or {}).get("command")
    text = command if isinstance(command, str) else shlex.join(map(str, command or ()))
    program, space, rest = text.partition(" ")
    if PurePath(program).name in ("spsbench", "__main__.py"):  # where it lies says nothing to other readers
        text = f"spsbench{space}{rest}"
    return paragraphs("## Reproduce", fence(text)) if command else []


def figures(summary: Summary, run: Run) -> list[str]:
    """The figures of the record's ``gallery``, and which could not be drawn; nothing without one."""
    gallery: Gallery | None = run.get("gallery")
    if gallery is None:
        return []
    parts: list[str | list[str]] = []
    for plate in gallery.plates:
        title = escape(plate.title)
        parts += [f"### {title}", f"![{title}]({FOLDER}/{plate.name}.svg)", escape(plate.caption)]
    if gallery.left_out:
        left_out = [f"* {escape(title)}: {escape(reason)}." for title, reason in gallery.left_out]
        parts += ["Not drawn:", left_out]
    return paragraphs("## Figures", *parts) if parts else []


def _heading_screen(summary: Summary, room: int) -> Iterator[Block]:
    yield [_title(summary, _table(summary, room)[1].common)]
    first = [*judgement.alarms(summary), *judgement.doubted_times(summary)]
    yield [_text(line, "bold red") for line in first]
    verdict: Block = []
    for sentence, beside in why.verdicts(summary):
        verdict += [_text(sentence, "bold"), *([_text(beside)] if beside else [])]
    if contention := disturbance(summary):
        verdict.append(_text(contention, "bold red" if contention.hides_answer else "yellow"))
    yield [*verdict, *(_text(line, "bold") for line in judgement.weak(summary))]


def _title(summary: Summary, common: str) -> RenderableType:
    text = Text(wording.title(summary), style="bold")
    details = [models] if (models := wording.models(summary)) else []
    if gpu := summary.get("gpu"):
        details = [f"{' '.join([*details, 'on'])} {wording.printable(gpu['device'])}"]
    details.append(wording.counted(facts.prompts(summary), "prompt"))
    details += [tags] if (tags := wording.tags(summary)) else []
    details += [wording.printable(common)] if common else []
    details += [f"engine {wording.printable(engine)}"] if (engine := summary.get("engine")) else []
    if length := summary.get("fixed_length"):
        details.append(str(said.OutputLength(length)))
    return text.append(", " + ", ".join(details), style="not bold dim")


def _table(summary: Summary, room: int) -> tuple[Table, Naming]:
    """The table of all arms; where names take the room, without the end-to-end speedup."""
    rows, metric = summary["rows"], wording.headline_metric(summary)
    whole, shorter = (
        fitting(rows, results.arm_columns(rows, metric, end_to_end), room) for end_to_end in ("ratio", None)
    )
    return next((made for made in (whole, shorter) if made[0].least_width() <= room), whole)


def _results_screen(summary: Summary, room: int) -> Iterator[Block]:
    table, _ = _table(summary, room)
    yield [table]
    whole = results.arm_columns(summary["rows"], wording.headline_metric(summary), "ratio")
    gone = {column.title for column in whole} - {column.title for column in table.columns}
    yield _dim(map(said.ColumnTooWide, sorted(gone)))
    yield _dim(results.further_passes(summary))
    yield _dim(results.rolling_back(summary))
    if all(row["method"] == "ars" for row in summary["rows"]):
        yield _dim([said.NO_ARM_SPECULATES])
    if conditions := summary.get("conditions") or []:
        yield [_text(facts.conditions_sentence(summary), "bold")]
    for found, title in zip(conditions, facts.condition_titles(summary), strict=True):
        yield [_text(title), fitting(found["rows"], results.CONDITION, room)[0]]
    yield _dim(facts.stopping(summary))


def _surfaces_screen(summary: Summary, room: int) -> Iterator[Block]:
    for surface in summary.get("surfaces") or []:
        table = results.surface_table(surface, intervals=False)
        yield [_text(results.surface_title(surface)), table, *_dim(results.surface_sentences(surface))]


def _engines_screen(summary: Summary, room: int) -> Iterator[Block]:
    if rows := results.speculative(summary):
        yield [fitting(rows, results.BASELINES, room)[0]]
    yield _dim(results.engine_notes(summary))
    if (found := summary.get("energy")) and found["arms"]:
        yield [fitting(found["arms"], results.ENERGY, room)[0], *_dim([said.EnergyCounted(found)])]


def _categories_screen(summary: Summary, room: int) -> Iterator[Block]:
    if parts := summary.get("by_category") or []:
        rows, columns = results.by_category(parts, wording.headline_metric(summary))
        yield [*_dim(["By category."]), fitting(rows, columns, room)[0]]


def _turns_screen(summary: Summary, room: int) -> Iterator[Block]:
    if parts := summary.get("by_turn") or []:
        rows, columns = results.by_turn(parts, wording.headline_metric(summary))
        yield [*_dim(["By turn."]), fitting(rows, columns, room)[0], *_dim([said.TURNS_NOTE])]


def _sentences(*makers: Callable[[Summary], list[str]]) -> Callable[[Summary, int], Iterator[Block]]:
    return lambda summary, room: iter([[_text(line) for make in makers for line in make(summary)]])


def _acceptance_screen(summary: Summary, room: int) -> Iterator[Block]:
    """One line for one arm; a small table, with the names on top, for several."""
    arms = [row for row in summary["rows"] if row["acceptance"]]
    if len(arms) > 1:
        named = Naming() if len({row["sampling"] for row in arms}) > 1 else Naming((ARM,))
        yield [fitting(arms, results.acceptance_columns(arms), room, named)[0]]
    for row in arms if len(arms) == 1 else ():
        measures = [f"{name} {wording.measure(name, row)}" for name in wording.FIRST_SCREEN]
        if row.get("nodes_per_loop"):
            measures.append(f"nodes/loop {wording.nodes(row)}")
        if wording.has_optimum(row):
            measures.append(f"share of optimum {wording.share_of_optimum(row)}")
        yield [Text("  ".join(measures))]
    yield _dim(judgement.above_optimum(summary))


def _caveats_screen(summary: Summary, room: int) -> Iterator[Block]:
    for text in facts.data_notes(summary):
        yield _dim([text])
    verified = [(row, rule) for row in summary["rows"] if (rule := row["verification_rule"])]
    ways = {(label(row), rule) for row, rule in verified}
    samplings = {row["sampling"] for row, _ in verified}
    by_sampling = len(samplings) > 1 and len({arm for arm, _ in ways}) < len(ways)
    name = wording.full_name if by_sampling else label  # beam search has a rule of its own
    arms: dict[str, list[str]] = {}
    for row, rule in verified:
        arms.setdefault(rule, []).append(name(row))
    lines = []
    for rule, own in arms.items():  # acceptance under different rules is not on one scale
        different = list(dict.fromkeys(own))
        many = len(different) > wording.MANY
        verify = "verifies" if len(different) == 1 else "verify"
        lines.append(f"{f'{len(own)} arms' if many else ', '.join(different)} {verify} by: {rule}")
    if len(lines) > 1:
        yield _dim(lines)
    yield _dim(facts.repeated(summary))
    if warnings := summary["warnings"]:
        marked = [(Styled("!", "yellow"), text) for text in warnings]
        yield [Table([left(whole=True), left()], marked, gap=1)]
    digest = summary.get("token_sha256")
    yield _dim([said.TokensHashed(digest[:16])] if digest else [])  # as --expect takes it


def _dim(lines: Iterable[object]) -> Block:
    return [_text(line, "dim") for line in lines]


def _text(value: object, style: str = "") -> Text:
    return Text(wording.printable(str(value)), style=style)


class Section(NamedTuple):
    """What report.md says of a subject, and what a screen; None where one says nothing or elsewhere."""

    report: Callable[[Summary, Run], list[str]] | None = None
    screen: Callable[[Summary, int], Iterator[Block]] | None = None


SECTIONS = (
    Section(_heading, _heading_screen),
    Section(facts.setup),
    Section(_results, _results_screen),
    Section(results.surfaces, _surfaces_screen),
    Section(results.engines, _engines_screen),
    Section(results.categories, _categories_screen),
    Section(results.turns, _turns_screen),
    Section(results.conditions),
    Section(figures),
    Section(
        judgement.losslessness_section,
        _sentences(judgement.losslessness, judgement.parity, judgement.advantages),
    ),
    Section(judgement.parity_section),
    Section(why.which),
    Section(why.why, _sentences(judgement.sentences)),
    Section(why.theory),
    Section(why.ceiling),
    Section(why.hindsight),
    Section(_acceptance, _acceptance_screen),
    Section(_details),
    Section(why.positions),
    Section(why.tails),
    Section(results.energy),
    Section(_caveats, _caveats_screen),
    Section(facts.workers),
    Section(_environment),
    Section(_reproduce),
)
