"""What was measured, as JSON, as a table and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spsbench.load.figures import PLAIN, Row, pays_up_to, rows
from spsbench.load.measure import Loaded
from spsbench.load.wave import Wave
from spsbench.records import Interval
from spsbench.report.tables import Heading, Table, left, right
from spsbench.report.wording import NOTHING, escape, interval, milliseconds, percent
from spsbench.stats.bootstrap import finite, plain

FORMAT = 1


def summarised(loaded: Loaded, about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``load.json``, without its waves.

    ``pays_up_to`` is null for one server; of its numbers 0 says at no concurrency that was measured, and null
    at the largest, too.
    """
    crossing = pays_up_to(loaded.waves)
    found = {
        "format": FORMAT,
        **about,
        "servers": [
            {"name": name, **asdict(described)}
            for name, described in zip(loaded.names, loaded.described, strict=True)
        ],
        "ended": loaded.ended,
        "rows": [asdict(row) for row in rows(loaded.waves)],
        "pays_up_to": None
        if crossing is None
        else {name: finite(value) for name, value in asdict(crossing).items()},
    }
    return plain(found)


def waves_of(loaded: Loaded) -> list[dict[str, Any]]:
    """Every wave and request, in the order in which they were sent."""
    return [_wave(wave) for wave in loaded.waves]


def _wave(wave: Wave) -> dict[str, Any]:
    return {
        "server": wave.server,
        "concurrency": wave.concurrency,
        "number": wave.number,
        "window_s": wave.window_s,
        "window_tokens": wave.window_tokens,
        "drafted": wave.drafted,
        "accepted": wave.accepted,
        "requests": [
            {
                "sent_s": reading.sent,
                "done_s": reading.done,
                "ttft_s": reading.ttft_s,
                "tpot_s": reading.tpot_s,
                "tokens": reading.tokens,
                "error": reading.error,
            }
            for reading in wave.readings
        ],
    }


def table(loaded: Loaded) -> Table:
    """A row for each server at each concurrency, at most 80 columns wide."""
    servers = len(loaded.names)
    columns = [
        right("in flight"),
        right("tok/s"),
        right("TTFT", note="ms"),
        right("TPOT", note="ms"),
        right("kept"),
    ]
    if servers > 1:
        columns = [columns[0], left("server", whole=True), *columns[1:], right("speedup", note="95%")]
    cells: list[Sequence[str] | Heading] = []
    for row in rows(loaded.waves):
        if cells and servers > 1 and row.server == PLAIN:
            cells.append(Heading())
        cells.append(_compared(row) if servers > 1 else [str(row.concurrency), *_numbers(row)])
    return Table(columns, cells)


def _compared(row: Row) -> list[str]:
    return [
        str(row.concurrency) if row.server == PLAIN else "",
        _role(row.server, 2),
        *_numbers(row),
        NOTHING if row.speedup is None else interval(row.speedup, "x"),
    ]


def _numbers(row: Row) -> list[str]:
    rate = row.tokens_per_s
    return [
        NOTHING if rate is None else f"{rate.estimate:.0f}",
        _pair(row.ttft_ms),
        _pair(row.tpot_ms),
        percent(row.acceptance),
    ]


def _role(server: int, servers: int) -> str:
    """What a server is to the other, or that it is the only one."""
    return "server" if servers == 1 else ("plain", "spec")[server]


def _pair(found: Mapping[str, float]) -> str:
    return f"{milliseconds(found.get('p50'))} {milliseconds(found.get('p95'))}" if found else NOTHING


def sentences(loaded: Loaded) -> list[str]:
    """What the table says, and which server is which."""
    said = []
    crossing = pays_up_to(loaded.waves)
    if crossing is not None:
        said.append(_pays(crossing, sorted({wave.concurrency for wave in loaded.waves})))
    for place, (name, described) in enumerate(zip(loaded.names, loaded.described, strict=True)):
        said.append(f"{_role(place, len(loaded.names))}: {name}, {described.engine} {described.version}.")
    said.append("TTFT: until the first token; TPOT: for each further one; 50th and 95th percentile.")
    failed = sum(row.failed for row in rows(loaded.waves))
    if loaded.ended is not None:
        said.append(f"The measurement ended early: {loaded.ended}")
    if failed:
        said.append(f"{failed} requests failed; their tokens are not counted.")
    return said


def _pays(crossing: Interval, concurrencies: Sequence[int]) -> str:
    first, last = concurrencies[0], concurrencies[-1]
    ends = ""
    if crossing.low is not None:
        ends = f" [{_end(crossing.low, first, last)}, {_end(crossing.high, first, last)}]"
    return f"Speculation pays up to this many in flight: {_end(crossing.estimate, first, last)}{ends}."


def _end(value: float | None, first: int, last: int) -> str:
    if value == 0:
        return f"below {first}"
    number = finite(value)
    return f"above {last}" if number is None else f"{number:.1f}"


def page(loaded: Loaded, title: str) -> str:
    """The content of ``load.md``."""
    lines = [f"# {escape(title)}", "", *table(loaded).as_markdown(), ""]
    lines += [f"* {escape(sentence)}" for sentence in sentences(loaded)]
    lines += [
        f"* {_role(place, len(loaded.names))}: {escape(limit)}"
        for place, described in enumerate(loaded.described)
        for limit in described.limits
    ]
    lines += [
        "* Tokens a second count while so many requests were in flight; intervals are over waves of the same "
        "prompts. Kept: of the draft tokens proposed."
    ]
    return "\n".join(lines) + "\n"
