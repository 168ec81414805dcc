"""From waves to numbers: throughput, latency, speedup, and up to where speculation pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.load.wave import Wave
from spsbench.records import Interval
from spsbench.stats.bootstrap import Floats, pooled_interval, pooled_ratio
from spsbench.stats.crossing import pays_up_to as crossed

PLAIN, SPECULATING = 0, 1
"""Places of the two servers that are compared."""

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Row:
    """One server at one concurrency.

    Attributes:
        speedup: tokens per second over those of the plain server, of the same waves; None for that one.
    """

    server: int
    concurrency: int
    requests: int
    failed: int
    tokens_per_s: Interval | None
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    acceptance: float | None
    speedup: Interval | None


def rows(waves: Sequence[Wave]) -> list[Row]:
    """Every server at every concurrency."""
    cells: dict[tuple[int, int], list[Wave]] = {}
    for wave in sorted(waves, key=lambda wave: (wave.concurrency, wave.server, wave.number)):
        cells.setdefault((wave.concurrency, wave.server), []).append(wave)
    return [_row(cells, concurrency, server) for concurrency, server in cells]


def _row(cells: Mapping[tuple[int, int], list[Wave]], concurrency: int, server: int) -> Row:
    waves = cells[concurrency, server]
    answered = [reading for wave in waves for reading in wave.answered]
    requests = sum(len(wave.readings) for wave in waves)
    tokens, seconds = _sums(waves)
    plain = None if server == PLAIN else cells.get((concurrency, PLAIN))
    return Row(
        server,
        concurrency,
        requests,
        requests - len(answered),
        pooled_ratio(tokens, seconds) if tokens.sum() else None,
        _percentiles([reading.ttft_s for reading in answered]),
        _percentiles([reading.tpot_s for reading in answered]),
        _acceptance(waves),
        None if plain is None else speedup(plain, waves),
    )


def speedup(plain: Sequence[Wave], speculating: Sequence[Wave]) -> Interval | None:
    """Tokens per second of one over those of the other, with its interval over waves; None without tokens."""
    columns = [*_sums(speculating), *_sums(plain)]
    if not all(column.sum() > 0 for column in columns):
        return None
    point = float(_quotient(np.stack(columns).sum(axis=1, keepdims=True))[0])
    return Interval(point, *pooled_interval(columns, _quotient, log=True))


def _quotient(sums: Floats) -> Floats:
    """[m] speedups of sums [4, m]: tokens and seconds speculating, tokens and seconds plain."""
    return np.asarray(sums[0] / sums[1] * sums[3] / sums[2])


def pays_up_to(waves: Sequence[Wave]) -> Interval | None:
    """The concurrency at which the speedup falls below 1 for good, with its interval over waves.

    See ``stats.crossing``: 0 says that speculation pays at none that was measured, infinity at the largest.
    """
    compared = {wave.concurrency for wave in waves if wave.server == SPECULATING}
    concurrencies = sorted(compared)
    if not concurrencies:
        return None
    data = [_paired(waves, concurrency) for concurrency in concurrencies]
    return crossed(concurrencies, data, _quotient, together=False)


def _paired(waves: Sequence[Wave], concurrency: int) -> Floats:
    """[4, waves]: tokens and seconds of both servers."""
    ordered = sorted(waves, key=lambda wave: wave.number)
    of = [
        [wave for wave in ordered if (wave.server, wave.concurrency) == (server, concurrency)]
        for server in (SPECULATING, PLAIN)
    ]
    return np.stack([column for each in of for column in _sums(each)])


def _sums(waves: Sequence[Wave]) -> tuple[Floats, Floats]:
    """Tokens and seconds, [waves] each."""
    return (
        np.array([wave.window_tokens for wave in waves], dtype=np.float64),
        np.array([wave.window_s for wave in waves], dtype=np.float64),
    )


def _percentiles(seconds: Sequence[float | None]) -> dict[str, float]:
    """In milliseconds, by name; empty without values."""
    values = [1e3 * value for value in seconds if value is not None]
    return {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES} if values else {}


def _acceptance(waves: Sequence[Wave]) -> float | None:
    drafted = sum(wave.drafted or 0 for wave in waves)
    return sum(wave.accepted or 0 for wave in waves) / drafted if drafted else None
