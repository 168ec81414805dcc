"""A run that is killed at any moment, and continued, is the run that nobody disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def survive(kills: int, folder: Path) -> dict[str, float]:
    """In a process of its own, which may fork."""
    script = Path(__file__).parents[1] / "support/killing.py"
    command = [sys.executable, str(script), str(kills), str(folder)]
    path = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_kill(tmp_path: Path) -> None:
    assert survive(1, tmp_path)["kills"] >= 1


@pytest.mark.thorough
def test_a_few_kills(tmp_path: Path) -> None:
    assert survive(3, tmp_path)["kills"] >= 3


@pytest.mark.soak
def test_a_hundred_kills(tmp_path: Path) -> None:
    told = survive(100, tmp_path)
    print(told)
    assert told["kills"] >= 100
