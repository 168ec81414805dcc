"""``spsbench bench --batch 1,2,4,8``: reading the list, and the surface of speedups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spsbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.report.tables import Cell

USUAL_ALPHA = 0.8
"""That predictions assume where no acceptance is given."""


def sizes(text: str | None) -> tuple[int, ...]:
    """``1,2,4,8`` ascending and each once; nothing where nothing was typed."""
    from spsbench.config.models import MAX_BATCH

    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    found = {int(part) if part.isascii() and part.isdigit() else 0 for part in parts}
    if not all(1 <= size <= MAX_BATCH for size in found):
        raise UsageError(
            f"it must be whole numbers from 1 to {MAX_BATCH}, got {text}.",
            flag="--batch",
            remedy="Give one (8) or a list (1,2,4,8).",
        )
    return tuple(sorted(found))


def by_batch(facts: Mapping[str, Any]) -> list[RenderableType]:
    """Forwards by batch size, the speedups that they allow, those of real loops, and up to where they pay."""
    from rich.console import Group
    from rich.text import Text

    place = f"{facts['device']}, {facts['threads']} threads, after {facts['context']} tokens"
    assumed = facts["assumed"]
    tables = {
        f"Forwards by batch size, {place}": _forwards(facts),
        f"Predicted speedup by the forwards alone, {assumed}": _speedups(facts, "predicted"),
    }
    if any(cell["measured"] for cell in facts["cells"]):
        tables[f"Measured with SYNTHETIC acceptance, {assumed}"] = _speedups(facts, "measured")
    parts: list[RenderableType] = []
    for title, table in tables.items():
        parts += [Group(Text(title, style="bold"), "", table.as_rich()), ""]
    return [*parts, _sentence(facts)]


def _forwards(facts: Mapping[str, Any]) -> Any:
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
