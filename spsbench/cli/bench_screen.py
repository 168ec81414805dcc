"""What ``spsbench bench`` prints: forwards, floors and speedups, by K, by context or by batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from spsbench.report.tables import Cell, Table

_MB, _GB = 1e6, 1e9
_REGIMES = {
    "dispatch-bound": "What is read fits in the reported last-level cache: no memory floor is known here.",
    "unknown": "Bandwidth could not be measured: no floor is known here.",
}


def screen(facts: Mapping[str, Any]) -> RenderableType:
    """Models, forwards, floors, the grid, forced acceptance, and one sentence."""
    if "step_ms" in facts:
        return Group(_models(facts), "", *by_batch(facts))
    if "contexts" in facts:
        return Group(_models(facts), "", *by_context(facts))
    parts: list[RenderableType] = [_models(facts), "", _forwards(facts), "", _memory(facts)]
    parts += ["", _grid(facts["payoff"]), "", facts["verdict"]]
    if facts["forced"] is not None:
        parts += ["", _forced(facts["forced"])]
    return Group(*parts)


def _models(facts: Mapping[str, Any]) -> RenderableType:
    from spsbench.report.tables import Table, left

    rows = []
    for role in ("target", "draft"):
        model = facts[role]
        kind = "random weights" if model["random_weights"] else ""
        size = f"{model['parameters'] / 1e6:,.1f}M"
        rows.append([role, model["name"], f"{model['model_type']}, {size}, {model['dtype']}", kind])
    return Table([left()] * 4, rows).as_rich()


def _titled(title: str, table: Table) -> Group:
    return Group(Text(title, style="bold"), "", table.as_rich())


def _forwards(facts: Mapping[str, Any]) -> Group:
    from spsbench.report.tables import Table, right
    from spsbench.report.wording import milliseconds, percent

    place = f"{facts['device']}, {facts['threads']} threads, {facts['modes']['target']}"
    title = f"Forwards after {facts['context']} tokens of context, {place}"
    columns = [right("model"), right("rows"), right("ms"), right("t(n)/t(1)", note="95%")]
    rows = []
    for role in ("target", "draft"):
        for row in facts["forwards"][role]:
            own = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" if row["rows"] > 1 else "1"
            times = milliseconds(row["ms"]), own, milliseconds(row["floor_ms"])
            rows.append([role, str(row["rows"]), *times, percent(row["share"])])
    return _titled(title, Table([*columns, right("floor ms"), right("of floor")], rows))


def _memory(facts: Mapping[str, Any]) -> str:
    bandwidth = facts["bandwidth_bytes_per_s"]
    speed = "" if bandwidth is None else f"Memory is read at {bandwidth / _GB:.1f} GB/s (measured). "
    told = _REGIMES.get(facts["regime"], "The floor is the bytes of weights and cache over that.")
    return speed + told


def _grid(found: Mapping[str, Any]) -> Group:
    from spsbench.report.tables import Styled, Table, right

    ks = list(found["costs"])
    rows: list[list[Cell]] = []
    for row in found["grid"]:
        cells = [
            Styled(f"{value:.2f}", "bold") if k == row["best_k"] else f"{value:.2f}"
            for k, value in row["speedups"].items()
        ]
        rows.append([f"{row['alpha']:.2f}", *cells])
    needed = found["break_even"]
    rows.append(["pays from", *("never" if needed[k] is None else f"{needed[k]:.2f}" for k in ks)])
    table = Table([right("alpha"), *(right(f"K={k}") for k in ks)], rows)
    return _titled("Predicted speedup, forwards alone, independent tests", table)


def _forced(found: Mapping[str, Any]) -> Group:
    from spsbench.report.tables import Table, right
    from spsbench.report.wording import milliseconds, speedup

    shares = " ".join(f"{p:.2f}" for p in found["acceptance_by_position"])
    title = f"Measured with SYNTHETIC acceptance ({shares}), {found['rounds']} rounds"
    columns = [right("arm"), right("ms/token"), right("tokens/loop"), right("speedup", note="95%")]
    rows = [
        [
            f"SpS (K={arm['k']})" if arm["k"] else "ArS",
            milliseconds(arm["ms_per_token"]),
            f"{arm['tokens_per_loop']:.2f}",
            speedup(arm["speedup"]) if arm["k"] else "1x",
            "-" if arm["predicted"] is None else f"{arm['predicted']:.2f}x",
        ]
        for arm in found["arms"]
    ]
    return _titled(title, Table([*columns, right("predicted")], rows))


def by_context(facts: Mapping[str, Any]) -> list[RenderableType]:
    """Forwards by context, what they allow, and one sentence."""
    place = f"{facts['device']}, {facts['threads']} threads, {facts['modes']['target']}"
    tables = {
        f"Forwards by context, {place}": forwards_table(facts),
        "What they read and allow": payoff_table(facts),
    }
    parts: list[RenderableType] = []
    for title, table in tables.items():
        parts += [Group(Text(title, style="bold"), "", table.as_rich()), ""]
    return [*parts, _memory_by_context(facts), "", facts["sentence"]]


def forwards_table(facts: Mapping[str, Any]) -> Table:
    """t(1) of the target, t(K+1)/t(1) for a few K, and c."""
    from spsbench.bench.study import short
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
    from spsbench.bench.study import short
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


def _memory_by_context(facts: Mapping[str, Any]) -> str:
    bandwidth = facts["bandwidth_bytes_per_s"]
    speed = "" if bandwidth is None else f"Memory is read at {bandwidth / _GB:.1f} GB/s (measured). "
    return (
        f"{speed}KV and weights are what one forward of the target reads; the floor is their sum over that. "
        "Intervals are of 95%, over rounds; every round has both models at all contexts in shuffled "
        "order, so that a drift of the machine hits all alike."
    )


def by_batch(facts: Mapping[str, Any]) -> list[RenderableType]:
    """Forwards by batch size, the speedups that they allow, those of real loops, and up to where they pay."""
    place = f"{facts['device']}, {facts['threads']} threads, after {facts['context']} tokens"
    assumed = facts["assumed"]
    tables = {
        f"Forwards by batch size, {place}": _forwards_by_batch(facts),
        f"Predicted speedup by the forwards alone, {assumed}": _speedups(facts, "predicted"),
    }
    if any(cell["measured"] for cell in facts["cells"]):
        tables[f"Measured with SYNTHETIC acceptance, {assumed}"] = _speedups(facts, "measured")
    parts: list[RenderableType] = []
    for title, table in tables.items():
        parts += [Group(Text(title, style="bold"), "", table.as_rich()), ""]
    return [*parts, _sentence(facts)]


def _forwards_by_batch(facts: Mapping[str, Any]) -> Any:
    from spsbench.report.tables import Table, right
    from spsbench.report.wording import milliseconds

    columns = [
        right("B"),
        right("t(B) ms"),
        right("t(B)/B"),
        *(right(f"t(B*{k + 1})/t(B)") for k in _ks(facts)[:4]),
    ]
    rows = []
    for batch, step in facts["step_ms"].items():
        cells = _cells(facts, int(batch))
        ratios = [f"{cells[k]['verify_ms'] / step:.2f}" for k in _ks(facts)[:4]]
        rows.append([str(batch), milliseconds(step), milliseconds(step / int(batch)), *ratios])
    return Table(columns, rows)


def _speedups(facts: Mapping[str, Any], kind: str) -> Any:
    from spsbench.report.tables import Styled, Table, right

    def shown(cell: Mapping[str, Any]) -> Cell:
        found = cell[kind]
        value, clear = (
            (found, found) if kind == "predicted" else (found["ratio"], found["low"] or found["ratio"])
        )
        return Styled(f"{value:.2f}", "bold") if clear > 1 else f"{value:.2f}"

    rows: list[list[Cell]] = []
    for batch in facts["step_ms"]:
        cells = _cells(facts, int(batch))
        rows.append([str(batch), *(shown(cells[k]) for k in _ks(facts))])
    return Table([right("B"), *(right(f"K={k}") for k in _ks(facts))], rows)


def _ks(facts: Mapping[str, Any]) -> list[int]:
    return sorted({cell["k"] for cell in facts["cells"]})


def _cells(facts: Mapping[str, Any], batch: int) -> dict[int, Mapping[str, Any]]:
    return {cell["k"]: cell for cell in facts["cells"] if cell["batch"] == batch}


def _sentence(facts: Mapping[str, Any]) -> str:
    """Up to which batch size speculation should pay, at the K that goes furthest."""
    largest = max(int(batch) for batch in facts["step_ms"])
    ends = {int(k): end for k, end in facts["pays_up_to"].items()}
    beyond = [k for k, end in ends.items() if end is None]
    if beyond:
        ks = ", ".join(map(str, beyond))
        return f"By the forwards it pays up to the largest batch, {largest}, at K = {ks}."
    k, furthest = max(ends.items(), key=lambda item: item[1] or 0.0)
    if not furthest:
        return "By the forwards it pays at no batch size."
    return f"By the forwards it pays up to B = {furthest:.3g}, at K = {k}."
