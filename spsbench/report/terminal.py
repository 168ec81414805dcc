"""The first screen: the verdict, then one calm table in the shape of the paper's Table 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from spsbench.axes import label
from spsbench.report import (
    categories,
    conditions,
    energy,
    engines,
    judgement,
    stopping,
    surfaces,
    verdict,
    wording,
)
from spsbench.report.naming import Naming, fitting, in_full
from spsbench.report.results import acceptance, decoding, results, times
from spsbench.report.tables import SCREEN_WIDTH, Styled, Table, left
from spsbench.summary_types import ArmRow, Summary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_INDENT = (0, 1, 0, 1)


def show(summary: Summary, console: Console) -> None:
    """Print a run's summary; reads well without colour, in 80 columns, and in fewer and more."""
    console.print(screen(summary, console.width))


def screen(summary: Summary, width: int = SCREEN_WIDTH) -> RenderableType:
    """Heading, verdict, tables, proof, reasons, acceptance and warnings, for so many columns."""
    rows, room = summary["rows"], width - 2
    if not rows:
        return _spaced([[_heading(summary, "")], [Text("Nothing was measured.")]])
    table, naming = _results(summary, room)
    return _spaced(
        [
            [_heading(summary, naming.common)],
            *([_text(line, style="bold red")] for line in conditions.untrusted(summary)),
            [_text(line, style="bold red") for line in judgement.alarms(summary)],
            _verdict(summary),
            [table.as_rich()],
            *_by_condition(summary, room),
            _dim(stopping.sentences(summary)),
            *_surfaces(summary),
            *_engines(summary, room),
            _energy(summary, room),
            _categories(summary, room),
            _judgements(summary),
            _reasons(summary),
            _acceptance(rows, room),
            *_remarks(summary),
            _rules(rows),
            _warnings(summary),
            _dim([digest] if (digest := conditions.token_hash(summary)) else []),
        ]
    )


def _results(summary: Summary, room: int) -> tuple[Table, Naming]:
    """The table of all arms; where names take the room, without the end-to-end speedup."""
    rows, metric = summary["rows"], wording.headline_metric(summary)
    whole = fitting(rows, partial(results, rows, metric, intervals=False), in_full(), room)
    shorter = fitting(rows, partial(decoding, rows, metric), in_full(), room)
    return next((made for made in (whole, shorter) if made[0].least_width() <= room), whole)


def _spaced(blocks: Iterable[Sequence[RenderableType]]) -> RenderableType:
    """Blocks of lines with an empty line around each."""
    parts: list[RenderableType] = [Text()]
    for block in blocks:
        parts += [*(Padding(part, _INDENT) for part in block), *([Text()] if block else [])]
    return Group(*parts)


def _verdict(summary: Summary) -> list[RenderableType]:
    """Whether it pays and with which arm; nothing where times are not to be trusted."""
    lines: list[RenderableType] = []
    for sentence, beside in verdict.verdicts(summary):
        lines += [_text(sentence, style="bold"), *([_text(beside)] if beside else [])]
    return [*lines, *(_text(line, style="bold") for line in judgement.headline(summary))]


def _by_condition(summary: Summary, room: int) -> Iterator[list[RenderableType]]:
    """A table of times for each of several conditions; nothing for a run of one."""
    entries = summary.get("conditions") or []
    if entries:
        yield [_text(conditions.sentence(summary), style="bold")]
    for entry, title in zip(entries, conditions.titles(summary), strict=True):
        rows = entry["rows"]
        table, _ = fitting(rows, partial(times, rows), in_full(), room)
        yield [_text(title), table.as_rich()]


def _heading(summary: Summary, common: str) -> RenderableType:
    """What was measured, and what all arms have in common where the table does not say it of each."""
    text = Text(wording.title(summary), style="bold")
    details = []
    if summary.get("pair"):
        details.append(f"pair {wording.printable(str(summary['pair']))}")
    prompts = max((row["prompts"] for row in summary["rows"]), default=0)
    details.append(f"{prompts} prompt{'s' if prompts != 1 else ''}")
    details += [wording.printable(common)] if common else []
    text.append(", " + ", ".join(details), style="not bold dim")
    return text


def _engines(summary: Summary, room: int) -> Iterator[list[RenderableType]]:
    """Both baselines where there are several engines, and what was not equal between them."""
    rows = engines.speculative(summary)
    if rows:
        yield [fitting(rows, partial(engines.baselines, rows), in_full(), room)[0].as_rich()]
    yield _dim(engines.foot(summary))


def _energy(summary: Summary, room: int) -> list[RenderableType]:
    """Joules per token, where they were counted."""
    found = energy.measured(summary)
    if found is None:
        return []
    arms = found["arms"]
    table, _ = fitting(arms, partial(energy.table, arms), in_full(), room)
    return [table.as_rich(), *_dim([energy.note(found)])]


def _acceptance(rows: Sequence[ArmRow], room: int) -> list[RenderableType]:
    """One line for one arm; a small table, with the names on top, for several."""
    arms = [row for row in rows if row["acceptance"]]
    if len(arms) > 1:
        several = len({row["sampling"] for row in arms}) > 1
        return [fitting(arms, partial(acceptance, arms), in_full(sampling=several), room)[0].as_rich()]
    values = [wording.first_screen(row["acceptance"]) for row in arms]
    return [Text("  ".join(map(" ".join, zip(wording.FIRST_SCREEN, own, strict=True)))) for own in values]


def _reasons(summary: Summary) -> list[RenderableType]:
    """Why it is not faster."""
    return [_text(line) for line in judgement.sentences(summary)]


def _judgements(summary: Summary) -> list[RenderableType]:
    """Whether to believe the table: losslessness, and parity of quality."""
    calm = [*judgement.losslessness(summary), *judgement.parity(summary), *judgement.advantages(summary)]
    return [_text(line) for line in calm]


def _categories(summary: Summary, room: int) -> list[RenderableType]:
    """The table once more by category, where there are several."""
    parts = summary.get("by_category") or []
    if not parts:
        return []
    make = partial(categories.table, parts, wording.headline_metric(summary))
    table, _ = fitting(summary["rows"], make, in_full(), room)
    return [*_dim(["By category."]), table.as_rich()]


def _surfaces(summary: Summary) -> Iterator[list[RenderableType]]:
    """The speedups once more by batch size and K, where several batch sizes were measured."""
    for title, table, sentences in surfaces.shown(summary):
        yield [_text(title), table.as_rich(), *_dim(sentences)]


def _remarks(summary: Summary) -> Iterator[list[RenderableType]]:
    """What of an answer was run, what of the data was not, and how exactly metrics were computed."""
    found = [text for text in (wording.extraction(summary), wording.left_out(summary)) if text]
    for text in [*found, *wording.signatures(summary)]:
        yield _dim([text])


def _rules(rows: list[ArmRow]) -> list[RenderableType]:
    """Acceptance under different rules is not on one scale: name them where they differ."""
    arms: dict[str, list[str]] = {}
    for row in rows:
        if row["verification_rule"]:
            arms.setdefault(row["verification_rule"], []).append(label(row))
    if len(arms) < 2:
        return []
    return _dim([f"{_counted(own)} by: {rule}" for rule, own in arms.items()])


def _counted(labels: list[str]) -> str:
    """Who verifies: the arms by their labels, or how many they are."""
    different = list(dict.fromkeys(labels))
    if len(different) > wording.MANY:
        return f"{len(labels)} arms verify"
    return f"{', '.join(different)} {'verifies' if len(different) == 1 else 'verify'}"


def _warnings(summary: Summary) -> list[RenderableType]:
    if not (found := conditions.further_warnings(summary)):
        return []
    lines = Table([left(whole=True), left()], [[Styled("!", "yellow"), text] for text in found])
    return [lines.as_rich(gap=1)]


def _dim(lines: Iterable[str]) -> list[RenderableType]:
    return [_text(line, style="dim") for line in lines]


def _text(value: object, style: str = "") -> Text:
    return Text(wording.printable(str(value)), style=style)
