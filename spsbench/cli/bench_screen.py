"""What ``bench`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spsbench.config.kernels import PACKED
from spsbench.report.wording import milliseconds, percent, speedup

_MILLION, _GB = 1e6, 1e9
_REGIMES = {
    "dispatch-bound": "The weights fit in the last-level cache: no floor by memory is known here.",
    "unknown": "Bandwidth could not be measured: no floor is known here.",
}


def screen(facts: Mapping[str, Any]) -> RenderableType:
    """Models, forwards, floors, the grid, forced acceptance, and one sentence."""
    parts: list[RenderableType] = [_models(facts), "", _forwards(facts), "", _memory(facts)]
    parts += ["", _grid(facts["payoff"]), "", facts["verdict"]]
    if facts["forced"] is not None:
        parts += ["", _forced(facts["forced"])]
    return Group(*parts)


def _models(facts: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for role in ("target", "draft"):
        model = facts[role]
        kind = "random weights" if model["random_weights"] else ""
        size = f"{model['parameters'] / _MILLION:,.1f}M"
        table.add_row(role, model["name"], f"{model['model_type']}, {size}, {model['dtype']}", kind)
    return table


def _titled(title: str, table: Table) -> Group:
    """A title of the table's own would be wrapped to the table's width."""
    return Group(Text(title, style="bold"), "", table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="not bold dim")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _forwards(facts: Mapping[str, Any]) -> Group:
    title = f"Forwards behind {facts['context']} tokens, {facts['device']}, {facts['threads']} threads"
    table = _table("model", "rows", "ms", "t(n)/t(1) [95%]", "floor ms", "of floor")
    for role in ("target", "draft"):
        packed = " packed" if facts["modes"][role] == PACKED else ""
        for row in facts["forwards"][role]:
            own = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" if row["rows"] > 1 else "1"
            table.add_row(
                role + packed,
                str(row["rows"]),
                milliseconds(row["ms"]),
                own,
                milliseconds(row["floor_ms"]),
                percent(row["share"]),
            )
    return _titled(title, table)


def _memory(facts: Mapping[str, Any]) -> str:
    bandwidth = facts["bandwidth_bytes_per_s"]
    speed = "" if bandwidth is None else f"Memory is read at {bandwidth / _GB:.1f} GB/s (measured). "
    told = _REGIMES.get(facts["regime"], "The floor is the bytes of weights and cache over that.")
    return speed + told


def _grid(found: Mapping[str, Any]) -> Group:
    ks = list(found["costs"])
    table = _table("alpha", *(f"K={k}" for k in ks))
    for row in found["grid"]:
        cells = [
            f"[bold]{value:.2f}[/bold]" if k == row["best_k"] else f"{value:.2f}"
            for k, value in row["speedups"].items()
        ]
        table.add_row(f"{row['alpha']:.2f}", *cells)
    needed = found["break_even"]
    table.add_row("pays from", *("never" if needed[k] is None else f"{needed[k]:.2f}" for k in ks))
    return _titled("Predicted speedup, forwards alone, independent tests", table)


def _forced(found: Mapping[str, Any]) -> Group:
    shares = " ".join(f"{p:.2f}" for p in found["acceptance_by_position"])
    title = f"Measured with SYNTHETIC acceptance ({shares}), {found['rounds']} rounds"
    table = _table("arm", "ms/token", "tokens/loop", "speedup [95%]", "predicted")
    for arm in found["arms"]:
        name = f"SpS (K={arm['k']})" if arm["k"] else "ArS"
        predicted = "-" if arm["predicted"] is None else f"{arm['predicted']:.2f}x"
        own = speedup(arm["speedup"]) if arm["k"] else "1x"
        cells = milliseconds(arm["ms_per_token"]), f"{arm['tokens_per_loop']:.2f}"
        table.add_row(name, *cells, own, predicted)
    return _titled(title, table)
