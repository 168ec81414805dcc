"""SIGTERM and SIGHUP end a command as Ctrl-C does, and its last line says how to continue it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spsbench.base.cluster import started
from spsbench.base.errors import DeviceFault, SpsbenchError
from spsbench.cli.console import say
from spsbench.cli.messages import CommandInterrupted, WayToContinue

INTERRUPTED = 130
"""What shells report of a process that Ctrl-C ended (128 + SIGINT)."""

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What schedulers and closed terminals send."""

_SAME_REQUEST_S = 1.0
"""Launchers pass on what the whole process group was sent already: that is one request, not two."""


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interruption:
    """Whether a command was interrupted, by the signal ``signum`` that arrived first, and how it is
    continued, see ``continued_by``."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self.arguments = tuple(arguments)
        self.signum: int | None = None
        self._since_s = 0.0
        self.continuation: Callable[[], str | None] = lambda: None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number: 143 (SIGTERM), 129 (SIGHUP), 130 (Ctrl-C)."""
        return 128 + (self.signum or signal.SIGINT)

    def caused(self, error: BaseException) -> bool:
        """Return whether an error is the interruption, or was caused by it."""
        return self.signum is not None or isinstance(error, KeyboardInterrupt)

    def conclude(self) -> int:
        """Print how to continue, with the command as the last line of stderr; return the exit code."""
        name = None if self.signum is None else signal.Signals(self.signum).name
        self.signum = self.signum or signal.SIGINT
        command = self.continuation()
        with suppress(OSError):  # the terminal is gone, which is why SIGHUP was sent
            say(CommandInterrupted(name, bool(command), command or written(*self.arguments)))
        return self.exit_code

    def advise(self, error: SpsbenchError) -> None:
        """Print how to continue after a device's fault, if any result is kept."""
        if isinstance(error, DeviceFault) and (command := self.continuation()):
            say(WayToContinue(command))

    def receive(self, signum: int) -> None:
        """Raise the first signal; a later one ends the process at once."""
        if self.signum is None:
            self.signum, self._since_s = signum, time.monotonic()
            raise Interrupted(signum)
        if time.monotonic() - self._since_s >= _SAME_REQUEST_S:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)


_current = Interruption()
_before: dict[int, Any] = {}


def _restore_handlers() -> None:
    while _before:
        signum, handler = _before.popitem()
        signal.signal(signum, handler)


# A forked child has no command to unwind: it dies of the signal, as without a handler.
os.register_at_fork(after_in_child=_restore_handlers)


@contextmanager
def listening(arguments: Sequence[str]) -> Iterator[Interruption]:
    """Raise ``SIGNALS`` as exceptions while a command runs; ignored signals (nohup) stay ignored."""
    global _current
    outer = _current
    _current = Interruption(arguments)
    installs = threading.current_thread() is threading.main_thread() and not _before
    try:
        if installs:
            _handle_unignored_signals()
        yield _current
    finally:
        if installs:
            _restore_handlers()
        _current = outer


def _handle_unignored_signals() -> None:
    for signum in SIGNALS:
        handler = signal.getsignal(signum)
        if handler not in (signal.SIG_IGN, None):
            _before[signum] = handler
            signal.signal(signum, lambda number, frame: _current.receive(number))


def continued_by(command: Callable[[], str | None]) -> None:
    """From here on, an interrupted command names this one as its continuation."""
    _current.continuation = command


def typed(*more: str) -> str:
    """Return the running command as it was typed, with further arguments."""
    return written(*_current.arguments, *more)


def written(*arguments: str) -> str:
    """Return a command of spsbench as it can be typed here."""
    if (count := started()) > 1:
        from spsbench.runner.ranks import launch_command

        return launch_command(count, arguments)
    program = Path(sys.argv[0])
    named = program.stem == "spsbench" and shutil.which("spsbench") != str(program)
    return shlex.join([str(program) if named else "spsbench", *arguments])
