from __future__ import annotations

import numpy as np
import pytest

from training.gates import Gate, difference_interval, passes, ratio_interval, rouge2, table

PROBLEM = {
    "prompt": "def double(x):\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.mark.thorough
def test_programs_pass_fail_and_are_stopped_when_they_hang() -> None:
    bodies = ["    return 2 * x\n", "    return x\n", "    while True: pass\n", "    return (\n"]
    assert passes(bodies, [PROBLEM] * 4).tolist() == [1, 0, 0, 0]


def test_rouge_2_is_one_for_the_reference_and_zero_for_another_text() -> None:
    assert rouge2(["a b c", "x y z"], ["a b c", "a b c"]).tolist() == [1, 0]


def test_intervals_hold_the_estimate_and_are_paired() -> None:
    target = np.linspace(0.4, 0.9, 60) + np.tile([0.01, -0.01], 30)
    estimate, low, high = ratio_interval(target, target / 2 + np.tile([0.0, 0.002], 30))
    assert low <= estimate <= high
    assert high - low < 0.02
    gap, low, high = difference_interval(target, np.zeros(60))
    assert low < gap < high
    assert gap == pytest.approx(target.mean())


def test_the_table_names_what_failed() -> None:
    text = table([Gate("a", ">= 1", "0.5", False), Gate("b", "", "2", None)])
    assert "| a | >= 1 | 0.5 | FAIL |" in text
