"""The simulation of the evidence's power at small size: its formulas are spsbench's, its laws are laws."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import leakage_power as power


@pytest.fixture(scope="module")
def setting() -> power.Setting:
    return power.Setting.make(0.8, 50.0, 5.0, 2)


def test_every_law_is_one_and_only_leaks_leave_the_target(setting: power.Setting) -> None:
    for name, law in power.laws(setting).items():
        np.testing.assert_allclose(law.sum(-1), 1.0, atol=1e-9)
        leaves = bool((law[~setting.possible] > 0).any())
        assert leaves == (name in ("lambda 0.01", "lambda 0.05", "inverted ratio"))
        assert np.allclose(law, setting.q) == (name == "lambda 0.0")


def test_the_formulas_are_those_of_spsbench(setting: power.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    power.require_same(setting)
    real = power.sums_of
    monkeypatch.setattr(power, "sums_of", lambda *rows: {name: x + 1 for name, x in real(*rows).items()})
    with pytest.raises(SystemExit, match="in spsbench"):
        power.require_same(setting)


@pytest.mark.thorough
def test_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert power.main(["--runs", "3", "--null-runs", "3", "--sequences", "30"]) == 0
    said = capsys.readouterr().out
    assert said.count("| first impossible token |") == 2
    for group in power.GROUPS:
        assert said.count(f"| {group} |") == 2
    flat = said.partition("## nucleus")[0]
    (row,) = [line for line in flat.splitlines() if line.startswith("| bet on no residual |")]
    assert row.split("|")[2].strip() == "- (0)"
    assert row.split("|")[6].strip().endswith("(1)")
