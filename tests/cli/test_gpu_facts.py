"""A run on the emulated device says where it ran and what its driver said, and goes on under that alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import nvidia_smi
from support.commandline import BRIEF, Cli, journal
from support.device import emulated
from support.nvidia_smi import H100
from support.nvml import Nvml

UUID = "GPU-00000000-0000-0000-0000-000000000000"
RUN = (
    *("run", "xsum", *BRIEF, "--max-new-tokens", "3", "--device", "cuda", "--engine", "eager", "--no-proof"),
    *("--set", "warmup=false", "--remeasure", "0", "--set", "trace=0"),
)


@pytest.mark.thorough
def test_a_run_keeps_what_its_gpu_was_and_is_not_continued_on_another_driver(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, name = tmp_path / "run", "NVIDIA H100 80GB HBM3"
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(UUID))  # type: ignore[arg-type]
    with emulated(name=name):
        done = cli(*RUN, "--limit", 1, "--out", directory)
        assert done.code == 0, done.err
        assert f" on {name}, cuda:0" in done.err
        assert f"on {name}, cuda:0, 1 prompt" in " ".join(done.out.split())
        run = json.loads((directory / "run.json").read_text())
        gpu = run["gpu"]
        assert (gpu["device"], gpu["source"], gpu["uuid"]) == ("cuda:0", "NVML", UUID)
        assert (gpu["driver"], gpu["tf32_matmul"], gpu["graphs"]) == ("535.183.01", False, False)
        assert gpu["attention"]["target"] == "sdpa"
        assert gpu["before"]["temperature_c"] == gpu["after"]["temperature_c"] == 71
        (condition,) = run["conditions"]
        assert (condition["gpus"], condition["gpu_driver"]) == ([name], "535.183.01")
        kept = [row["conditions"] for row in journal(directory)]
        assert {row["sm_clock_mhz"] for row in kept} == {1410.0}
        assert all(row["throttled_by_power_cap"] for row in kept)
        report = (directory / "report.md").read_text()
        assert "power cap in 2 of 2, hardware thermal in 2 of 2" in report
        assert "| gpu.before.temperature_c | 71 |" in report

        monkeypatch.setitem(sys.modules, "pynvml", None)
        newer = {"uuid": UUID, "driver_version": "580.65.06", "mig.mode.current": "Enabled"}
        nvidia_smi.install(tmp_path, monkeypatch, H100 | newer)
        refused = cli(*RUN, "--limit", 2, "--out", directory)
        assert refused.code == 2
        assert "gpu_driver: 535.183.01 -> 580.65.06" in refused.err
        assert "gpu_power" not in refused.err  # 600 W in both
        assert len(journal(directory)) == len(kept)


@pytest.mark.thorough
def test_on_a_cpu_a_gpu_of_the_machine_is_named_and_is_no_condition(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    nvidia_smi.install(tmp_path, monkeypatch, H100)
    on_cpu = tuple("auto" if each == "cuda" else each for each in RUN)
    done = cli(*on_cpu, "--limit", 1, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert done.err.count("NVIDIA H100 80GB HBM3 is not used: torch ") == 1
    assert "has no CUDA. For driver 535.183.01: pip install" in done.err
    assert "on NVIDIA" not in done.out
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["environment"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert run["conditions"][0]["gpus"] == []
    assert not {"gpu_driver", "cuda"} & run["conditions"][0].keys()
