"""What is fetched and converted, on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spsbench.cli.console import err, say

_LOG_LINES = 5
"""Lines that a log gets of a transfer."""


class Transfers:
    """A watcher of ``spsbench.fetch.watching``."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def said(self, message: str) -> None:
        """A line."""
        say(message, quiet=self._quiet)

    @contextmanager
    def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        """A bar, or lines; see ``Watcher``."""
        console = err(quiet=self._quiet)
        if self._quiet or not console.is_terminal:
            if done < total:
                self.said(f"Fetching {what}")
            yield _Lines(total, done, self.said).came
            return
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn(), TextColumn("left"))
        console.print(f"Fetching {what}", soft_wrap=True, markup=False)
        with Progress(*columns, console=console, transient=True, expand=True) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda count: bar.advance(task, count)


class _Lines:
    """Says so whenever another fifth has come."""

    def __init__(self, total: int, done: int, say: Callable[[str], None]) -> None:
        self._total, self._done, self._say = total, done, say

    def came(self, count: int) -> None:
        """So many bytes more."""
        before, self._done = self._done, self._done + count
        if before * _LOG_LINES // self._total < self._done * _LOG_LINES // self._total:
            self._say(f"{self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB")
