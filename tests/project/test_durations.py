"""What ``make test`` writes of the CPU-seconds that each file of tests took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.durations import table

ROOT = Path(__file__).parents[2]

BUSY = """
import time
import pytest

@pytest.fixture(scope="module")
def prepared():
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass

def test_it(prepared):
    assert {holds}
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")])
def test_the_seconds_of_a_fixture_are_its_files_also_from_a_worker(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "conftest.py").write_text(
        "from support import durations\n"
        "pytest_addoption, pytest_configure = durations.add_options, durations.register\n"
    )
    (tmp_path / "test_quick.py").write_text(BUSY.format(seconds=0, holds=True))
    (tmp_path / "test_slow.py").write_text(BUSY.format(seconds=0.3, holds=False))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--cpu-seconds", "out/s.json", *workers],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "out/s.json").read_text())
    assert found.keys() == {"collection", "test_quick.py", "test_slow.py"}
    assert found["test_slow.py"] >= 0.3  # which the fixture spends, on any machine
    assert "sum; at most 600 are wanted" in done.stdout


def test_what_is_too_long_is_named() -> None:
    short = {f"tests/test_{n}.py": 1.0 + n for n in range(12)}
    lines = table(Counter({"tests/test_long.py": 31.0, "collection": 50.0, **short}), 150)
    assert lines[0] == "  159.0  sum; at most 150 are wanted, 9 too many"
    assert lines[1:4] == [
        "   50.0  collection",
        "   31.0  tests/test_long.py  (above 30)",
        "   12.0  tests/test_11.py",
    ]
    assert len(lines) == 11
    assert table(Counter(), 150) == ["    0.0  sum; at most 150 are wanted"]
