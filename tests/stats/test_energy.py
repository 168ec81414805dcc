"""Joules per token and ratios of a known truth; nothing here was measured."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.commandline import BRIEF, SMALL, call
from support.summarised import summarise

from spsbench.base.energy import FoundMeter
from spsbench.report.sections import render, screen

Frame = pd.DataFrame
RAPL = {"source": "RAPL (package-0, dram)", "update_s": 0.001, "reason": None}
NONE = {"source": None, "update_s": None, "reason": "no RAPL counters"}
N = 40


def _drawing(samples: Frame, joules: Any) -> Frame:
    return samples.assign(conditions=[{"load_1m": 1.0, "energy_j": float(value)} for value in joules])


@pytest.fixture
def arms(make_samples: Callable[..., Frame]) -> tuple[Frame, Frame]:
    """ArS with 2 J and SpS with 1.4 J a token, both with noise of the prompt and of their own."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(20, 60, N)
    shared = rng.lognormal(0, 0.3, N)
    ars = make_samples(0.02 * tokens, tokens)
    sps = make_samples(0.012 * tokens, tokens, method="sps", k=4)
    own = [rng.lognormal(0, 0.02, N) for _ in range(2)]
    return _drawing(ars, 2.0 * tokens * shared * own[0]), _drawing(sps, 1.4 * tokens * shared * own[1])


def _energy(*parts: Frame, **info: Any) -> Any:
    summary = summarise(pd.concat(parts, ignore_index=True), pd.DataFrame(), {"energy": RAPL} | info)
    return summary.get("energy")


def _sum(part: Frame) -> float:
    return sum(found["energy_j"] for found in part["conditions"])


def test_the_known_ratio_comes_out_with_a_narrow_interval(arms: tuple[Frame, Frame]) -> None:
    found = _energy(*arms)
    of_ars, of_sps = found["arms"]
    tokens = float(arms[0]["new_tokens"].sum())
    assert of_ars["joules_per_token"]["estimate"] == pytest.approx(_sum(arms[0]) / tokens)
    assert of_sps["joules_per_token"]["estimate"] == pytest.approx(_sum(arms[1]) / tokens)
    assert of_ars["ratio"] is None
    ratio = of_sps["ratio"]
    assert ratio["ratio"] == pytest.approx(_sum(arms[1]) / _sum(arms[0]))
    assert 0.68 < ratio["low"] < 0.7 < ratio["high"] < 0.72
    # Paired: what a prompt does to both arms alike is in the joules' intervals and not in the ratio's.
    alone = of_sps["joules_per_token"]
    assert (alone["high"] - alone["low"]) / alone["estimate"] > 3 * (ratio["high"] - ratio["low"])
    assert found["mean_sequence_s"] == pytest.approx(0.01 + 0.016 * tokens / N)


def test_another_truth_gives_another_ratio(arms: tuple[Frame, Frame]) -> None:
    ars, sps = arms
    more = _drawing(sps, [2 * found["energy_j"] for found in sps["conditions"]])
    found = _energy(ars, more)["arms"][1]["ratio"]
    assert found["low"] < 1.4 < found["high"]


def test_only_sequences_with_known_joules_count(arms: tuple[Frame, Frame]) -> None:
    ars, sps = arms
    told = [found if number % 2 else {"load_1m": 1.0} for number, found in enumerate(sps["conditions"])]
    of_ars, of_sps = _energy(ars, sps.assign(conditions=told))["arms"]
    assert (of_ars["sequences"], of_sps["sequences"]) == (N, N // 2)
    joules = [sum(f["energy_j"] for f in list(part["conditions"])[1::2]) for part in (ars, sps)]
    assert of_sps["ratio"]["ratio"] == pytest.approx(joules[1] / joules[0])


def test_a_counter_that_counted_nothing_is_not_0_joules(arms: tuple[Frame, Frame]) -> None:
    still = [_drawing(part, [0.0] * N) for part in arms]
    assert _energy(*still)["arms"] == []
    assert _energy(*(part.drop(columns="conditions") for part in arms), energy=NONE)["arms"] == []
    assert _energy(*arms, energy=None) is None


def test_intervals_go_where_others_had_the_cpu_and_numbers_where_conditions_mix(
    arms: tuple[Frame, Frame],
) -> None:
    disturbed = [
        part.assign(conditions=[found | {"waited_s": 1.0} for found in part["conditions"]]) for part in arms
    ]
    ratio = _energy(*disturbed)["arms"][1]["ratio"]
    assert ratio["low"] is None
    assert ratio["ratio"] == pytest.approx(_sum(arms[1]) / _sum(arms[0]))
    mixed = [part.assign(condition=[number % 2 for number in range(N)]) for part in arms]
    found = _energy(*mixed, conditions=[{"threads": 1}, {"threads": 2}])
    assert (found["arms"], found["reason"]) == ([], "several conditions")


def test_several_processes_widen_the_ratio(arms: tuple[Frame, Frame]) -> None:
    parts = [part.assign(process=process) for part in arms for process in (0, 1)]
    found = _energy(*parts)["arms"][1]
    assert found["joules_per_token"]["low"] is None
    assert found["ratio"]["ratio"] == pytest.approx(_sum(arms[1]) / _sum(arms[0]))


def test_batches_are_resampled_by_wave(arms: tuple[Frame, Frame]) -> None:
    """All joules of a wave may lie with one of its rows."""
    waves = [f"e{4 * (number // 4)}" for number in range(N)]
    lumped = []
    for part in arms:
        joules = np.array([found["energy_j"] for found in part["conditions"]]).reshape(-1, 4)
        first = np.stack([joules.sum(axis=1), *np.zeros((3, N // 4))], axis=1).ravel()
        lumped.append(_drawing(part, first).assign(wave=waves))
    by_wave = [found["ratio"] for found in _energy(*lumped)["arms"]][1]
    assert by_wave["ratio"] == pytest.approx(_sum(arms[1]) / _sum(arms[0]))
    assert 0.66 < by_wave["low"] < 0.7 < by_wave["high"] < 0.74
    one_wave = [part.assign(wave="e0") for part in arms]
    assert _energy(*one_wave)["arms"][1]["joules_per_token"]["low"] is None


def _shown(summary: Any) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(screen(summary))
    return console.export_text()


def test_reports_show_joules_where_there_are_some_and_one_line_elsewhere(arms: tuple[Frame, Frame]) -> None:
    samples = pd.concat(arms, ignore_index=True)
    known = summarise(samples, pd.DataFrame(), {"energy": RAPL})
    ratio = known["energy"]["arms"][1]["ratio"]
    absent = summarise(samples.drop(columns="conditions"), pd.DataFrame(), {"energy": NONE})
    before = summarise(samples.drop(columns="conditions"), pd.DataFrame(), {})
    for text in (render(known, {}), _shown(known)):
        said = " ".join(text.replace("\\", "").split())
        assert "J/token [95%]" in said
        assert f"{ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]" in said
        assert "Energy by RAPL (package-0, dram), around each sequence with its prefill" in said
        assert "idle power and what other processes use" in said
        assert "The counter moves every 1 ms" in said
    assert "Energy: not known (no RAPL counters)." in render(absent, {})
    assert "J/token" not in render(absent, {}) + _shown(absent) + render(before, {})
    assert "Energy" not in render(before, {})


class Counting:
    """A joule between any two readings."""

    source = "a joule a reading"

    def __init__(self) -> None:
        self.read = 0

    def joules(self) -> float:
        self.read += 1
        return float(self.read)


def test_a_run_records_the_joules_of_every_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Counting()
    monkeypatch.setattr(
        "spsbench.runner.conditions.meter_of", lambda *given, **named: FoundMeter(meter, 0.001, "")
    )
    done = call(
        "run", "xsum", *BRIEF, "--k", "2", *SMALL, "--no-score", "--no-proof", "--out", tmp_path / "run"
    )
    assert done.code == 0, done.err
    assert meter.read == 4
    lines = (tmp_path / "run/samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["conditions"]["energy_j"] for line in lines] == [1.0, 1.0]
    found = json.loads((tmp_path / "run/summary.json").read_text())["energy"]
    assert found["source"] == "a joule a reading"
    assert [arm["joules_per_token"]["estimate"] for arm in found["arms"]] == [1 / 8, 1 / 8]
    assert found["arms"][1]["ratio"]["ratio"] == 1.0
