"""One list of sections, from which report.md, a terminal's screen and the page's parts are made.

A section takes the summary and answers its lines, or none where it has nothing to say; report.md's also
know the run's own record, the screen's the columns that there are.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from spsbench.axes import label
from spsbench.report import facts, judgement, results, why, wording
from spsbench.report.tables import SCREEN_WIDTH, Naming, Styled, Table, fitting, in_full, left, right
from spsbench.report.wording import escape, fence
from spsbench.stats.acceptance import LEGEND, PER_POSITION
from spsbench.summary import COMM, PHASES
from spsbench.summary_types import ArmRow, Summary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from spsbench.report.figures import Gallery

Run = Mapping[str, Any]
Block = list["RenderableType"]
"""Lines of a screen, with an empty one around them."""

FOLDER = "figures"

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
    blocks: Iterable[Block] = [[_title(summary, "")], [Text("Nothing was measured.")]]
    if summary["rows"]:
        blocks = (block for _, made in SECTIONS if made for block in made(summary, width - 2))
    parts: list[RenderableType] = [Text()]
    for block in blocks:
        parts += [*(Padding(part, (0, 1, 0, 1)) for part in block), *([Text()] if block else [])]
    return Group(*parts)


def _heading(summary: Summary, run: Run) -> list[str]:
    lines = [f"# {escape(wording.title(summary))}"]
    notes = [*facts.untrusted(summary), *judgement.alarms(summary), *judgement.headline(summary)]
    lines += ["", *(f"**{escape(text)}**  " for text in notes)]
    lines += [
        f"**{escape(answer)}** {escape(beside)}".rstrip() + "  " for answer, beside in why.verdicts(summary)
    ]
    lines += [f"{escape(text)}  " for text in judgement.losslessness(summary)]
    if summary.get("synthetic"):
        lines += ["", wording.SYNTHETIC]
    return lines


def _results(summary: Summary, run: Run) -> list[str]:
    rows = summary["rows"]
    if not rows:
        return ["## Results", "", "Nothing was measured."]
    table = results.results(rows, wording.headline_metric(summary), in_full())
    notes = [text for text in (wording.extraction(summary), wording.left_out(summary)) if text]
    notes = [*facts.stopping(summary), *notes, *wording.signatures(summary)]
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
    lines = ["## Acceptance", "", *results.acceptance(rows, in_full(), rule=True).as_markdown()]
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
    lines = [*map(escape, facts.further_warnings(summary)), *STANDING_CAVEATS, interval]
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


def described(gallery: Gallery) -> dict[str, Any]:
    """What ``figures`` needs to know of a gallery, to be given to ``render`` within the run's record."""
    return {
        "figures": [
            {"name": plate.name, "title": plate.title, "caption": plate.caption} for plate in gallery.plates
        ],
        "figures_left_out": [list(pair) for pair in gallery.left_out],
    }


def figures(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """Each figure with its caption, and which could not be drawn; nothing where none was asked for."""
    drawn, left_out = run.get("figures") or [], run.get("figures_left_out") or []
    if not drawn and not left_out:
        return []
    lines = ["## Figures"]
    for plate in drawn:
        lines += ["", f"### {escape(plate['title'])}", ""]
        lines += [f"![{escape(plate['title'])}]({FOLDER}/{plate['name']}.svg)", "", escape(plate["caption"])]
    if left_out:
        lines += ["", "Not drawn:", ""]
        lines += [f"* {escape(title)}: {escape(reason)}." for title, reason in left_out]
    return lines


def _heading_screen(summary: Summary, room: int) -> Iterator[Block]:
    """What was measured, what may not be trusted, and whether it pays and with which arm."""
    yield [_title(summary, _table(summary, room)[1].common)]
    for line in facts.untrusted(summary):
        yield [_text(line, "bold red")]
    yield [_text(line, "bold red") for line in judgement.alarms(summary)]
    verdict: Block = []
    for sentence, beside in why.verdicts(summary):
        verdict += [_text(sentence, "bold"), *([_text(beside)] if beside else [])]
    yield [*verdict, *(_text(line, "bold") for line in judgement.headline(summary))]


def _title(summary: Summary, common: str) -> RenderableType:
    """What was measured, and what all arms have in common where the table does not say it of each."""
    text = Text(wording.title(summary), style="bold")
    details = [f"pair {wording.printable(str(summary['pair']))}"] if summary.get("pair") else []
    prompts = max((row["prompts"] for row in summary["rows"]), default=0)
    details.append(f"{prompts} prompt{'s' if prompts != 1 else ''}")
    details += [wording.printable(common)] if common else []
    return text.append(", " + ", ".join(details), style="not bold dim")


def _table(summary: Summary, room: int) -> tuple[Table, Naming]:
    """The table of all arms; where names take the room, without the end-to-end speedup."""
    rows, metric = summary["rows"], wording.headline_metric(summary)
    whole = fitting(rows, partial(results.results, rows, metric, intervals=False), in_full(), room)
    shorter = fitting(rows, partial(results.decoding, rows, metric), in_full(), room)
    return next((made for made in (whole, shorter) if made[0].least_width() <= room), whole)


def _results_screen(summary: Summary, room: int) -> Iterator[Block]:
    """The table, one of times for each of several conditions, and how the run ended."""
    yield [_table(summary, room)[0].as_rich()]
    if entries := summary.get("conditions") or []:
        yield [_text(facts.conditions_sentence(summary), "bold")]
    for entry, title in zip(entries, facts.condition_titles(summary), strict=True):
        table, _ = fitting(entry["rows"], partial(results.times, entry["rows"]), in_full(), room)
        yield [_text(title), table.as_rich()]
    yield _dim(facts.stopping(summary))


def _surfaces_screen(summary: Summary, room: int) -> Iterator[Block]:
    for surface in summary.get("surfaces") or []:
        table = results.surface_table(surface, intervals=False)
        sentences = _dim(results.surface_sentences(surface))
        yield [_text(results.surface_title(surface)), table.as_rich(), *sentences]


def _engines_screen(summary: Summary, room: int) -> Iterator[Block]:
    """Both baselines where there are several engines, what was not equal between them, and joules."""
    if rows := results.speculative(summary):
        yield [fitting(rows, partial(results.baselines, rows), in_full(), room)[0].as_rich()]
    yield _dim(results.engine_notes(summary))
    if found := results.measured_energy(summary):
        table, _ = fitting(found["arms"], partial(results.energy_table, found["arms"]), in_full(), room)
        yield [table.as_rich(), *_dim([results.energy_note(found)])]


def _categories_screen(summary: Summary, room: int) -> Iterator[Block]:
    if parts := summary.get("by_category") or []:
        make = partial(results.category_table, parts, wording.headline_metric(summary))
        yield [*_dim(["By category."]), fitting(summary["rows"], make, in_full(), room)[0].as_rich()]


def _belief_screen(summary: Summary, room: int) -> Iterator[Block]:
    calm = [*judgement.losslessness(summary), *judgement.parity(summary), *judgement.advantages(summary)]
    yield [_text(line) for line in calm]


def _why_screen(summary: Summary, room: int) -> Iterator[Block]:
    yield [_text(line) for line in judgement.sentences(summary)]


def _acceptance_screen(summary: Summary, room: int) -> Iterator[Block]:
    """One line for one arm; a small table, with the names on top, for several."""
    arms = [row for row in summary["rows"] if row["acceptance"]]
    if len(arms) > 1:
        naming = in_full(sampling=len({row["sampling"] for row in arms}) > 1)
        yield [fitting(arms, partial(results.acceptance, arms), naming, room)[0].as_rich()]
    for row in arms if len(arms) == 1 else ():
        values = zip(wording.FIRST_SCREEN, wording.first_screen(row["acceptance"]), strict=True)
        yield [Text("  ".join(map(" ".join, values)))]


def _caveats_screen(summary: Summary, room: int) -> Iterator[Block]:
    """What was run and left out, how metrics were computed, by which rules, warnings, the tokens' hash."""
    found = [text for text in (wording.extraction(summary), wording.left_out(summary)) if text]
    for text in [*found, *wording.signatures(summary)]:
        yield _dim([text])
    arms: dict[str, list[str]] = {}
    for row in summary["rows"]:
        if row["verification_rule"]:
            arms.setdefault(row["verification_rule"], []).append(label(row))
    if len(arms) > 1:  # acceptance under different rules is not on one scale
        yield _dim([f"{_counted(own)} by: {rule}" for rule, own in arms.items()])
    if warnings := facts.further_warnings(summary):
        lines = Table([left(whole=True), left()], [[Styled("!", "yellow"), text] for text in warnings])
        yield [lines.as_rich(gap=1)]
    yield _dim([digest] if (digest := facts.token_hash(summary)) else [])


def _counted(labels: list[str]) -> str:
    """Who verifies: the arms by their labels, or how many they are."""
    different = list(dict.fromkeys(labels))
    if len(different) > wording.MANY:
        return f"{len(labels)} arms verify"
    return f"{', '.join(different)} {'verifies' if len(different) == 1 else 'verify'}"


def _dim(lines: Iterable[str]) -> Block:
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
    Section(facts.conditions),
    Section(figures),
    Section(judgement.losslessness_section, _belief_screen),
    Section(judgement.parity_section),
    Section(why.which),
    Section(why.why, _why_screen),
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
