from __future__ import annotations

from pathlib import Path

import pytest

from spsbench.cli import run as measure


@pytest.mark.parametrize(
    ("typed", "on_path", "expected"),
    [
        ("/usr/bin/spsbench", "/usr/bin/spsbench", "spsbench run --resume 'a b'"),
        (".venv/bin/spsbench", None, ".venv/bin/spsbench run --resume 'a b'"),
        (".venv/bin/spsbench", "/usr/bin/spsbench", ".venv/bin/spsbench run --resume 'a b'"),
        ("/x/spsbench/__main__.py", None, "spsbench run --resume 'a b'"),
    ],
)
def test_the_command_works_where_the_first_one_was_typed(
    monkeypatch: pytest.MonkeyPatch, typed: str, on_path: str | None, expected: str
) -> None:
    monkeypatch.setattr("sys.argv", [typed, "run"])
    monkeypatch.setattr("shutil.which", lambda _: on_path)
    assert measure.resume_command(Path("a b")) == expected
