"""Tests are code: they run in the sandbox of the program that they judge, in a process apart from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spsbench.base.errors import SpsbenchError
from spsbench.parts.judge import judge
from spsbench.parts.judge.inside import labels
from spsbench.parts.judge.isolation import WorkerProcess, probe
from tests.parts.judge.test_judging import PROBLEM, RIGHT, job, pid_of

WHERE = ("top", "head", "check", "late", "def")


@pytest.fixture(scope="module", params=["safe", "limits"])
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    one = WorkerProcess(probe().layers if request.param == "safe" else ("limits",))
    yield one
    one.close()


def problem(where: str, line: str) -> dict[str, str]:
    """PROBLEM with a line of a stranger's at a place of its text."""
    indented = f"    try:\n        {line}\n    except OSError:\n        pass\n"
    guarded = indented.replace("\n    ", "\n").removeprefix("    ")
    test = PROBLEM["test"]
    return (
        PROBLEM
        | {
            "top": {"test": guarded + test},
            "head": {"prompt": guarded + PROBLEM["prompt"]},
            "check": {"test": test.replace("    assert", indented + "    assert", 1)},
            "late": {"test": test + indented},
            "def": {"test": f"def f():\n{indented}{test.replace('(candidate):', '(candidate, x=f()):')}"},
        }[where]
    )


@pytest.mark.parametrize("where", WHERE)
def test_a_line_of_a_test_reaches_no_file(where: str, tmp_path: Path, worker: WorkerProcess) -> None:
    """With the sandbox switched off it does."""
    tmp_path.chmod(0o777)
    mark = tmp_path / "mark"
    for folder in tmp_path.parents[:-2]:  # for the user that a sandbox of root's runs as
        folder.chmod(folder.stat().st_mode | 0o011)
    asked = problem(where, f"__import__('os').symlink('there', {str(mark)!r})")
    assert worker.ask(job(RIGHT, 20.0, **asked))["result"] == labels.PASSED
    assert mark.is_symlink() is (worker._layers == ("limits",))


def test_nothing_of_a_test_runs_in_the_judges_process(worker: WorkerProcess) -> None:
    test = "import os\ndef check(f):\n    assert 0, f'{os.getppid()} {f(2)}'\n"
    result = worker.ask(job("    import os\n    return os.getppid()\n", 20.0, test=test))["result"]
    assert str(pid_of(worker)) not in result.split()
    assert len({*result.split()[-2:]}) == 1, "test and program have one zygote"


@pytest.mark.parametrize("line", ["import no_such", "open('/etc/hostname').read()", "__import__('pytest')"])
def test_a_test_that_needs_what_the_sandbox_lacks_is_no_score(line: str) -> None:
    test = f"def check(candidate):\n    {line}\n    assert candidate(2) == 4\n"
    with pytest.raises(SpsbenchError, match="its test needs what the sandbox does not have"):
        judge([{**PROBLEM, "test": test}], [RIGHT], workers=1)


def test_a_test_that_ends_its_process_is_no_score() -> None:
    with pytest.raises(SpsbenchError, match="the process of the tests ended"):
        judge([{**PROBLEM, "test": "import os\ndef check(f):\n    os._exit(0)\n"}], [RIGHT], workers=1)


def test_what_tests_say_in_other_words_is_no_score() -> None:
    say = "b's' + wire.dumps(['result', 'passed with honours'])"
    body = f"    wire.send(4, {say})\n    while True:\n        pass\n"
    lines = f"from spsbench.parts.judge.inside import wire\ndef check(f):\n{body}"
    with pytest.raises(SpsbenchError, match="no verdict"):
        judge([{**PROBLEM, "test": lines}], [RIGHT], workers=1)


def test_tests_of_one_problem_leave_nothing_to_those_of_another() -> None:
    spoil = "import math\ndef check(f):\n    math.pi = f(2)\n"
    asks = "import math\ndef check(f):\n    assert f(2) > math.pi\n"
    verdicts = judge(
        [{**PROBLEM, "test": test} for test in (spoil, asks, spoil, asks)], [RIGHT] * 4, workers=1
    )
    assert [each.result for each in verdicts] == [labels.PASSED] * 4


def test_programs_of_a_problem_meet_tests_that_begin_anew(worker: WorkerProcess) -> None:
    test = "seen = []\ndef check(f):\n    seen.append(f(2))\n    assert seen == [4]\n"
    for more in ("", "# again\n", "# and again\n"):
        assert worker.ask(job(RIGHT + more, 20.0, test=test))["result"] == labels.PASSED


def test_a_program_does_not_reach_the_process_of_its_tests() -> None:
    """By signals, which a sandbox alone refuses: without one the tests end."""
    body = (
        "    import os\n    for pid in range(os.getppid(), os.getpid() + 99):\n        try:\n"
        "            if pid not in (os.getpid(), os.getppid()):\n                os.kill(pid, 0)\n"
        "                return pid\n        except OSError:\n            pass\n    return 4\n"
    )
    test = "def check(f):\n    assert f(2) == 4\n"
    (verdict,) = judge([{**PROBLEM, "test": test}], [body], workers=1)
    assert verdict.passed, verdict
    bare = WorkerProcess(("limits",))
    try:
        assert bare.ask(job(body, 20.0, test=test))["result"] == "failed: AssertionError"
    finally:
        bare.close()


def test_a_long_test_is_read_before_the_time_of_a_program_begins(worker: WorkerProcess) -> None:
    data = ", ".join(map(str, range(300_000)))
    test = f"DATA = [{data}]\ndef check(f):\n    assert f(2) == 4 and len(DATA) == 300_000\n"
    for more in ("", "# again\n"):
        assert worker.ask(job(RIGHT + more, 20.0, test=test))["result"] == labels.PASSED
