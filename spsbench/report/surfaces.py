"""The table of speedups by batch size and K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spsbench.axes import EAGER, unusual
from spsbench.report import wording
from spsbench.report.results import coloured
from spsbench.report.tables import Cell, Table, left, right
from spsbench.summary_types import PaysUpTo, Summary, Surface, SurfaceCell

NOTE = (
    "Speedup of SpS over ArS of the same batch size B. Tokens/s: of the whole batch while every row is "
    "taken. ms/token: what a sequence waits for each token. Both of SpS: at its fastest K."
)


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The section of report.md; nothing for a run of one batch size."""
    lines: list[str] = []
    for surface in summary.get("surfaces") or []:
        lines += ["", f"### {wording.escape(title(surface))}", "", *table(surface).as_markdown()]
        lines += [line for text in sentences(surface) for line in ("", wording.escape(text))]
    return ["## Batches", "", wording.escape(NOTE), *lines] if lines else []


def title(surface: Surface) -> str:
    """What the surface is of, beside batch size and K."""
    engine = [] if surface["engine"] == EAGER else [f"@{surface['engine']}"]
    return ", ".join(
        ["Speedup by batch size", surface["sampling"], *unusual({"method": "sps", **surface}), *engine]
    )


def table(surface: Surface, *, intervals: bool = True) -> Table:
    """A row a batch size, a column a K; without intervals it fits on a screen."""
    ks = sorted({cell["k"] for cell in surface["cells"]} - {0})
    columns = [right("B"), right("ArS tokens/s"), right("ms/token")]
    columns += [left(f"K={k}", note="95%", whole=True) if intervals else right(f"K={k}") for k in ks]
    columns += [right("SpS tokens/s"), right("ms/token")]
    return Table(columns, [_row(batch, surface, ks, intervals=intervals) for batch in batches(surface)])


def batches(surface: Surface) -> list[int]:
    """The batch sizes, ascending."""
    return sorted({cell["batch"] for cell in surface["cells"]})


def _row(batch: int, surface: Surface, ks: list[int], *, intervals: bool) -> list[Cell]:
    cells = {cell["k"]: cell for cell in surface["cells"] if cell["batch"] == batch}
    speculative = [cells[k] for k in ks if k in cells]
    best = max(speculative, key=lambda cell: cell["tokens_per_s"], default=None)
    return [
        str(batch),
        *_rates(cells.get(0)),
        *(_speedup(cells.get(k), intervals=intervals) for k in ks),
        *_rates(best),
    ]


def _rates(cell: SurfaceCell | None) -> tuple[str, str]:
    if cell is None:
        return wording.NOTHING, wording.NOTHING
    return f"{cell['tokens_per_s']:,.0f}", wording.milliseconds(cell["latency_ms_per_token"])


def _speedup(cell: SurfaceCell | None, *, intervals: bool) -> Cell:
    found = None if cell is None else cell["speedup"]
    text = wording.speedup(found) if intervals or found is None else f"{found['ratio']:.2f}x"
    return coloured(text, found)


def sentences(surface: Surface) -> list[str]:
    """Up to which batch size each K pays, and whether batches write what batch size 1 writes."""
    largest = batches(surface)[-1]
    lines = [" ".join(_sentence(line, largest) for line in surface["pays_up_to"])]
    return [*lines, *_same_tokens(surface)]


def _same_tokens(surface: Surface) -> list[str]:
    compared = [cell for cell in surface["cells"] if cell["batch"] > 1 and cell["as_alone"] is not None]
    if not compared:
        return []
    same = sum(cell["as_alone"] or 0 for cell in compared)
    of = sum(cell["compared"] for cell in compared)
    if same == of:
        return [f"Outputs of batches are identical to those of batch size 1 on all {of:,}."]
    return [
        f"{of - same:,} of {of:,} outputs of batches differ from those of batch size 1. Forwards of more "
        "rows may round otherwise; what the evidence says of each arm stands under losslessness."
    ]


def _sentence(line: PaysUpTo, largest: int) -> str:
    k, batch = line["k"], line["batch"]
    if line["beyond"]:
        return f"K={k} pays up to the largest batch, {largest}{_from(line)}."
    if batch is None:
        return f"Of K={k} it is not known."
    if batch == 0:
        return f"K={k} pays at no batch size."
    return f"K={k} pays up to B = {batch:.3g}{_ends(line, largest)}."


def _from(line: PaysUpTo) -> str:
    return "" if line["low"] is None else f" (at least B = {line['low']:.3g}, 95%)"


def _ends(line: PaysUpTo, largest: int) -> str:
    if line["low"] is None:
        return ""
    high = f"beyond {largest}" if line["high"] is None else f"{line['high']:.3g}"
    return f" [{line['low']:.3g}, {high}]"


def shown(summary: Summary) -> Iterator[tuple[str, Table, list[str]]]:
    """Title, table and sentences of every surface, for the terminal."""
    for surface in summary.get("surfaces") or []:
        yield title(surface), table(surface, intervals=False), sentences(surface)
