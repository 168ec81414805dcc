"""The intervals cover what decision 0033 says, at the size that a test affords."""

from __future__ import annotations

import pytest

from benchmarks import coverage


@pytest.mark.parametrize("n", [8, 12])
@pytest.mark.parametrize(("law", "least"), [("normal, 20%", 92), ("log-normal .5", 92), ("log-normal 1", 88)])
def test_the_speedups_interval_covers_with_few_prompts(law: str, least: int, n: int) -> None:
    """Of 1,000 runs; the bootstrap before covered 80 to 90%."""
    assert 100 * coverage.covered(coverage.ours, law, n, 1_000)[0] >= least


def test_the_bound_covers_a_leak_in_a_quarter_of_the_prompts() -> None:
    """Of 400 runs of 8 prompts: 92% at 2,000 runs, 84% with the model's variance alone."""
    setting = coverage.Setting.make(1.0, 2.0, 0.7, 1)
    share, bound = coverage.bounded(setting, True, 8, 400)
    assert share >= 0.88
    assert bound < 0.6


def test_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage.main(["--runs", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("| log-normal 1 |") == said.count("| flat |") == 4
