"""Where words go: results to stdout, everything else to stderr.

Every command keeps the same contract:

    (nothing)         the result as tables on stdout; progress and messages on stderr
    --json            the result as JSON alone on stdout; progress and messages on stderr
    --quiet           nothing but errors on stderr, nothing on stdout; the exit code says what happened
    --quiet --json    JSON alone on stdout, nothing but errors on stderr

Names come from models, folders and files of others: whatever would drive a terminal is left out here, once.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from spsbench.base.errors import printable
from spsbench.base.messages import Message
from spsbench.cli.messages import LOAD_IN_REMEASURED_RUNS, LOAD_IN_RUNS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from spsbench.base.messages import Message


_LOG_LINES = 5
"""Lines that a log gets of a transfer."""


class Transfers:
    """A watcher of ``spsbench.models.fetch.cache``."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._warned: set[str] = set()

    def said(self, message: str) -> None:
        say(message, quiet=self._quiet)

    def warned(self, message: str) -> None:
        """Print a warning once, in yellow and unwrapped, so that a command in it can be copied."""
        if message not in self._warned:
            self._warned.add(message)
            err(quiet=self._quiet).print(message, style="yellow", soft_wrap=True, markup=False)

    @contextmanager
    def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        """Show a transfer as a bar, or as lines; see ``Watcher``."""
        from spsbench.models.messages import megabytes

        console = err(quiet=self._quiet)
        if self._quiet or not console.is_terminal:
            if done < total:
                self.said(f"Fetching {what}")
            here = done

            def came(count: int) -> None:
                """Print a line whenever another fifth has arrived."""
                nonlocal here
                before, here = here, here + count
                if before * _LOG_LINES // total < here * _LOG_LINES // total:
                    self.said(f"{megabytes(here)} of {megabytes(total)}")

            yield came
            return
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn(), TextColumn("left"))
        console.print(f"Fetching {what}", soft_wrap=True, markup=False)
        with Progress(*columns, console=console, transient=True, expand=True) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda count: bar.advance(task, count)


def present(
    facts: Callable[[], Any], screen: Callable[[], RenderableType | str], *, json: bool, quiet: bool
) -> None:
    """Print a command's result on stdout, as the contract of this module says."""
    if json:
        print_json(facts())
    elif not quiet:
        out().print(screen())


def out(*, quiet: bool = False) -> Console:
    """Return the console for results; with ``quiet`` it prints nothing."""
    return _console(sys.stdout, quiet)


def err(*, quiet: bool = False) -> Console:
    """Return the console for progress and messages; with ``quiet`` it prints nothing."""
    return _console(sys.stderr, quiet)


def _console(file: TextIO, quiet: bool) -> Console:
    """It prints no control characters but its own; nothing with ``quiet``."""
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Harmless(Console):
        """Prints no control character but its own."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    yield Segment(harmless(segment.text), segment.style)

    return Harmless(file=file, highlight=False, quiet=quiet)


def harmless(text: str) -> str:
    """Return lines of text without characters that would drive a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def say(message: Message | str, *, quiet: bool = False) -> None:
    """Print a message on stderr as it is, without markup or wrapping, so that commands can be copied."""
    if not quiet:
        print(harmless(str(message)), file=sys.stderr, flush=True)


def prose(message: str) -> str:
    """Wrap a message without a command, which could not be copied, between words at the terminal's width."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(message, width, break_long_words=False, break_on_hyphens=False)


def hint(message: Message | str | None, *, quiet: bool = False) -> None:
    """Print a remark on stderr, if there is one, dimmed and unwrapped."""
    if message is not None:
        err(quiet=quiet).print(str(message), style="dim", soft_wrap=True, markup=False)


def say_if_busy(consequence: str, *, quiet: bool = False) -> None:
    """Say on stderr, before anything is measured, that others use this machine, and the consequence."""
    from spsbench.base import environment

    if not quiet and (sentence := environment.busy()) is not None:
        say(prose(f"{sentence} {consequence}"))


def load_in_runs(*, remeasured: bool) -> str:
    """What other load does to a run, by whether disturbed prompts are timed again."""
    return LOAD_IN_REMEASURED_RUNS if remeasured else LOAD_IN_RUNS


def complain(message: str) -> None:
    """Print an error on stderr, without the passwords of URLs in it."""
    shown = re.sub(r"(:/{1,2})[^/\s@]+@", r"\1", message)  # a path has one slash
    print(f"error: {harmless(shown)}", file=sys.stderr, flush=True)


def print_json(content: Any) -> None:
    import json

    print(json.dumps(content, indent=2, allow_nan=False))


def broken_pipe(error: BaseException) -> bool:
    """Return whether the reader of the output has gone; its buffered rest is then dropped."""
    from_typer = isinstance(error, SystemExit) and isinstance(error.__context__, OSError)
    cause = error.__context__ if from_typer else error
    if not (isinstance(cause, OSError) and cause.errno == errno.EPIPE):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return True
