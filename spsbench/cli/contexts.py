"""``spsbench bench --context 1k,4k,16k``: reading the list, and the tables by context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spsbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.report.tables import Table

_LENGTH = re.compile(r"(?P<number>\d+)(?P<k>[kK]?)", re.ASCII)
_GB, _MB = 1e9, 1e6


def lengths(text: str | None, default: int) -> tuple[int, ...]:
    """``1k,4k,16384`` as numbers of tokens, ascending and each once; k stands for 1,024."""
    if text is None:
        return (default,)
    matches = [_LENGTH.fullmatch(part.strip()) for part in text.split(",")]
    found = [int(match["number"]) * (1024 if match["k"] else 1) for match in matches if match is not None]
    if len(found) < len(matches) or min(found) < 1:
        raise UsageError(
            f"it must be numbers of tokens from 1, got {text}.",
            flag="--context",
            remedy="Give 256, 4k or 1k,4k,16k.",
        )
    return tuple(sorted(set(found)))


def by_context(facts: Mapping[str, Any]) -> list[RenderableType]:
    """Forwards by context, what they allow, and one sentence."""
    from rich.console import Group
    from rich.text import Text

    place = f"{facts['device']}, {facts['threads']} threads, {facts['modes']['target']}"
    tables = {
        f"Forwards by context, {place}": forwards_table(facts),
        "What they read and allow": payoff_table(facts),
    }
    parts: list[RenderableType] = []
    for title, table in tables.items():
        parts += [Group(Text(title, style="bold"), "", table.as_rich()), ""]
    return [*parts, _read(facts), "", facts["sentence"]]


def forwards_table(facts: Mapping[str, Any]) -> Table:
    """t(1) of the target, t(K+1)/t(1) for a few K, and c."""
    from spsbench.bench.contexts import short
    from spsbench.report.tables import Table, right
    from spsbench.report.wording import milliseconds

    ks = facts["ks_shown"]
    columns = [right("context"), right("t(1) ms")]
    columns += [right(f"t({k + 1})/t(1)") for k in ks] + [right("c")]
    rows = []
    for found in facts["contexts"]:
        target = {row["rows"]: row for row in found["forwards"]["target"]}
        ratios = [_interval(target[k + 1]) for k in ks]
        cells = milliseconds(target[1]["ms"]), *ratios, _interval(found["c"])
        rows.append([short(found["context"]), *cells])
    return Table(columns, rows)


def _interval(found: Mapping[str, float]) -> str:
    """Two lines: a row of four intervals is wider than a terminal."""
    return f"{found['ratio']:.2f}\n[{found['low']:.2f}, {found['high']:.2f}]"


def payoff_table(facts: Mapping[str, Any]) -> Table:
    """Bytes of keys and values beside those of weights, the floor, break-even and the best speedup."""
    from spsbench.bench.contexts import short
    from spsbench.report.tables import Table, right
    from spsbench.report.wording import milliseconds, percent

    columns = [right("context"), right("KV MB"), right("weights MB"), right("floor ms"), right("of floor")]
    columns += [right("pays from alpha"), right("best at .8")]
    rows = []
    for found in facts["contexts"]:
        read, one = found["read_bytes"]["target"], found["forwards"]["target"][0]
        best, kv = found["best"], read["keys_and_values"]
        rows.append(
            [
                short(found["context"]),
                "-" if kv is None else f"{kv / _MB:,.0f}",
                f"{read['weights'] / _MB:,.0f}",
                milliseconds(one["floor_ms"]),
                percent(one["share"]),
                _pays_from(found["payoff"]["break_even"]),
                f"{best['speedup']:.2f}x (K={best['k']})" if best["k"] else "none gains",
            ]
        )
    return Table(columns, rows)


def _pays_from(needed: Mapping[int, float | None]) -> str:
    """The smallest alpha that gains, with its K."""
    known = {k: alpha for k, alpha in needed.items() if alpha is not None}
    if not known:
        return "never"
    k = min(known, key=lambda k: (known[k], k))
    return f"{known[k]:.2f} (K={k})"


def _read(facts: Mapping[str, Any]) -> str:
    bandwidth = facts["bandwidth_bytes_per_s"]
    speed = "" if bandwidth is None else f"Memory is read at {bandwidth / _GB:.1f} GB/s (measured). "
    return (
        f"{speed}KV and weights are what one forward of the target reads; the floor is their sum over that. "
        "Intervals are of 95%, over rounds; every round has both models at all contexts in shuffled "
        "order, so that a drift of the machine hits all alike."
    )
