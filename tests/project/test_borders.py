"""What crosses the borders of the package does not grow, unless the commit that records it says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.borders import RECORD, circles, counts, imports, needs, part, room

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def counted() -> dict[str, int | list[str]]:
    """Of the package; not while tests are collected, which every process does."""
    return counts()


def test_all_that_is_counted_is_recorded(counted: dict[str, int | list[str]]) -> None:
    assert counted.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_more_crosses_than_was_recorded(name: str, counted: dict[str, int | list[str]]) -> None:
    now, then = counted[name], RECORDED[name]
    remedy = "take less, or record it with `python -m benchmarks.borders --write` and say why"
    if isinstance(now, list):
        assert set(now) <= set(then), remedy
    else:
        assert now <= then, remedy


def test_what_is_counted(tmp_path: Path) -> None:
    """A made-up package: a name over a border, a circle, a class defined twice, an option by string."""
    package = tmp_path / "spsbench"
    files = {
        "__init__.py": "",
        "base.py": "class Answer: ...\n",
        "cli/__init__.py": "",
        "cli/run.py": (
            "def f(params):\n"
            "    from spsbench.parts.whatif.study import study\n"
            "    return params['k'], of_part('audit.command:audit')\n"
        ),
        "parts/__init__.py": "",
        "parts/whatif/__init__.py": "",
        "parts/whatif/study.py": (
            "from spsbench.base import Answer\nfrom spsbench.cli import run\nstudy = 1\n"
        ),
        "store/__init__.py": "class Answer: ...\n",
        "store/notes.py": (
            '"""A docstring of more words than five."""\n'
            "few = 'only four words here'\n"
            "def f(n):\n"
            "    if n < 0:\n"
            "        why = f'n is {n}, which is below none'\n"
            "        raise ValueError(f'{why}: what an error says is none')\n"
            "    return f'all of the {n} words are here', say(remedy='have this or that for it')\n"
        ),
        "store/messages.py": "SAID = 'this is where a sentence belongs'\n",
    }
    for name, source in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    found = counts(package)
    assert found["names that the core takes from parts"] == 1
    assert found["names of parts by string"] == 1
    assert found["circles of rooms"] == ["cli, parts.whatif"]
    assert found["circles of files"] == ["cli.run, parts.whatif.study"]
    assert found["arrows between rooms"] == 3
    assert found["options by string"] == 1
    assert found["classes defined twice"] == 1
    assert found["sentences outside files of messages"] == 1
    assert found["files of the core that whatif takes from"] == 2
    assert {name: by for name, by in needs(package).items() if by} == {"whatif": {"core"}}
    assert {(each.by, each.of, each.name) for each in imports(package)} == {
        ("cli.run", "parts.whatif.study", "study"),
        ("parts.whatif.study", "base", "Answer"),
        ("parts.whatif.study", "cli.run", ""),
    }


def test_a_circle_may_be_longer() -> None:
    ways = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")}
    assert circles(ways) == ["a, b, c"]
    assert circles(ways - {("c", "a")}) == []


def test_a_part_is_a_folder_of_parts() -> None:
    assert [part(name) for name in ("parts.verify.controls", "parts", "verify", "cli.run")] == [
        "verify",
        "core",
        "core",
        "core",
    ]
    assert [room(name) for name in ("parts.verify.controls", "cli.run", "api")] == [
        "parts.verify",
        "cli",
        "api",
    ]
