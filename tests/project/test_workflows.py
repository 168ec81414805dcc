"""Each step of the workflows is a make target or a script that runs here too; versions are those pinned."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FLOWS = (ROOT / ".github/workflows").glob("*.yml")
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in FLOWS}
TARGETS = set(re.findall(r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
NAMES = {name for targets in TARGETS for name in targets.split()}


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{file}: {name}", job) for file, it in WORKFLOWS.items() for name, job in it["jobs"].items()]


def commands(job: dict[str, Any]) -> list[str]:
    """What a job runs, for every cell of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = []
    for step in job["steps"]:
        for values in itertools.product(*matrix.values()) if "run" in step else ():
            line = step["run"]
            for name, value in zip(matrix, values, strict=True):
                line = line.replace(f"${{{{ matrix.{name} }}}}", value)
            found.append(line)
    return found


def unknown(line: str) -> bool:
    """Whether a command is neither a make target nor a script of the repository."""
    if target := re.fullmatch(r"make PYTHON=python ([\w-]+)", line):
        return target[1] not in NAMES
    return not (re.fullmatch(r"\.ci/\w+", line) and os.access(ROOT / line, os.X_OK))


@pytest.mark.parametrize(("name", "job"), jobs(), ids=[name for name, _ in jobs()])
def test_a_job_runs_what_runs_here_and_actions_have_a_version(name: str, job: dict[str, Any]) -> None:
    assert [line for line in commands(job) if unknown(line)] == []
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", action)] == []
    assert used or commands(job)


def test_a_step_that_is_no_target_is_found() -> None:
    assert unknown("make PYTHON=python tset")
    assert unknown("pip install spsbench")
    assert unknown(".ci/none")
    assert not unknown(".ci/run")


def test_both_tiers_run_on_every_python_that_is_supported() -> None:
    ran = {name: set(commands(job)) for name, job in jobs()}
    assert ran["tests.yml: tests"] == {"make PYTHON=python test", "make PYTHON=python thorough"}
    assert WORKFLOWS["tests.yml"]["jobs"]["tests"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert ran["tests.yml: parts"] == {"make PYTHON=python parts"}
    assert ran["tests.yml: dependencies"] == {"make PYTHON=python oldest", "make PYTHON=python newest"}


def test_the_bare_image_runs_the_commands_of_the_readme() -> None:
    *_, first, second = (ROOT / ".ci/bare").read_text().splitlines()
    assert (first, second) == ("make run", "make test")
    readme = (ROOT / "README.md").read_text()
    assert re.search(rf"^{first} .*\n{second} ", readme, re.M)


def test_hooks_have_the_pinned_versions() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    found = {
        hook["id"].removesuffix("-check"): each["rev"].removeprefix("v")
        for each in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in each["hooks"]
    }
    assert found == {name: pins[name] for name in ("ruff", "mypy")}
