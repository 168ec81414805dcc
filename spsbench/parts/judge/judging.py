"""Judge many programs: workers, equal programs once, faults twice, those without CPU time again."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

from spsbench.base import SpsbenchError
from spsbench.parts.judge.inside import labels
from spsbench.parts.judge.isolation import IsolationLevel, ProblemFailure, WorkerFailure, WorkerProcess, probe
from spsbench.parts.judge.messages import TimedOutStarved
from spsbench.parts.judge.samples import PROBLEM_FIELDS, WholeProgram
from spsbench.parts.judge.verdict import ProgramVerdict, Seeds

# So many programs are read before they are judged; samples of many problems in turns have some of each.
_AHEAD = 4096

_FIRST_WALL = 1.1
"""Times the CPU seconds of a program: so long it is waited for at first, that an endless loop spends them."""

_PATIENCE = 10
"""Of the same, where it got less: what else the machine does is nothing that a program did wrong."""

Pair = tuple[Mapping[str, Any], str]
"""(HumanEval's fields task_id, prompt, entry_point and test; what the model wrote after the prompt, or a
``WholeProgram``)."""


def judge(
    problems: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    timeout_s: float = 3.0,
    workers: int | None = None,
    unsafe: bool = False,
    secret: bytes | None = None,
) -> list[ProgramVerdict]:
    """Judge ``completions[i]`` against ``problems[i]``; verdicts in the same order.

    Args:
        timeout_s: CPU seconds for a program (upstream's default is 3, of wall time). One that has not spent
            them when they are over by the wall clock is judged again, up to ten times as long; what then
            has not ended has timed out, and its verdict says how much CPU time it had.
        secret: at most 64 bytes that random draws are seeded from; new ones if not given. Where a test
            draws its inputs they are the same for all programs of one call, and others in the next.
    """
    return judge_all(zip(problems, completions, strict=True), timeout_s, workers, unsafe, secret)


def judge_all(
    pairs: Iterable[Pair],
    timeout_s: float = 3.0,
    workers: int | None = None,
    unsafe: bool = False,
    secret: bytes | None = None,
) -> list[ProgramVerdict]:
    """Judge pairs as ``judge`` does, but read some at a time and not kept: memory does not grow with them."""
    level = probe(unsafe)
    work = _Work(_jobs(pairs, timeout_s, secret or secrets.token_bytes(16)))
    _run(work, workers or os.cpu_count() or 1, level)
    if work.starved:
        again = _Work(iter([_patient(job) for job in work.starved]))
        _run(again, workers or os.cpu_count() or 1, level)
        work.results |= again.results
    results = {key: ProgramVerdict(result == labels.PASSED, result) for key, result in work.results.items()}
    return [results[key] for key in work.keys]


class _Job(NamedTuple):
    key: bytes
    message: dict[str, Any]


@dataclass
class _Work:
    """What the workers share; jobs are ``starved`` that timed out before they had spent their CPU time."""

    jobs: Iterator[_Job]
    keys: list[bytes] = field(default_factory=list)
    ahead: deque[_Job] = field(default_factory=deque)
    results: dict[bytes, str] = field(default_factory=dict)
    starved: list[_Job] = field(default_factory=list)
    over: bool = False
    _seen: set[bytes] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> _Job | None:
        """A job that equals no earlier one."""
        with self._lock:
            while not self.ahead and not self.over and self._read_ahead():
                pass
            return None if self.over or not self.ahead else self.ahead.popleft()

    def _read_ahead(self) -> int:
        """So many jobs, those of one problem after each other: its tests' process stays."""
        before = len(self.keys)
        new = list[_Job]()
        for job in islice(self.jobs, _AHEAD):
            self.keys.append(job.key)
            if job.key not in self._seen:
                self._seen.add(job.key)
                new.append(job)
        of_problem: dict[tuple[str, str], list[_Job]] = {}
        for job in new:
            problem = job.message["problem"]
            of_problem.setdefault((problem["prompt"], problem["test"]), []).append(job)
        self.ahead.extend(chain.from_iterable(of_problem.values()))
        return len(self.keys) - before


def _patient(job: _Job) -> _Job:
    return job._replace(message={**job.message, "wall_s": _PATIENCE * job.message["timeout_s"]})


def _jobs(pairs: Iterable[Pair], timeout_s: float, secret: bytes) -> Iterator[_Job]:
    for problem, completion in pairs:
        fields = {name: str(problem[name]) for name in PROBLEM_FIELDS}
        whole = isinstance(completion, WholeProgram)
        text = "\0".join((*fields.values(), str(whole), completion))
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        seeds = asdict(Seeds.of(secret, fields["task_id"]))
        message = {
            "problem": fields,
            "completion": completion,
            "timeout_s": timeout_s,
            "wall_s": _FIRST_WALL * timeout_s,
            "seeds": seeds,
        }
        if whole:
            message["whole"] = True
        yield _Job(key, message)


def _run(work: _Work, count: int, level: IsolationLevel) -> None:
    with ThreadPoolExecutor(max_workers=count) as pool:
        numbers = range(count) if count > 1 else [None]
        futures = [pool.submit(_judge_in_one_process, work, level, number) for number in numbers]
        try:
            for future in futures:
                future.result()
        finally:
            work.over = True  # after a failure or Ctrl-C the others stop at their next program


def _judge_in_one_process(work: _Work, level: IsolationLevel, number: int | None) -> None:
    job = work.take()
    if job is None:
        return
    worker = _started(level, number)
    try:
        while job is not None and not work.over:
            reply = _ask_twice(job.message, worker)
            result, cpu_s = str(reply["result"]), float(reply["cpu_s"])
            if result == labels.TIMED_OUT and cpu_s < job.message["timeout_s"]:
                work.starved.append(job)
                result = str(TimedOutStarved(cpu_s, job.message["wall_s"]))
            work.results[job.key] = result
            job = work.take()
    except BaseException:
        work.over = True
        raise
    finally:
        worker.close()


def _started(level: IsolationLevel, number: int | None) -> WorkerProcess:
    try:
        return WorkerProcess(level.layers, number)
    except WorkerFailure:
        try:
            return WorkerProcess(level.layers, number)
        except WorkerFailure as failure:
            remedy = "No score was recorded."
            raise SpsbenchError(f"the sandbox failed to start twice: {failure}.", remedy=remedy) from failure


def _ask_twice(job: dict[str, Any], worker: WorkerProcess) -> dict[str, Any]:
    name = job["problem"]["task_id"]
    try:
        try:
            return worker.ask(job)
        except WorkerFailure:
            worker.restart()  # once: a crash under memory pressure or a killed process may not repeat
            return worker.ask(job)
    except WorkerFailure as failure:
        raise SpsbenchError(
            f"judge or sandbox failed twice on a program for {name}: {failure}.",
            remedy="No score was recorded; look at the program, or generate with --no-score.",
        ) from failure
    except ProblemFailure as failure:
        remedy = "Its test must define check(candidate) and call it with plain data."
        raise SpsbenchError(f"the problem {name} cannot be judged: {failure}.", remedy=remedy) from failure
