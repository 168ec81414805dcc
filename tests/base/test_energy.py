"""Meters of energy over a made-up powercap tree and a made-up NVML."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.base import energy
from spsbench.base.energy import FoundMeter, counting, find_nvml, find_rapl
from spsbench.base.records import Arm, Generation, Prompt, Sample, SamplingParams
from spsbench.report.results import uncounted
from spsbench.runner.conditions import meter_of, metered, noted
from spsbench.runner.turns import Turn

execute = import_module("spsbench.runner.execution")  # the package has a function of the same name

RANGE_UJ = 262_143_328_850


class Tree:
    """Zones as the kernel shows them, all in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def zone(self, folder: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ) -> None:
        path = self.root / folder
        path.mkdir()
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
        self.set(folder, energy_uj)

    def set(self, folder: str, energy_uj: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{energy_uj}\n")

    def add(self, joules: float, *folders: str) -> None:
        for folder in folders:
            before = int((self.root / folder / "energy_uj").read_text())
            self.set(folder, (before + round(1e6 * joules)) % RANGE_UJ)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Two packages with everything that a kernel may list beside them."""
    found = Tree(tmp_path)
    (tmp_path / "intel-rapl").mkdir()
    (tmp_path / "dtpm").mkdir()
    for number in (0, 1):
        found.zone(f"intel-rapl:{number}", f"package-{number}", 1_000)
        found.zone(f"intel-rapl:{number}:0", "core", 100)
        found.zone(f"intel-rapl:{number}:1", "uncore", 10)
        found.zone(f"intel-rapl:{number}:2", "dram", 500)
    found.zone("intel-rapl:2", "psys", 9_000)
    found.zone("intel-rapl-mmio:0", "package-0", 1_000)
    return found


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a counter to count without waiting for it to move."""
    monkeypatch.setattr(energy, "counting", lambda meter, otherwise: FoundMeter(meter, 0.001, ""))


@pytest.mark.usefixtures("trusting")
def test_packages_and_memory_are_summed_and_nothing_twice(tree: Tree) -> None:
    meter = find_rapl(tree.root).meter
    assert meter is not None
    assert meter.source == "RAPL (package-0, dram of package-0, package-1, dram of package-1)"
    assert meter.joules() == 0.0
    tree.add(7.0, "intel-rapl:0", "intel-rapl-mmio:0")
    tree.add(6.0, "intel-rapl:0:0")
    tree.add(0.5, "intel-rapl:0:1")
    tree.add(2.0, "intel-rapl:0:2")
    tree.add(11.0, "intel-rapl:1")
    tree.add(40.0, "intel-rapl:2")
    assert meter.joules() == pytest.approx(7 + 2 + 11)


@pytest.mark.usefixtures("trusting")
def test_a_package_alone_is_what_amd_has(tmp_path: Path) -> None:
    own = Tree(tmp_path)
    own.zone("intel-rapl:0", "package-0", 5)
    own.zone("intel-rapl:0:0", "core", 5)
    meter = find_rapl(tmp_path).meter
    assert meter is not None
    assert meter.source == "RAPL (package-0)"


@pytest.mark.usefixtures("trusting")
def test_a_counter_wraps_around_and_the_sum_does_not(tmp_path: Path) -> None:
    own = Tree(tmp_path)
    own.zone("intel-rapl:0", "package-0", RANGE_UJ - 3_000_000)
    meter = find_rapl(tmp_path).meter
    assert meter is not None
    seen = []
    for _ in range(4):
        own.add(2.0, "intel-rapl:0")
        seen.append(meter.joules())
    assert seen == pytest.approx([2.0, 4.0, 6.0, 8.0])
    assert int((tmp_path / "intel-rapl:0/energy_uj").read_text()) < 6_000_000


@pytest.mark.usefixtures("trusting")
def test_a_counter_that_cannot_be_read_for_once_gives_none(tmp_path: Path) -> None:
    own = Tree(tmp_path)
    own.zone("intel-rapl:0", "package-0", 5)
    meter = find_rapl(tmp_path).meter
    assert meter is not None
    (tmp_path / "intel-rapl:0/energy_uj").write_text("")
    assert meter.joules() is None
    own.set("intel-rapl:0", 2_000_005)
    assert meter.joules() == pytest.approx(2.0)


def test_why_there_is_no_meter(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rapl(tmp_path / "nowhere").reason == "no RAPL counters"
    real = Path.read_text

    def guarded(path: Path, *given: Any, **named: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", guarded)
        found = find_rapl(tree.root)
    assert found.meter is None
    assert "may be read by root alone" in found.reason
    assert "intel-rapl:0/energy_uj" in found.reason
    tree.set("intel-rapl:0", 0)
    (tree.root / "intel-rapl:0/energy_uj").write_text("no number")
    assert "cannot be read" in find_rapl(tree.root).reason


def test_a_counter_that_stands_still_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say 0 J of every sequence."""
    monkeypatch.setattr(energy, "PATIENCE_S", 0.005)
    found = find_rapl(tree.root)
    assert found.meter is None
    assert found.record() == {"source": None, "update_s": None, "reason": "RAPL's counters do not move"}


class Ticking:
    """Counts a joule every 20 ms of a clock of its own; ``blind``: its first readings fail."""

    source = "ticking"

    def __init__(self, blind: int = 0) -> None:
        self.now_s, self.blind = 0.013, blind

    def joules(self) -> float | None:
        self.now_s += 1e-4
        self.blind -= 1
        return None if self.blind >= 0 else float(self.now_s // 0.02)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("blind", [0, 3])
def test_how_often_a_counter_moves_is_seen(blind: int) -> None:
    meter = Ticking(blind)
    found = counting(meter, "no", meter.clock, meter.sleep)
    assert found.meter is meter
    assert found.update_s == pytest.approx(0.02, abs=1e-3)
    assert found.record() == {"source": "ticking", "update_s": found.update_s, "reason": None}


class FakeNvml(SimpleNamespace):
    class NVMLError(Exception):
        pass

    def __init__(self, **devices: int) -> None:
        super().__init__(mj=devices, asked=[])

    def nvmlInit(self) -> None:
        if not self.mj:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.mj)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        if uuid not in self.mj:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if self.mj[handle] < 0:
            raise self.NVMLError("Not Supported")
        return self.mj[handle]


@pytest.mark.usefixtures("trusting")
def test_nvml_counts_the_device_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(**{"GPU-a": 5_000, "GPU-b": 70_000})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = SimpleNamespace(uuid="b")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    found = meter_of(SimpleNamespace(type="cuda"))  # type: ignore[arg-type]
    assert found.meter is not None
    assert nvml.asked == ["GPU-b"]
    assert found.meter.source == "NVML (name of GPU-b, the board alone)"
    nvml.mj = {"GPU-a": 99_000, "GPU-b": 72_500}
    assert found.meter.joules() == 2.5
    nvml.mj["GPU-b"] = -1
    assert found.meter.joules() is None
    first = find_nvml().meter
    assert first is not None
    assert "GPU-a" in first.source


def test_why_nvml_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_nvml().reason == "no NVML"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert find_nvml().reason == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(old=-1))
    assert find_nvml().reason == "NVML: Not Supported"
    assert find_nvml("GPU-other").reason == "NVML: Not Found"
    monkeypatch.setattr(energy, "PATIENCE_S", 0.005)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(still=4))
    assert find_nvml().reason == "NVML's counter does not move"
    assert "type mps" in meter_of(SimpleNamespace(type="mps")).reason  # type: ignore[arg-type]


class Read:
    """Answers what it was given, one reading after the other."""

    source = "given"

    def __init__(self, *readings: float | None) -> None:
        self._left = list(readings)

    def joules(self) -> float | None:
        return self._left.pop(0)


def test_a_sequence_keeps_a_difference_or_nothing() -> None:
    with metered(Read(10.0, 12.5)) as joules:
        assert joules == {}
    assert joules == {"energy_j": 2.5}
    for meter in (None, Read(None, 3.0), Read(3.0, None), Read(3.0, 2.0)):
        with metered(meter) as joules:
            pass
        assert joules == {}


def test_answers_of_a_batch_add_up_to_what_it_drew() -> None:
    """The second comes out of the same forwards as the first, and has drawn hardly anything beside it."""
    meter = Read(10.0, 16.0, 16.0, 16.5)
    with metered(meter) as first:
        pass
    with metered(meter) as second:
        pass
    assert (first, second) == ({"energy_j": 6.0}, {"energy_j": 0.5})


def test_a_run_keeps_the_source_that_it_began_with() -> None:
    nothing, something = FoundMeter(None, None, "no RAPL counters"), FoundMeter(Read(), 0.001, "")
    assert noted(nothing, {}) == {"source": None, "update_s": None, "reason": "no RAPL counters"}
    assert noted(something, {"energy": noted(nothing, {})})["source"] == "given"
    assert noted(nothing, {"energy": noted(something, {})})["source"] == "given"


def test_a_target_on_several_devices_has_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FoundMeter(Read(), 0.001, "")
    monkeypatch.setattr("spsbench.runner.conditions.find_rapl", lambda: found)
    cpu = SimpleNamespace(type="cpu")
    assert meter_of(cpu) is found  # type: ignore[arg-type]
    placed = meter_of(cpu, placed=True)  # type: ignore[arg-type]
    assert placed.meter is None
    assert "device map" in placed.reason


def test_no_joules_are_kept_of_an_external_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compute on another machine; the counter here moves all the same."""
    arms = [Arm("ars", 0, engine, "greedy", SamplingParams(greedy=True)) for engine in ("eager", "openai:x")]
    answer = Generation([1], "text", None, 0.0, 0.0, "stop")
    monkeypatch.setattr(execute, "answers", lambda engine, requests: iter([(0, answer)]))
    monkeypatch.setattr(
        execute, "_sample_read_again", lambda pair, turn, answer: Sample("e", 0, turn.arm.name, 1, answer)
    )
    config = SimpleNamespace(trace=0, fixed_length=False)
    plan: Any = SimpleNamespace(everyone=(), config=config, max_new_tokens=4, stop=())
    groups = [[Turn(Prompt("e", "", (1,), ""), 0, arm, 0, 0)] for arm in arms]
    engines: Any = {arm: SimpleNamespace() for arm in arms}
    pair: Any = None
    found = list(execute.generated_samples(plan, engines, groups, pair, Read(10.0, 12.5)))
    assert [sample.conditions.get("energy_j") for sample in found] == [2.5, None]


def test_the_report_names_the_arms_without_joules() -> None:
    def summary(*counted: str) -> Any:
        arms = [{"arm": name} for name in counted]
        return {"energy": {"arms": arms}, "rows": [{"arm": "ars"}, {"arm": "ars@openai:x"}]}

    (said,) = uncounted(summary("ars"))
    assert said.startswith("Not counted: ars@openai:x;")
    assert uncounted(summary("ars", "ars@openai:x")) == uncounted(summary()) == []
