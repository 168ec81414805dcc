"""``spsbench tasks``, ``pairs`` and ``protocols``: what can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def tasks() -> None:
    """List the tasks."""
    from spsbench.tasks.catalogue import list_tasks

    rows = [(spec.name, spec.title, ", ".join(spec.samplings)) for spec in list_tasks()]
    _print(("task", "what", "samplings"), rows)


def pairs() -> None:
    """List the pairs of target and draft."""
    from spsbench.config import list_pairs, load_pair

    found = [load_pair(name) for name in list_pairs()]
    rows = [(pair.name, f"{pair.target.id}\n{pair.draft.id}", pair.notes) for pair in found]
    _print(("pair", "target\ndraft", "notes"), rows)


def protocols() -> None:
    """List the protocols: how much is measured."""
    from spsbench.config import list_protocols, load_protocol

    found = [load_protocol(name) for name in list_protocols()]
    rows = [
        (
            protocol.name,
            ", ".join(map(str, protocol.ks)),
            "all" if protocol.limit is None else str(protocol.limit),
            protocol.notes,
        )
        for protocol in found
    ]
    _print(("protocol", "K", "prompts", "notes"), rows)


def _print(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from spsbench.cli.console import out

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="not bold dim")
    for index, title in enumerate(header):
        table.add_column(title, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out().print(table)
