"""The first screen: one calm table in the shape of the paper's Table 1, 80 columns wide."""

from __future__ import annotations

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
    wording,
)
from spsbench.report.naming import fitting, in_full
from spsbench.report.results import acceptance, results, times
from spsbench.report.tables import Styled, Table, left
from spsbench.summary_types import ArmRow, Summary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_INDENT = (0, 1, 0, 1)


def show(summary: Summary, console: Console) -> None:
    """Print a run's summary; reads well without colour and in 80 columns."""
    console.print(screen(summary))


def screen(summary: Summary) -> RenderableType:
    """Heading, table, one sentence per speculative arm, acceptance, judgements, warnings."""
    rows = summary["rows"]
    if not rows:
        parts: list[RenderableType] = [Text(), _heading(summary, ""), Text()]
        return Group(*parts, Padding(Text("Nothing was measured."), _INDENT), Text())
    table, naming = fitting(rows, partial(results, rows, wording.headline_metric(summary)), in_full())
    parts = [Text(), _heading(summary, naming.common), Text()]
    for line in conditions.untrusted(summary):
        parts += [Padding(_text(line, style="bold red"), _INDENT), Text()]
    parts += [Padding(table.as_rich(), _INDENT), Text(), *_by_condition(summary)]
    for sentence in [*conditions.headline(summary), *judgement.headline(summary)]:
        parts.append(Padding(_text(sentence, style="bold"), _INDENT))
    for sentence in stopping.sentences(summary):
        parts.append(Padding(_text(sentence, style="dim"), _INDENT))
    parts += [*_surfaces(summary), *_engines(summary), *_energy(summary)]
    speculative = [row for row in rows if row["acceptance"]]
    if speculative:
        parts += [Text(), Padding(_acceptance(speculative), _INDENT)]
    parts += [*_categories(summary), *_reasons(summary), *_judgements(summary), *_remarks(summary)]
    parts += [*_rules(rows), *_warnings(summary)]
    if digest := conditions.token_hash(summary):
        parts += [Text(), Padding(_text(digest, style="dim"), _INDENT)]
    return Group(*parts, Text())


def _by_condition(summary: Summary) -> list[RenderableType]:
    """A table of times for each of several conditions; nothing for a run of one."""
    entries = summary.get("conditions") or []
    parts: list[RenderableType] = []
    if entries:
        parts += [Padding(_text(conditions.sentence(summary), style="bold"), _INDENT), Text()]
    for entry, title in zip(entries, conditions.titles(summary), strict=True):
        rows = entry["rows"]
        table, _ = fitting(rows, partial(times, rows), in_full())
        parts += [Padding(_text(title), _INDENT), Padding(table.as_rich(), _INDENT), Text()]
    return parts


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
    return Padding(text, _INDENT)


def _engines(summary: Summary) -> list[RenderableType]:
    """Both baselines where there are several engines, and what was not equal between them."""
    rows = engines.speculative(summary)
    parts: list[RenderableType] = []
    if rows:
        table, _ = fitting(rows, partial(engines.baselines, rows), in_full())
        parts += [Text(), Padding(table.as_rich(), _INDENT)]
    lines = [Padding(_text(line, style="dim"), _INDENT) for line in engines.foot(summary)]
    return [*parts, Text(), *lines] if lines else parts


def _energy(summary: Summary) -> list[RenderableType]:
    """Joules per token, where they were counted."""
    found = energy.measured(summary)
    if found is None:
        return []
    arms, note = found["arms"], _text(energy.note(found), style="dim")
    table, _ = fitting(arms, partial(energy.table, arms), in_full())
    return [Text(), Padding(table.as_rich(), _INDENT), Padding(note, _INDENT)]


def _acceptance(rows: list[ArmRow]) -> RenderableType:
    """One line for one arm; a small table, with the names on top, for several."""
    if len(rows) == 1:
        values = wording.first_screen(rows[0]["acceptance"])
        return Text("  ".join(map(" ".join, zip(wording.FIRST_SCREEN, values, strict=True))))
    several = len({row["sampling"] for row in rows}) > 1
    table, _ = fitting(rows, partial(acceptance, rows), in_full(sampling=several))
    return table.as_rich()


def _reasons(summary: Summary) -> list[RenderableType]:
    """Which K, and why it is no faster."""
    lines = judgement.sentences(summary)
    return [Text(), *(Padding(_text(line), _INDENT) for line in lines)] if lines else []


def _judgements(summary: Summary) -> list[RenderableType]:
    """Whether to believe the table: losslessness, with alarms first, and parity of quality."""
    alarms = judgement.alarms(summary)
    calm = [*judgement.losslessness(summary), *judgement.parity(summary), *judgement.advantages(summary)]
    lines = [*(_text(line, style="bold red") for line in alarms), *map(_text, calm)]
    return [Text(), *(Padding(line, _INDENT) for line in lines)] if lines else []


def _categories(summary: Summary) -> list[RenderableType]:
    """The table once more by category, where there are several."""
    parts = summary.get("by_category") or []
    if not parts:
        return []
    make = partial(categories.table, parts, wording.headline_metric(summary))
    table, _ = fitting(summary["rows"], make, in_full())
    return [Text(), Padding(_text(categories.NOTE, style="dim"), _INDENT), Padding(table.as_rich(), _INDENT)]


def _surfaces(summary: Summary) -> list[RenderableType]:
    """The speedups once more by batch size and K, where several batch sizes were measured."""
    parts: list[RenderableType] = []
    for title, table, sentences in surfaces.shown(summary):
        parts += [Text(), Padding(_text(title), _INDENT), Padding(table.as_rich(), _INDENT)]
        parts += [Padding(_text(text, style="dim"), _INDENT) for text in sentences]
    return [*parts, Text()] if parts else []


def _remarks(summary: Summary) -> list[RenderableType]:
    """What of an answer was run, what of the data was not, and how exactly metrics were computed."""
    told = [text for text in (wording.extraction(summary), wording.left_out(summary)) if text]
    told += wording.signatures(summary)
    return [part for text in told for part in (Text(), Padding(_text(text, style="dim"), _INDENT))]


def _rules(rows: list[ArmRow]) -> list[RenderableType]:
    """Acceptance under different rules is no common scale: name them where they differ."""
    arms: dict[str, list[str]] = {}
    for row in rows:
        if row["verification_rule"]:
            arms.setdefault(row["verification_rule"], []).append(label(row))
    if len(arms) < 2:
        return []
    lines = [_text(f"{_counted(own)} by: {rule}", style="dim") for rule, own in arms.items()]
    return [Text(), *(Padding(line, _INDENT) for line in lines)]


def _counted(labels: list[str]) -> str:
    """Who verifies: the arms by their labels, or how many they are."""
    different = list(dict.fromkeys(labels))
    if len(different) > wording.MANY:
        return f"{len(labels)} arms verify"
    return f"{', '.join(different)} {'verifies' if len(different) == 1 else 'verify'}"


def _warnings(summary: Summary) -> list[RenderableType]:
    if not summary["warnings"]:
        return []
    lines = Table([left(whole=True), left()], [[Styled("!", "yellow"), text] for text in summary["warnings"]])
    return [Text(), Padding(lines.as_rich(gap=1), _INDENT)]


def _text(value: object, style: str = "") -> Text:
    return Text(wording.printable(str(value)), style=style)
