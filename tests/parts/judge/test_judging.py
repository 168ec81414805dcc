"""Verdicts of many programs, and that faults of ours are never scores."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from spsbench.base.errors import SpsbenchError
from spsbench.parts.judge import isolation, judge, judge_all, judging, probe
from spsbench.parts.judge.inside import labels
from spsbench.parts.judge.isolation import LEVELS, WorkerFailure, WorkerProcess
from spsbench.parts.judge.sandbox import Sandbox, SandboxFailure, mark
from spsbench.parts.judge.verdict import ProgramVerdict, Seeds
from tests.parts.judge.scene import processes

PROBLEM = {
    "task_id": "local/0",
    "prompt": "def double(x):\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2, 'sign'\n",
}
RIGHT, WRONG, HANGING = "    return 2 * x\n", "    return abs(2 * x)\n", "    while True:\n        pass\n"


_DEEP = "    y = []\n    for _ in range(62):\n        y = [y]\n    return y\n"
_CHANGED = "    x[:] = [object()]\n"


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    one = WorkerProcess(probe().layers)
    yield one
    one.close()


def pid_of(one: WorkerProcess) -> int:
    assert one._process is not None
    return one._process.pid


def job(completion: str, timeout_s: float = 3.0, **changed: str) -> dict[str, Any]:
    problem = {**PROBLEM, **changed}
    seeds = asdict(Seeds.of(b"secret", problem["task_id"]))
    limits = {"timeout_s": timeout_s, "wall_s": timeout_s}
    return {"problem": problem, "completion": completion, "seeds": seeds, **limits}


def test_verdicts_keep_the_order_of_the_input() -> None:
    completions = [WRONG, RIGHT, HANGING, "    return (\n", RIGHT]
    verdicts = judge([PROBLEM] * 5, completions, timeout_s=1.0, workers=2)
    assert [v.passed for v in verdicts] == [False, True, False, False, True]
    assert verdicts[0].result == "failed: AssertionError: sign"
    assert verdicts[2].result.startswith(labels.TIMED_OUT)
    assert verdicts[3].result.startswith("failed: SyntaxError: ")


@pytest.mark.parametrize(
    ("completion", "result"),
    [
        ("    return [0] * 10 ** 10\n", labels.OUT_OF_MEMORY),
        ("    return 0\nx = [0] * 10 ** 10\n", labels.OUT_OF_MEMORY),
        ("    import os\n    os._exit(0)\n", labels.ENDED),
        ("    raise ValueError('so')\n", "failed: ValueError: so"),
        ("    class Mine(Exception): pass\n    raise Mine('so')\n", "failed: Mine: so"),
        ("    exit()\n", "failed: NameError: name 'exit' is not defined"),
        ("    return 2 * x\ndel double\n", "failed: NameError: name 'double' is not defined"),
        ("    return 2 * x\ndouble = 3\n", "failed: TypeError: 'int' object is not callable"),
        ("    return 2 * x\nimport colorsys, sqlite3, numpy\n", labels.PASSED),
        ("    return input()\n", "failed: OSError"),
    ],
)
def test_labels(worker: WorkerProcess, completion: str, result: str) -> None:
    assert worker.ask(job(completion, 20.0))["result"] == result


def test_a_long_message_is_cut(worker: WorkerProcess) -> None:
    assert len(worker.ask(job("    raise ValueError('x' * 10000)\n"))["result"]) <= 500


def test_equal_pairs_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = WorkerProcess.ask

    def counting(self: WorkerProcess, message: dict[str, Any]) -> dict[str, Any]:
        asked.append(message["completion"])
        return ask(self, message)

    monkeypatch.setattr(WorkerProcess, "ask", counting)
    verdicts = judge([PROBLEM] * 4, [RIGHT, WRONG, RIGHT, RIGHT], workers=2)
    assert [v.passed for v in verdicts] == [True, False, True, True]
    assert sorted(asked) == sorted([RIGHT, WRONG])


def fake_workers(monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]]) -> list[int]:
    """Workers that give these answers in turn; how many were started together is noted."""
    started: list[int] = []

    class Fake:
        def __init__(self, layers: Collection[str], number: int | None) -> None:
            started.append(1)

        def ask(self, message: dict[str, Any]) -> dict[str, Any]:
            return answers.pop(0)

        def close(self) -> None:
            pass

    monkeypatch.setattr(judging, "WorkerProcess", Fake)
    return started


def test_a_program_without_its_cpu_time_is_judged_again_with_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [
        {"result": labels.TIMED_OUT, "cpu_s": 1.0},
        {"result": labels.TIMED_OUT, "cpu_s": 3.1},
        {"result": labels.TIMED_OUT, "cpu_s": 0.4},
        {"result": labels.PASSED, "cpu_s": 2.0},
        {"result": labels.TIMED_OUT, "cpu_s": 0.5},
    ]
    started = fake_workers(monkeypatch, answers)
    verdicts = judge([PROBLEM] * 3, [RIGHT, HANGING, WRONG], timeout_s=3.0, workers=1)
    named = "timed out: 0.5 s of CPU time in 30 s"
    assert [one.result for one in verdicts] == ["passed", "timed out", named]
    assert verdicts[0] == ProgramVerdict(True, "passed")
    assert (len(started), answers) == (2, [])


def test_a_program_has_cpu_seconds_and_not_those_of_the_wall(worker: WorkerProcess) -> None:
    """One that only waits longer passes; one that spends more has timed out, however long it may last."""
    waits = "    import time\n    time.sleep(0.4)\n    return 2 * x\n"
    limits = {"timeout_s": 0.3, "wall_s": 60.0}
    assert worker.ask(job(waits) | limits)["result"] == labels.PASSED
    spends = (
        "    import time\n    begun = time.process_time()\n    while time.process_time() < begun + 0.4:\n"
        "        pass\n    return 2 * x\n"
    )
    assert worker.ask(job(spends) | limits)["result"] == labels.TIMED_OUT
    assert worker.ask(job(spends) | limits | {"timeout_s": 9.0})["result"] == labels.PASSED  # the control


def test_pairs_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_workers(monkeypatch, [{"result": labels.PASSED, "cpu_s": 0.0}] * 50)
    taken = []

    def pairs() -> Iterator[judging.Pair]:
        for number in range(50):
            taken.append(number)
            if len(taken) == 10:
                raise KeyboardInterrupt
            yield PROBLEM, f"    return {number}\n"

    with pytest.raises(KeyboardInterrupt):
        judge_all(pairs(), workers=1)
    assert len(taken) == 10


def test_programs_of_one_problem_come_after_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they were read, also behind as many that were judged before; verdicts keep the order."""
    monkeypatch.setattr(judging, "_AHEAD", 6)
    asked: list[str] = []

    class Fake:
        def __init__(self, layers: Collection[str], number: int | None) -> None:
            pass

        def ask(self, message: dict[str, Any]) -> dict[str, Any]:
            asked.append(message["problem"]["test"])
            return {"result": f"failed: {message['problem']['test']} {message['completion']}", "cpu_s": 0.0}

        def close(self) -> None:
            pass

    monkeypatch.setattr(judging, "WorkerProcess", Fake)
    pairs = [({**PROBLEM, "test": test}, completion) for completion in "123" for test in "ab"]
    verdicts = judge_all([*pairs, *pairs, ({**PROBLEM, "test": "c"}, "1")], workers=1)
    assert "".join(asked) == "aaabbbc"
    expected = [f"failed: {problem['test']} {completion}" for problem, completion in pairs]
    assert [one.result for one in verdicts] == [*expected, *expected, "failed: c 1"]


def test_nothing_to_judge() -> None:
    assert judge([], []) == []


def test_tests_draw_the_same_inputs_each_time(worker: WorkerProcess) -> None:
    test = "import random\ndef check(candidate):\n    assert 0, random.random()\n"
    first, second = (worker.ask(job(RIGHT, test=test))["result"] for _ in range(2))
    assert first == second
    other = worker.ask(job(RIGHT, test=test, task_id="local/1"))["result"]
    assert other != first


def test_arguments_changed_in_place_are_seen_by_the_test(worker: WorkerProcess) -> None:
    test = "def check(candidate):\n    xs = [3, 1]\n    candidate(xs)\n    assert xs == [1, 3]\n"
    assert worker.ask(job("    x.sort()\n", test=test))["result"] == "passed"
    assert worker.ask(job("    x = sorted(x)\n", test=test))["result"] == "failed: AssertionError"


def test_helpers_of_the_prompt_are_the_prompts_own(worker: WorkerProcess) -> None:
    prompt = "def helper(x):\n    return 2 * x\n\ndef double(x):\n"
    test = "def check(candidate):\n    assert candidate(3) == helper(3)\n"
    given = {"prompt": prompt, "test": test}
    assert worker.ask(job(RIGHT, **given))["result"] == "passed"
    forged = "    return 0\ndef helper(x):\n    return 0\n"
    assert worker.ask(job(forged, **given))["result"] == "failed: AssertionError"


@pytest.mark.parametrize("swallow", ["except Exception", "except BaseException"])
def test_a_test_cannot_swallow_the_end_of_the_program(worker: WorkerProcess, swallow: str) -> None:
    test = f"def check(candidate):\n    try:\n        candidate(1)\n    {swallow}:\n        pass\n"
    assert worker.ask(job("    import os\n    os._exit(0)\n", test=test))["result"] == labels.ENDED
    assert worker.ask(job(HANGING, 0.3, test=test))["result"] == labels.TIMED_OUT


def test_a_test_that_is_too_slow_times_out(worker: WorkerProcess) -> None:
    test = "def check(candidate):\n    while True:\n        pass\n"
    assert worker.ask(job(RIGHT, 0.3, test=test))["result"] == labels.TIMED_OUT


@pytest.mark.thorough
def test_a_test_that_computes_in_c_times_out(worker: WorkerProcess) -> None:
    test = "import itertools\ndef check(candidate):\n    sum(itertools.repeat(candidate(1)))\n"
    before = pid_of(worker)
    assert worker.ask(job(RIGHT, 0.2, test=test))["result"] == labels.TIMED_OUT
    assert pid_of(worker) == before
    assert worker.ask(job(RIGHT))["result"] == "passed"


def test_a_killed_worker_is_replaced_and_the_program_judged(worker: WorkerProcess) -> None:
    os.killpg(pid_of(worker), signal.SIGKILL)
    assert judging._ask_twice(job(RIGHT), worker)["result"] == "passed"


def test_a_killed_zygote_is_replaced_and_the_program_judged(worker: WorkerProcess) -> None:
    for pid in processes(mark(pid_of(worker))):
        os.kill(pid, signal.SIGKILL)
    assert judging._ask_twice(job(RIGHT), worker)["result"] == "passed"


def test_closing_a_worker_leaves_no_process() -> None:
    one = WorkerProcess(probe().layers)
    token = mark(pid_of(one))
    assert processes(token)
    one.close()
    until = time.monotonic() + 10
    while processes(token) and time.monotonic() < until:
        time.sleep(0.01)
    assert processes(token) == set()


@pytest.mark.thorough_but("[landlock+seccomp]")
@pytest.mark.parametrize("layers", LEVELS, ids="+".join)
def test_a_judge_that_is_killed_leaves_no_process(layers: tuple[str, ...]) -> None:
    try:
        one = WorkerProcess((*layers, "limits"))
    except WorkerFailure as failure:
        pytest.skip(f"{'+'.join(layers)}: {failure}")
    token = mark(pid_of(one))
    assert processes(token)
    os.kill(pid_of(one), signal.SIGKILL)  # it alone: nothing tells its sandbox to end
    until = time.monotonic() + 10
    while processes(token) and time.monotonic() < until:
        time.sleep(0.01)
    assert processes(token) == set()
    one.close()


def test_a_worker_that_keeps_failing_is_an_error_not_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: WorkerProcess, message: dict[str, Any]) -> dict[str, Any]:
        raise WorkerFailure("the judge's process ended without an answer")

    monkeypatch.setattr(WorkerProcess, "ask", broken)
    with pytest.raises(SpsbenchError, match="failed twice on a program for local/0") as caught:
        judge([PROBLEM], [RIGHT], workers=1)
    assert caught.value.remedy is not None


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize(
    "test",
    ["def check(candidate:\n", "import no_such_module\n", "x = 1\n", "def check(c):\n    c(lambda: 1)\n"],
)
def test_a_broken_problem_is_an_error_not_a_score(test: str) -> None:
    with pytest.raises(SpsbenchError, match="the problem local/0 cannot be judged"):
        judge([{**PROBLEM, "test": test}], [RIGHT], workers=1)


@pytest.mark.parametrize(
    "body",
    ["    return object()\n", "    return [object()]\n", "    return [0] * 150_000\n", _DEEP, _CHANGED],
)
def test_a_program_whose_answer_cannot_be_passed_on_fails_and_breaks_no_problem(
    worker: WorkerProcess, body: str
) -> None:
    test = (
        "def check(f):\n    xs = [1]\n    ys = f(xs)\n    f(xs if ys is None else [ys, ys])\n    assert 0\n"
    )
    result = worker.ask(job(body, test=test))["result"]
    assert result.startswith("failed: ProtocolError: ")


def test_a_sandbox_that_does_not_lock_runs_nothing(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.parts.judge.sandbox.find_bubblewrap", lambda: None)
    with pytest.raises(SandboxFailure, match="bwrap is not installed"):
        Sandbox(["bubblewrap"])


def test_a_hanging_worker_is_a_failure(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_GRACE_S", 0.0)
    os.kill(pid_of(worker), signal.SIGSTOP)
    with pytest.raises(WorkerFailure, match="hung"):
        worker.ask(job(RIGHT, 0.2))


@pytest.mark.parametrize("line", ["", "not json\n", "[]\n", '{"error": "EOFError: "}\n'])
def test_a_strange_answer_is_a_failure(line: str) -> None:
    with pytest.raises(WorkerFailure):
        isolation._reply(line, "result")
