"""What a GPU's driver says and what is taken on it, over a made-up NVML and a made-up nvidia-smi."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support import nvidia_smi
from support.nvidia_smi import H100
from support.nvml import OTHER, Nvml

from spsbench.base import environment, gpu
from spsbench.base.gpu import NvmlBoard, SmiBoard, board_of, gpu_watched
from spsbench.base.records import Generation, Sample
from spsbench.store.codec import encode_sample
from spsbench.store.timings import Timing, shares_lost


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    found = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)  # type: ignore[arg-type]
    return found


def test_clocks_that_heat_holds_down_count_and_a_power_limit_does_not(nvml: Nvml) -> None:
    takers = NvmlBoard(nvml, "GPU-1")
    assert takers.throttled_s() == 0.0
    nvml.held_ns[1] += 250_000_000
    nvml.held_ns[0] += 5_000_000_000
    assert takers.throttled_s() == 0.25
    nvml.held_ns.clear()
    assert takers.throttled_s() is None


def test_what_others_compute_counts_by_their_share(nvml: Nvml) -> None:
    takers = NvmlBoard(nvml, "GPU-1")
    assert takers.shared_s() is None
    for at_s in (1.0, 1.2, 1.4):
        nvml.sample(OTHER, at_s, 50)
        nvml.sample(os.getpid(), at_s, 50)
    assert takers.shared_s() == pytest.approx(0.5 * 0.4)
    assert takers.shared_s() == pytest.approx(0.5 * 0.4)  # no sample since
    nvml.sample(OTHER, 1.6, 100)
    assert takers.shared_s() == pytest.approx(0.4)


def test_a_driver_with_other_numbers_for_processes_knows_of_none(nvml: Nvml) -> None:
    nvml.running = [17, OTHER]
    nvml.sample(17, 1.0, 100)
    assert NvmlBoard(nvml, "GPU-1").shared_s() is None


def test_a_throttled_timing_is_a_disturbed_one(nvml: Nvml) -> None:
    made = Generation([1], "x", None, 0.0, 1.0, "stop")
    with gpu_watched(board_of("1")):
        before = environment.taken()
        nvml.held_ns[1] += 300_000_000
        lost = environment.taken_since(before)
    assert lost["throttled_s"] == pytest.approx(0.3)
    sample = Sample("e", 0, "ars", 1, made, conditions=lost)
    assert shares_lost([Timing.of(encode_sample(sample))]) == [pytest.approx(0.3)]
    assert "throttled_s" not in environment.TAKERS


@pytest.mark.parametrize("uuid", [None, "2"])
def test_no_board_or_no_answer_counts_nothing(
    nvml: Nvml, uuid: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    before = set(environment.TAKERS)
    with gpu_watched(board_of(uuid)):
        assert set(environment.TAKERS) == before


def test_nvml_says_what_a_board_is_and_how_it_is(nvml: Nvml) -> None:
    board = board_of("1")
    assert board is not None
    facts = board.facts()
    assert tuple(facts) == gpu.FACTS
    assert (facts["name"], facts["driver"], facts["memory_bytes"]) == (
        "name of GPU-1",
        "535.183.01",
        80 << 30,
    )
    assert (facts["power_limit_w"], facts["power_limit_default_w"], facts["ecc"]) == (600.0, None, None)
    assert board.state() == {
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 2619,
        "temperature_c": 71,
        "power_w": None,
    }


def test_a_slice_has_its_own_memory_and_the_clocks_of_its_board(nvml: Nvml) -> None:
    board = board_of("7")
    assert board is not None
    facts = board.facts()
    assert (facts["uuid"], facts["mig"], facts["memory_bytes"]) == ("MIG-7", True, 10 << 30)
    assert (facts["power_limit_w"], board.state()["temperature_c"]) == (600.0, 71)


def test_of_each_sequence_the_clock_what_throttles_and_who_else_is_there(nvml: Nvml) -> None:
    board = NvmlBoard(nvml, "GPU-1")
    throttled = {"throttled_by_power_cap": 1.0, "throttled_by_hardware_thermal": 1.0}
    assert board.of_sequence() == {"sm_clock_mhz": 1410.0, "gpu_others": 1.0, **throttled}
    nvml.running = [17, OTHER]  # numbers of the host
    assert "gpu_others" not in board.of_sequence()


def test_without_nvml_one_query_of_nvidia_smi_says_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    calls = nvidia_smi.install(tmp_path, monkeypatch, {**H100, "uuid": "GPU-other", "index": "0"}, H100)
    board = board_of("8a1f")
    assert isinstance(board, SmiBoard)
    facts = board.facts()
    assert tuple(facts) == gpu.FACTS
    assert (facts["uuid"], facts["mig"], facts["ecc"]) == ("GPU-8a1f", False, True)
    assert (facts["memory_bytes"], facts["power_limit_w"]) == (81559 << 20, 600.0)
    state = {"sm_clock_mhz": 345, "memory_clock_mhz": 2619, "temperature_c": 34, "power_w": None}
    assert board.state() == state
    assert len(calls.read_text().splitlines()) == 1
    board.state()
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("uuid", "boards", "seen"),
    [
        ("beef", [H100], None),
        (None, [H100], "GPU-8a1f"),
        (None, [H100, H100], None),
        ("slice", [{**H100, "mig.mode.current": "Enabled"}], "GPU-8a1f"),
        ("8a1f", [], None),
    ],
)
def test_which_line_of_nvidia_smi_is_the_devices(
    uuid: str | None,
    boards: list[dict[str, str]],
    seen: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvidia_smi.install(tmp_path, monkeypatch, *boards)
    board = board_of(uuid)
    assert (None if board is None else board.facts()["uuid"]) == seen
