"""Several runs in one table, and in what their records differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spsbench.axes import label
from spsbench.report import wording
from spsbench.report.measured import Measured

if TYPE_CHECKING:
    from rich.console import RenderableType

ALIGN = "lllrrlr"
NOTE = (
    "Each speedup is against the run's own ArS. Times of different runs compare only where nothing below "
    "differs; `spsbench compare` pairs their prompts."
)

_FACTS = {
    "task": ("task_label",),
    "data": ("data", "source"),
    "prompts": ("identity", "prompt_sha256"),
    "pair": ("pair",),
    "synthetic": ("synthetic",),
    "dtype": ("identity", "dtype"),
    "device": ("identity", "device"),
    "max_new_tokens": ("identity", "max_new_tokens"),
    "fixed_length": ("identity", "fixed_length"),
    "seed": ("identity", "seed"),
    "threads": ("models", "threads"),
    "cpu": ("environment", "cpu", "model"),
    "gpus": ("environment", "gpus"),
    "spsbench": ("environment", "spsbench"),
    "git": ("environment", "git"),
    "torch": ("environment", "libraries", "torch"),
}


def header(runs: Sequence[Measured]) -> list[str]:
    """Titles of ``table``; quality goes by the metric's name where all runs have the same."""
    names = {_metric(measured) for measured in runs}
    quality = wording.metric_title(names.pop()) if len(names) == 1 else "quality"
    return ["run", "arm", "sampling", quality, "ms/token", "speedup [95%]", "tokens/loop"]


def table(runs: Sequence[Measured]) -> list[list[str]]:
    """One row per arm of every run."""
    lines = []
    mixed = len({_metric(measured) for measured in runs}) > 1
    for measured in runs:
        name = _metric(measured)
        for row in measured.summary["rows"]:
            quality = wording.metric(name, row["metrics"].get(name)) if name else wording.NOTHING
            if mixed and quality != wording.NOTHING:
                quality = f"{wording.metric_title(name)} {quality}"
            times = (wording.milliseconds(row["ms_per_token"]), wording.row_speedup(row))
            tokens = wording.number(row["tokens_per_loop"], 2)
            lines.append([measured.name, label(row), row["sampling"], quality, *times, tokens])
    return lines


def _metric(measured: Measured) -> str | None:
    return wording.headline_metric(dict(measured.summary))


def differences(runs: Sequence[Measured]) -> list[list[str]]:
    """What makes the runs different experiments: a row per fact, its value in each run."""
    found = []
    for name, path in _FACTS.items():
        values = [_text(_at(measured.run, path)) for measured in runs]
        if len(set(values)) > 1:
            found.append([name, *values])
    return found


def _at(content: Any, path: Sequence[str]) -> Any:
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _text(value: Any) -> str:
    if value is None:
        return wording.NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def screen(runs: Sequence[Measured]) -> RenderableType:
    """The table for a terminal of 80 columns: runs go by letters, told above it."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    letters = {measured.name: _letter(place) for place, measured in enumerate(runs)}
    names = [
        Text(f"{letters[m.name]}  {m.name}: {wording.title(dict(m.summary))}", overflow="fold") for m in runs
    ]

    def grid(titles: Sequence[str], align: str) -> Table:
        made = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            header_style="not bold dim",
        )
        for title, side in zip(titles, align, strict=True):
            made.add_column(title, justify="right" if side == "r" else "left", overflow="fold")
        return made

    compared = grid(header(runs), ALIGN)
    for name, *cells in table(runs):
        compared.add_row(letters[name], *(Text(wording.printable(cell)) for cell in cells))
    parts: list[RenderableType] = [Text(), *names, Text(), compared]
    if different := differences(runs):
        facts = grid(["differs", *letters.values()], "l" * (1 + len(letters)))
        for line in different:
            facts.add_row(*(Text(wording.printable(cell)) for cell in line))
        parts += [Text(), facts]
    return Group(*(Padding(part, (0, 1)) for part in parts), Text())


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else str(place + 1)
