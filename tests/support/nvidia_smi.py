"""A program that answers as NVIDIA's own tool does, of boards that are not there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

H100 = {
    "index": "0",
    "uuid": "GPU-8a1f",
    "name": "NVIDIA H100 80GB HBM3",
    "mig.mode.current": "Disabled",
    "memory.total": "81559",
    "driver_version": "535.183.01",
    "persistence_mode": "Enabled",
    "ecc.mode.current": "Enabled",
    "power.limit": "600.00",
    "power.default_limit": "700.00",
    "clocks.max.sm": "1980",
    "clocks.max.memory": "2619",
    "clocks.current.sm": "345",
    "clocks.current.memory": "2619",
    "temperature.gpu": "34",
    "power.draw": "[N/A]",
}

_PROGRAM = """#!{python} -S
import json, sys
asked = next((each.partition("=")[2] for each in sys.argv[1:] if each.startswith("--query-gpu=")), "")
with open({calls!r}, "a") as calls:
    print(asked, file=calls)
units = {{}} if any("nounits" in each for each in sys.argv) else {{"memory.total": " MiB"}}
for board in json.loads({boards!r}):
    print(", ".join(board.get(name, "[N/A]") + units.get(name, "") for name in asked.split(",")))
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *boards: dict[str, str]) -> Path:
    """Put the program first in PATH; the file that gets a line for each time it is asked."""
    calls = folder / "asked.txt"
    calls.touch()
    program = folder / "nvidia-smi"
    text = _PROGRAM.format(python=sys.executable, calls=str(calls), boards=json.dumps(boards))
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return calls
