"""Ends a worker's processes when spsbench itself ends without doing so, killed for instance.

    python guard.py GROUP

A stopped process notices nothing, so that it would keep its memory for good. Standard input is a pipe that
spsbench holds: a byte on it says that the worker was ended, its end without one that spsbench is gone. On the
standard library alone and started as a file, so that it takes a few milliseconds and little memory.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Wait for what comes first."""
    if not os.read(0, 1):
        with suppress(ProcessLookupError):
            os.killpg(int(sys.argv[1]), signal.SIGKILL)


if __name__ == "__main__":
    main()
