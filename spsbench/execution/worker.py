"""The judge's process: JSON lines in, JSON lines out; it owns one sandbox.

Run as ``python -m spsbench.execution.worker LAYERS [NUMBER]``. It holds no model and no thread. A job is
``{"problem", "completion", "timeout_s", "seeds"}``; the answer is ``{"result", "cpu_s"}``, or
``{"error"}`` for a fault of judge or sandbox, or ``{"broken"}`` for one of the problem. The first line,
before any job, is ``{"hello"}`` with what the sandbox says of itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from spsbench.execution.worker import BrokenProblem, judge_program
from spsbench.execution.inside import limits
from spsbench.execution.sandbox import Sandbox, SandboxFailure
from spsbench.execution.verdict import Seeds

_MEMORY_BYTES = 4 << 30


def answer(sandbox: Sandbox, job: dict[str, Any]) -> dict[str, Any]:
    """Judge one job."""
    try:
        seeds = Seeds(**job["seeds"])
        outcome = judge_program(sandbox, job["problem"], job["completion"], job["timeout_s"], seeds)
    except SandboxFailure as failure:
        return {"error": str(failure)}
    except BrokenProblem as fault:
        return {"broken": str(fault)}
    except Exception as error:  # a fault of the judge is reported, never scored
        return {"error": f"{type(error).__name__}: {error}"}
    return {"result": outcome.result, "cpu_s": outcome.cpu_s}


def main(layers: list[str], number: int | None = None) -> None:
    """Serve jobs until stdin ends."""
    jobs, answers = _private_streams()
    _lower_priority()
    if number is not None:
        _settle(number)
    try:
        sandbox = Sandbox(layers)
    except SandboxFailure as failure:
        _write(answers, {"error": str(failure)})
        return
    _write(answers, {"hello": sandbox.hello})
    for line in jobs:
        _write(answers, answer(sandbox, json.loads(line)))
    sandbox.close()


def _lower_priority() -> None:
    """If memory runs out, this process and its programs are killed before the benchmark is."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    limits.lower_soft("AS", _MEMORY_BYTES)


def _settle(number: int) -> None:
    """Stay on one CPU with all that this process starts: judge, zygote and program take turns.

    A message to another CPU wakes it up, which costs more than the message.
    """
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {allowed[number % len(allowed)]})


def _private_streams() -> tuple[TextIO, TextIO]:
    # A test that prints must not print into the answers.
    jobs = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return jobs, answers


def _write(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1].split("+"), int(sys.argv[2]) if len(sys.argv) > 2 else None)
