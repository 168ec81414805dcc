"""From waves to throughput, latency and where speculation stops paying; as JSON, table and page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spsbench.base import Described, Floats, Interval
from spsbench.parts.external.messages import CHAT_ALONE
from spsbench.parts.load import messages as says
from spsbench.parts.load.measure import Loaded, LoadWave
from spsbench.report import NOTHING, Heading, Table, escape, interval, left, milliseconds, percent, right
from spsbench.stats import pays_up_to as crossed
from spsbench.stats import plain, pooled_interval, pooled_ratio

FORMAT = 1
PLAIN, SPECULATING = 0, 1
"""Places of the two servers that are compared."""


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One server at one concurrency; its speedup is over the plain one, of the same waves.

    Attributes:
        ttft_ms: of prompts that the server had not read before; of all where none of its requests may have
            been served from a cache, or all may.
        ttft_again_ms: of the prompts that came again, where they are told apart.
        again: requests whose prompt had come before, to a server whose cache may have kept it.
        cached_tokens: of all prompts, as far as the server says so; None where it does not.
        unstreamed: tokens that were counted and not sent; no other number has them.
        thoughts: answers that begin with a thought.
        thought_tokens: of all of them.
        answer_ttft_ms: until the first token of the answer behind it.
    """

    server: int
    concurrency: int
    requests: int
    failed: int
    tokens_per_s: Interval | None
    ttft_ms: dict[str, float]
    ttft_again_ms: dict[str, float]
    again: int
    cached_tokens: int | None
    unstreamed: int
    tpot_ms: dict[str, float]
    acceptance: float | None
    speedup: Interval | None
    thoughts: int
    thought_tokens: int
    answer_ttft_ms: dict[str, float]


def rows(waves: Sequence[LoadWave], described: Sequence[Described] = ()) -> list[LoadRow]:
    """Return a row for every server at every concurrency."""
    cells: dict[tuple[int, int], list[LoadWave]] = {}
    for wave in sorted(waves, key=lambda wave: (wave.concurrency, wave.server, wave.number)):
        cells.setdefault((wave.concurrency, wave.server), []).append(wave)
    load_rows = []
    for (concurrency, server), cell in cells.items():
        answered = [reading for wave in cell for reading in wave.answered]
        requests = sum(len(wave.readings) for wave in cell)
        drafted = sum(wave.drafted or 0 for wave in cell)
        sums = _sums(cell)
        plain = None if server == PLAIN else cells.get((concurrency, PLAIN))
        keeps = not described or described[server].settings.get("prefix_cache") is not False
        again = [reading for reading in answered if reading.came_before and keeps]
        first = [reading for reading in answered if not (reading.came_before and keeps)]
        cached = [reading.cached for reading in answered if reading.cached is not None]
        load_rows.append(
            LoadRow(
                server,
                concurrency,
                requests,
                requests - len(answered),
                pooled_ratio(*sums) if sums[0].sum() else None,
                _percentiles_ms([reading.ttft_s for reading in first or answered]),
                _percentiles_ms([reading.ttft_s for reading in again]) if first else {},
                len(again),
                sum(cached) if cached else None,
                sum(reading.unstreamed for reading in answered),
                _percentiles_ms([reading.tpot_s for reading in answered]),
                sum(wave.accepted or 0 for wave in cell) / drafted if drafted else None,
                None if plain is None else _speedup_over_waves([*sums, *_sums(plain)]),
                sum(reading.thought > 0 for reading in answered),
                sum(reading.thought_tokens for reading in answered),
                _percentiles_ms([reading.answer_ttft_s for reading in answered]),
            )
        )
    return load_rows


def _speedup_over_waves(columns: Sequence[Floats]) -> Interval | None:
    """None without tokens."""
    if not all(column.sum() > 0 for column in columns):
        return None
    point = float(_quotient(np.stack(columns).sum(axis=1, keepdims=True))[0])
    return Interval(point, *pooled_interval(columns, _quotient, log=True))


def _quotient(sums: Floats) -> Floats:
    """[m] speedups of sums [4, m]: tokens and seconds speculating, tokens and seconds plain."""
    return np.asarray(sums[0] / sums[1] * sums[3] / sums[2])


def pays_up_to(waves: Sequence[LoadWave]) -> Interval | None:
    """Return the concurrency at which the speedup falls below 1 for good, with its interval over waves.

    0 says that speculation pays at none that was measured, infinity at the largest.
    """
    concurrencies = sorted({wave.concurrency for wave in waves if wave.server == SPECULATING})
    ordered = sorted(waves, key=lambda wave: wave.number)
    data = [
        np.concatenate(
            [
                _sums([wave for wave in ordered if (wave.server, wave.concurrency) == (server, concurrency)])
                for server in (SPECULATING, PLAIN)
            ]
        )
        for concurrency in concurrencies
    ]
    return crossed(concurrencies, data, _quotient, together=False) if data else None


def _sums(waves: Sequence[LoadWave]) -> Floats:
    """[2, waves] tokens and seconds."""
    return (
        np.array([(wave.window_tokens, wave.window_s) for wave in waves], dtype=np.float64).reshape(-1, 2).T
    )


def _percentiles_ms(seconds: Sequence[float | None]) -> dict[str, float]:
    values = [1e3 * value for value in seconds if value is not None]
    return {f"p{each}": float(np.percentile(values, each)) for each in (50, 95, 99)} if values else {}


def summarised(loaded: Loaded, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``load.json``, without its waves.

    ``pays_up_to`` is null for one server; of its numbers 0 says at no concurrency that was measured, and null
    at the largest, too.
    """
    crossing = pays_up_to(loaded.waves)
    content = {
        "format": FORMAT,
        **about,
        "servers": [
            {"name": name, **asdict(described)}
            for name, described in zip(loaded.names, loaded.described, strict=True)
        ],
        "ended": loaded.ended,
        "rows": [asdict(row) for row in rows(loaded.waves, loaded.described)],
        "pays_up_to": None if crossing is None else asdict(crossing),
    }
    return plain(content)


def waves_of(loaded: Loaded) -> list[dict[str, Any]]:
    """Return every wave and request, in the order in which they were sent."""
    names = ("server", "concurrency", "number", "window_s", "window_tokens", "drafted", "accepted")
    return [
        {name: getattr(wave, name) for name in names}
        | {
            "requests": [
                {
                    "sent_s": reading.sent,
                    "done_s": reading.done,
                    "ttft_s": reading.ttft_s,
                    "tpot_s": reading.tpot_s,
                    "answer_ttft_s": reading.answer_ttft_s,
                    "thought_tokens": reading.thought_tokens,
                    "tokens": reading.tokens,
                    "unstreamed": reading.unstreamed,
                    "came_before": reading.came_before,
                    "cached_tokens": reading.cached,
                    "drafted": reading.drafted,
                    "accepted": reading.accepted,
                    "error": reading.error,
                }
                for reading in wave.readings
            ]
        }
        for wave in loaded.waves
    ]


def table(loaded: Loaded) -> Table:
    """Return a row for each server at each concurrency, at most 80 columns wide."""
    compared = len(loaded.names) > 1
    numbers = [right("tok/s"), right("TTFT", note="ms"), right("TPOT", note="ms"), right("kept")]
    columns = [right("in flight"), *numbers]
    if compared:
        columns = [columns[0], left("server", whole=True), *numbers, right("speedup", note="95%")]
    cells: list[Sequence[str] | Heading] = []
    for row in rows(loaded.waves, loaded.described):
        if cells and compared and row.server == PLAIN:
            cells.append(Heading())
        line = [
            str(row.concurrency) if row.server == PLAIN else "",
            NOTHING if row.tokens_per_s is None else f"{row.tokens_per_s.estimate:.0f}",
            *(_pair(each) for each in (row.ttft_ms, row.tpot_ms)),
            percent(row.acceptance),
        ]
        if compared:
            line.insert(1, _server_name(row.server, 2))
            line.append(NOTHING if row.speedup is None else interval(row.speedup, "x"))
        cells.append(line)
    return Table(columns, cells)


def _server_name(server: int, servers: int) -> str:
    """Plain or speculating, or that it is the only one."""
    return "server" if servers == 1 else ("plain", "spec")[server]


def _pair(percentiles: Mapping[str, float]) -> str:
    return (
        f"{milliseconds(percentiles.get('p50'))} {milliseconds(percentiles.get('p95'))}"
        if percentiles
        else NOTHING
    )


def conclusions(loaded: Loaded) -> Iterator[object]:
    """What the table says, and which server is which."""
    if (crossing := pays_up_to(loaded.waves)) is not None:
        concurrencies = [wave.concurrency for wave in loaded.waves]
        yield says.PaysUpToConcurrency(crossing, min(concurrencies), max(concurrencies))
    servers = len(loaded.names)
    for place, (name, described) in enumerate(zip(loaded.names, loaded.described, strict=True)):
        yield says.ServerMeasured(_server_name(place, servers), name, described.engine, described.version)
        yield from (limit for limit in described.limits if limit == CHAT_ALONE)
    yield says.WHAT_TIMES_ARE
    load_rows = rows(loaded.waves, loaded.described)
    yield from _of_prompts_and_thoughts(load_rows, servers)
    answered = [reading for wave in loaded.waves for reading in wave.answered]
    for count, message in (
        (sum(row.unstreamed for row in load_rows), says.TokensNotStreamed),
        (sum(reading.retokenised for reading in answered), says.AnswersRetokenised),
        (sum(reading.is_contradicted for reading in answered), says.CountsContradict),
    ):
        if count:
            yield message(count)
    if loaded.ended is not None:
        yield says.EndedEarly(loaded.ended)
    if failed := sum(row.failed for row in load_rows):
        yield says.RequestsNotCounted(failed)


def _of_prompts_and_thoughts(load_rows: Sequence[LoadRow], servers: int) -> Iterator[object]:
    for server in range(servers):
        if of := [row for row in load_rows if row.server == server and row.again]:
            cached = [row.cached_tokens for row in of if row.cached_tokens is not None]
            yield says.PromptsCameBefore(
                _server_name(server, servers),
                sum(row.again for row in of),
                sum(row.requests for row in of),
                sum(cached) if cached else None,
                {row.concurrency: row.ttft_again_ms["p50"] for row in of if row.ttft_again_ms},
            )
    for server in range(servers):
        if of := [row for row in load_rows if row.server == server and row.thoughts]:
            yield says.Thoughts(
                _server_name(server, servers),
                sum(row.thoughts for row in of),
                sum(row.requests - row.failed for row in load_rows if row.server == server),
                sum(row.thought_tokens for row in of),
                {row.concurrency: row.answer_ttft_ms["p50"] for row in of if row.answer_ttft_ms},
            )


def page(loaded: Loaded, title: str) -> str:
    """Return the content of ``load.md``."""
    lines = [f"# {escape(title)}", "", *table(loaded).as_markdown(), ""]
    lines += [f"* {escape(sentence)}" for sentence in conclusions(loaded)]
    lines += [
        f"* {_server_name(place, len(loaded.names))}: {escape(limit)}"
        for place, described in enumerate(loaded.described)
        for limit in described.limits
        if limit != CHAT_ALONE
    ]
    lines.append(f"* {says.WHAT_RATES_ARE}")
    return "\n".join(lines) + "\n"
