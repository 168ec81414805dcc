"""Runs a module of spsbench, or a file, in another engine's environment, where spsbench is not installed.

    PYTHON launch.py spsbench.parts.external.workers.openvino
    PYTHON launch.py benchmarks/museum/transformers_worker.py

Only the files of this package are found, and none of what lies beside it: an engine's environment keeps its
own versions of everything.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

LAUNCH = Path(__file__).resolve()
"""This file, for the process that runs it."""


def main() -> None:
    """Run the named module or file as Python would, with the arguments after it."""
    package = ModuleType("spsbench")
    package.__path__ = [str(LAUNCH.parents[2])]
    sys.modules["spsbench"] = package
    sys.path.pop(0)
    del sys.argv[0]
    run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
    run(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
