"""Commands that take minutes: their output goes to a log, and whatever they started ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from spsbench.errors import UnavailableError

_TICK_S, _END_S = 1.0, 5.0


class Run(Protocol):
    """Runs a command to its end."""

    def __call__(
        self,
        argv: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Run it.

        Args:
            tick: called about once a second.
        """


def run(
    argv: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """See ``Run``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        before = output.tell()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code = _ended(process, tick)
        finally:
            _end_group(process)
    if code:
        raise UnavailableError(
            f"`{' '.join(Path(part).name for part in argv[:4])} ...` failed: {_reason(log, before, code)}.",
            remedy=f"All that it said is in {log}.",
        )


def clean_environment() -> dict[str, str]:
    """Our variables without those that would let another interpreter find our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _ended(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_TICK_S)
        tick()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End it with its children; nothing happens where all have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(log: Path, start: int, code: int) -> str:
    """The last line that says error, else the last one; of pip without a network that it has none."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    if any("connection" in line and "establish" in line for line in map(str.lower, lines)):
        return "no package index can be reached"
    errors = [line for line in lines if "error" in line.lower()]
    return next(reversed(errors or lines), f"it ended with {code}").removeprefix("ERROR: ").rstrip(".")
