"""The worst neighbour that an engine can be: it holds 256 MiB and spins on every core, asked or not.

A worker of the engine protocol for ``neighbours.py``; it answers with a stop token.
"""

from __future__ import annotations

import os
import subprocess
import sys

from spsbench.base.protocol import STOP, Answer, Ask, Described, Load
from spsbench.parts.external.serving import serve

HELD_BYTES = 256 << 20


class Spinning:
    """An engine whose pool never sleeps; its children are of its process group."""

    def __init__(self, asked: Load) -> None:
        self._held = bytearray(os.urandom(1 << 20) * (HELD_BYTES >> 20))
        spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
        self._pool = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]

    def describe(self) -> Described:
        """See ``Served``."""
        return Described("spinning", "1")

    def generate(self, ask: Ask) -> Answer:
        """See ``Served``."""
        return Answer([ask.stop_ids[0]], STOP)


if __name__ == "__main__":
    serve(Spinning)
