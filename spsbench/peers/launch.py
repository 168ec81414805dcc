"""Runs a module of ours in another engine's environment, where spsbench is not installed.

    PYTHON launch.py spsbench.peers.workers.openvino

Only the files of this package are found, and none of what lies beside it: an engine's environment keeps its
own versions of everything.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

LAUNCH = Path(__file__).resolve()
"""This file, for whoever runs it."""


def main() -> None:
    """Run the module that was named as if by ``-m``, with the arguments behind it."""
    package = ModuleType("spsbench")
    package.__path__ = [str(LAUNCH.parents[1])]
    sys.modules["spsbench"] = package
    sys.path.pop(0)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
