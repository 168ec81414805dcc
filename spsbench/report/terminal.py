"""The first screen: one calm table in the shape of the paper's Table 1, 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spsbench.axes import label
from spsbench.report import conditions, judgement, wording

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_INDENT = (0, 1, 0, 1)


def show(summary: dict[str, Any], console: Console) -> None:
    """Print a run's summary; reads well without colour and in 80 columns."""
    console.print(screen(summary))


def screen(summary: dict[str, Any]) -> RenderableType:
    """Heading, table, one sentence per speculative arm, acceptance, judgements, warnings."""
    rows = summary["rows"]
    parts: list[RenderableType] = [Text(), _heading(summary), Text()]
    if not rows:
        return Group(*parts, Padding(Text("Nothing was measured."), _INDENT), Text())
    for line in conditions.untrusted(summary):
        parts += [Padding(_text(line, style="bold red"), _INDENT), Text()]
    parts += [Padding(_results(rows, summary), _INDENT), Text(), *_by_condition(summary)]
    for sentence in [*conditions.headline(summary), *judgement.headline(summary)]:
        parts.append(Padding(_text(sentence, style="bold"), _INDENT))
    speculative = [row for row in rows if row["acceptance"]]
    if speculative:
        parts += [Text(), Padding(_acceptance(speculative), _INDENT)]
    parts += [*_reasons(summary), *_judgements(summary), *_extraction(summary)]
    parts += [*_rules(rows), *_warnings(summary)]
    if digest := conditions.token_hash(summary):
        parts += [Text(), Padding(_text(digest, style="dim"), _INDENT)]
    return Group(*parts, Text())


def _by_condition(summary: dict[str, Any]) -> list[RenderableType]:
    """A table of times for each of several conditions; nothing for a run of one."""
    entries = summary.get("conditions") or []
    parts: list[RenderableType] = []
    if entries:
        parts += [Padding(_text(conditions.sentence(summary), style="bold"), _INDENT), Text()]
    for entry, title in zip(entries, conditions.titles(summary), strict=True):
        parts += [Padding(_text(title), _INDENT), Padding(_results(entry["rows"], summary), _INDENT), Text()]
    return parts


def _heading(summary: dict[str, Any]) -> RenderableType:
    text = Text(wording.title(summary), style="bold")
    details = []
    if summary.get("pair"):
        details.append(f"pair {wording.printable(str(summary['pair']))}")
    prompts = max((row["prompts"] for row in summary["rows"]), default=0)
    details.append(f"{prompts} prompt{'s' if prompts != 1 else ''}")
    text.append(", " + ", ".join(details), style="not bold dim")
    return Padding(text, _INDENT)


def _results(rows: list[dict[str, Any]], summary: dict[str, Any]) -> Table:
    table = _table()
    shown = wording.headline_metric(summary)
    table.add_column("arm", overflow="fold")
    table.add_column("sampling", overflow="fold")
    table.add_column(wording.metric_title(shown), justify="right", no_wrap=True)
    table.add_column("ms/token", justify="right", no_wrap=True)
    table.add_column("speedup [95%]", no_wrap=True)
    table.add_column("tokens/loop", justify="right", no_wrap=True)
    previous = None
    for row in rows:
        if previous is not None and row["sampling"] != previous:
            table.add_section()
        previous = row["sampling"]
        table.add_row(*_cells(row, shown))
    return table


def _cells(row: dict[str, Any], shown: str | None) -> list[Text]:
    if row["sequences"]:
        speed = wording.milliseconds(row["ms_per_token"])
    else:
        speed = "failed" if row["failed"] else "not run"
    return [
        _text(label(row)),
        _text(row["sampling"]),
        _text(wording.metric(shown, row["metrics"].get(shown))),
        _text(speed),
        _text(wording.row_speedup(row), style=_verdict(row["speedup"])),
        _text(wording.number(row["tokens_per_loop"], 2)),
    ]


def _verdict(speedup: dict[str, Any] | None) -> str:
    """Colour only where the interval leaves no doubt; nothing depends on seeing it."""
    if speedup is None or speedup["low"] is None:
        return ""
    return "green" if speedup["low"] > 1.0 else "red" if speedup["high"] < 1.0 else ""


def _acceptance(rows: list[dict[str, Any]]) -> RenderableType:
    """One line for one arm; a small table, with the names on top, for several."""
    values = [[wording.number(row["acceptance"][name], 3) for name in wording.FIRST_SCREEN] for row in rows]
    if len(rows) == 1:
        pairs = zip(wording.FIRST_SCREEN, values[0], strict=True)
        return Text("  ".join(f"{name} {value}" for name, value in pairs))
    several = len({row["sampling"] for row in rows}) > 1
    table = _table()
    for name in ("arm", "sampling") if several else ("arm",):
        table.add_column(name, overflow="fold")
    for name in wording.FIRST_SCREEN:
        table.add_column(name, justify="right", no_wrap=True)
    for row, cells in zip(rows, values, strict=True):
        names = (label(row), row["sampling"]) if several else (label(row),)
        table.add_row(*(_text(text) for text in (*names, *cells)))
    return table


def _reasons(summary: dict[str, Any]) -> list[RenderableType]:
    """Which K, and why it is no faster."""
    lines = judgement.sentences(summary)
    return [Text(), *(Padding(_text(line), _INDENT) for line in lines)] if lines else []


def _judgements(summary: dict[str, Any]) -> list[RenderableType]:
    """Whether to believe the table: losslessness, with alarms first, and parity of quality."""
    alarms = judgement.alarms(summary)
    calm = [*judgement.losslessness(summary), *judgement.parity(summary), *judgement.advantages(summary)]
    lines = [*(_text(line, style="bold red") for line in alarms), *map(_text, calm)]
    return [Text(), *(Padding(line, _INDENT) for line in lines)] if lines else []


def _extraction(summary: dict[str, Any]) -> list[RenderableType]:
    told = wording.extraction(summary)
    return [Text(), Padding(_text(told, style="dim"), _INDENT)] if told else []


def _rules(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """Acceptance under different rules is no common scale: name them where they differ."""
    rules = {label(row): row["verification_rule"] for row in rows if row["verification_rule"]}
    if len(set(rules.values())) < 2:
        return []
    lines = [_text(f"{arm} verifies by: {rule}", style="dim") for arm, rule in rules.items()]
    return [Text(), *(Padding(line, _INDENT) for line in lines)]


def _warnings(summary: dict[str, Any]) -> list[RenderableType]:
    if not summary["warnings"]:
        return []
    table = Table.grid(padding=(0, 1))
    for sentence in summary["warnings"]:
        table.add_row(Text("!", style="yellow"), _text(sentence))
    return [Text(), Padding(table, _INDENT)]


def _table() -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="not bold dim",
    )


def _text(value: object, style: str = "") -> Text:
    return Text(wording.printable(str(value)), style=style)
