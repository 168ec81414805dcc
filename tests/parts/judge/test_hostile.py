"""Hostile programs do no harm on any level, and do with a layer switched off.

Attacks, and how harm is seen from outside: ``attacks``, ``scene``, ``hostile``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.parts.judge.inside.kernel import NOBODY
from spsbench.parts.judge.isolation import LEVELS, WorkerFailure, WorkerProcess
from tests.parts.judge.attacks import CLAIMS
from tests.parts.judge.hostile import ATTACKS, _ask, run

HERE = Path(__file__).resolve().parent


def or_skip(layers: tuple[str, ...]) -> None:
    """Skip where a layer is not to be had. (What is to be had must hold.)"""
    try:
        WorkerProcess(layers).close()
    except WorkerFailure as failure:
        pytest.skip(f"{'+'.join(layers)}: {failure}")


def test_there_are_enough_attacks() -> None:
    assert len(ATTACKS) >= 90


@pytest.mark.thorough_but("[landlock+seccomp]")
@pytest.mark.parametrize("layers", LEVELS, ids="+".join)
def test_no_harm_on_any_level(layers: tuple[str, ...]) -> None:
    or_skip((*layers, "limits"))
    assert run((*layers, "limits")) == {}


RELAY = f"""
import os
FOLDER = {str(Path(os.__file__).parent)!r}
FILES = {sorted(path.name for path in Path(os.__file__).parent.glob("*.py"))[:8]!r}

def leave(word):
    for place, name in enumerate(FILES):
        if word >> place & 1:
            open(os.path.join(FOLDER, name), "rb").read(1)
    return True

def find():
    def read(name):
        return os.fstat(os.open(os.path.join(FOLDER, name), os.O_RDONLY)).st_atime > 1e9
    return sum(read(name) << place for place, name in enumerate(FILES))
"""


@pytest.mark.thorough_but("[landlock+seccomp]")
@pytest.mark.parametrize("layers", LEVELS, ids="+".join)
def test_no_answer_passes_from_program_to_program_by_access_times(layers: tuple[str, ...]) -> None:
    or_skip((*layers, "limits"))
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:8]
    if not all(os.access(file, os.W_OK) for file in files):
        pytest.skip("access times of the library are not ours to set")
    worker = WorkerProcess((*layers, "limits"))
    try:
        for file in files:  # so long ago that the next look is noted, with relatime too
            os.utime(file, ns=(0, file.stat().st_mtime_ns))
        for name, asks in (("leave", "candidate(0b10100110)"), ("find", "assert candidate() == 0b10100110")):
            problem = {"task_id": name, "prompt": "", "entry_point": name}
            problem["test"] = f"def check(candidate):\n    {asks}\n"
            result = _ask(worker, problem, RELAY, 10.0)
    finally:
        worker.close()
    assert result != "passed"


@pytest.mark.parametrize(
    ("layers", "harmful"),
    [
        (
            ("landlock", "limits"),
            {"changes a file's times", "sends by UDP", "connects to a socket by path", "takes shared memory"}
            | {"looks at a file", "reads where a link points to", "counts processes"}
            | {"wakes whoever waits at a library's page"},
        ),
        (
            ("bubblewrap", "limits"),
            {"kills beside it", "sends by UDP", "takes a user namespace", "grows a pipe", "counts processes"},
        ),
        (
            ("namespaces", "limits"),
            {"listens", "talks to the kernel by netlink", "grows a pipe", "counts processes"},
        ),
        (("landlock", "seccomp"), {"takes two gigabytes", "takes many descriptors", "raises its limits"}),
        (
            ("limits",),
            {"makes a file", "truncates a file", "connects by TCP", "executes a program", "kills beside it"}
            | {"reads /proc", "lets SIGIO kill", "removes a file"},
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_layer_switched_off_is_noticed(layers: tuple[str, ...], harmful: set[str]) -> None:
    if os.geteuid() != 0:  # these depend on who one is
        harmful -= {"takes a user namespace"}
    or_skip(layers)
    assert set(run(layers, harmful)) == harmful


@pytest.mark.thorough_but("[namespaces")
@pytest.mark.parametrize("layers", LEVELS, ids="+".join)
def test_no_harm_when_an_ordinary_user_judges(layers: tuple[str, ...]) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is one: the tests above are this test")
    python = _readable_python()
    if python is None:
        pytest.skip("no interpreter that an ordinary user can run")
    done = subprocess.run(
        [python, "-m", "tests.parts.judge.hostile", "+".join((*layers, "limits")), *CLAIMS],
        env={"PYTHONPATH": f"{HERE.parents[2]}", "PATH": os.environ["PATH"]},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if "is not installed" in done.stderr or "WorkerFailure" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stderr == ""
    assert json.loads(done.stdout) == {}


def _readable_python() -> str | None:
    """One that user nobody can run, new enough, with these tests within reach."""
    for found in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if found is None:
            continue
        question = f"import sys, os; open({str(HERE / 'hostile.py')!r}); sys.exit(sys.version_info < (3, 11))"
        given = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        try:
            if (
                subprocess.run([found, "-c", question], **given, capture_output=True, check=False).returncode
                == 0
            ):
                return found
        except PermissionError:
            continue
    return None
