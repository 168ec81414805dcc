from __future__ import annotations

import subprocess
import sys

import pytest

from spsbench.models import memory

SECOND_POOL = """
from spsbench.errors import UsageError
from spsbench.models.onnx_lm import session_options
session_options(1)
session_options(2)
session_options(2)
for threads in (1, 3):
    try:
        session_options(threads)
    except UsageError as error:
        print(error.flag, error.message)
"""


@pytest.mark.parametrize(
    ("parameters", "most", "expected"),
    [(1, 8, 1), (3_000_000, 8, 1), (3_000_001, 8, 2), (6_700_000, 2, 2), (135_000_000, 16, 16)],
)
def test_threads_follow_from_the_size_and_the_cores_alone(
    monkeypatch: pytest.MonkeyPatch, parameters: int, most: int, expected: int
) -> None:
    monkeypatch.setattr(memory, "_MOST", most)
    assert memory.suitable_threads(parameters) == expected


@pytest.mark.thorough
def test_a_process_has_one_pool_of_one_size() -> None:
    done = subprocess.run([sys.executable, "-c", SECOND_POOL], capture_output=True, text=True, check=True)
    said = "--threads ONNX Runtime keeps one thread pool a process, and here it has 2, not"
    assert [line.startswith(said) for line in done.stdout.splitlines()] == [True, True]
