"""Which device computes, what is recorded of it, and what is said of a GPU that torch cannot use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import nvidia_smi
from support.nvidia_smi import H100

from spsbench.base.errors import UsageError
from spsbench.models import device as devices
from spsbench.models.device import Gpu, resolve_device, title
from spsbench.models.fetch.cache import TransferWatcher, watched_by


class Hearing(TransferWatcher):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def said(self, message: str) -> None: ...

    def warned(self, message: str) -> None:
        self.heard.append(message)


@pytest.fixture
def hearing() -> Iterator[list[str]]:
    somebody = Hearing()
    with watched_by(somebody):
        yield somebody.heard


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boards that the driver sees and torch does not."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi.install(tmp_path, monkeypatch, H100, {**H100, "index": "1"})


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boards that torch sees, too; nothing is put there."""
    told = {
        0: SimpleNamespace(name="NVIDIA L4", total_memory=23 << 30, uuid="4e1f", major=8, minor=9),
        1: SimpleNamespace(name="NVIDIA H100", total_memory=80 << 30, uuid="8a1f", major=9, minor=0),
    }

    def properties(device: Any) -> Any:
        index = device if isinstance(device, int) else torch.device(device).index
        return told[index or 0]

    def empty(*size: int, device: torch.device) -> None:
        if (device.index or 0) not in told:
            raise RuntimeError("CUDA error: invalid device ordinal\nCUDA kernel errors might be ...")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(told))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    monkeypatch.setattr("torch.empty", empty)
    monkeypatch.setattr("torch.version.cuda", "12.8")


@pytest.mark.usefixtures("boards")
def test_a_build_without_cuda_is_named_with_the_wheels_for_the_driver(
    hearing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr("torch.version.cuda", None)
    assert resolve_device("auto") == torch.device("cpu")
    assert hearing == [
        "2 GPUs (NVIDIA H100 80GB HBM3) are not used: torch 2.13.0+cpu has no CUDA. For driver "
        "535.183.01: pip install --force-reinstall torch --index-url "
        "https://download.pytorch.org/whl/cu126"
    ]
    assert resolve_device("cpu") == torch.device("cpu")
    assert len(hearing) == 1  # who asks for the CPU wants it


@pytest.mark.usefixtures("boards")
@pytest.mark.parametrize("visible", [None, "0"])  # a scheduler sets it for every job
def test_an_old_driver_is_named_in_the_words_of_torch(
    visible: str | None, hearing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020). Update it.")

    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.init", init)
    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0")
    assert resolve_device("auto") == torch.device("cpu")
    assert "torch 2.13.0 (CUDA 13.0) says: The NVIDIA driver on your system is too old" in hearing[0]
    assert hearing[0].endswith("/whl/cu126")


@pytest.mark.parametrize(("visible", "said"), [("", "is empty, which hides it"), ("-1", "is -1, which")])
@pytest.mark.usefixtures("boards")
def test_hidden_gpus_are_said(
    visible: str, said: str, hearing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    resolve_device("auto")
    assert f"CUDA_VISIBLE_DEVICES {said}" in hearing[0]
    assert "pip" not in hearing[0]


@pytest.mark.usefixtures("boards")
def test_a_slice_that_is_not_there_is_named(hearing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", "12.6")
    monkeypatch.setattr("torch.cuda.init", lambda: None)
    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-41b3")
    resolve_device("auto")
    assert "torch 2.13.0 (CUDA 12.6) finds no device in CUDA_VISIBLE_DEVICES=MIG-41b3" in hearing[0]
    assert hearing[0].endswith("Without CUDA_VISIBLE_DEVICES torch sees all of them.")


def test_where_there_is_no_gpu_nothing_is_said(
    hearing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    nvidia_smi.install(tmp_path, monkeypatch)
    assert resolve_device("auto") == torch.device("cpu")
    assert hearing == []


@pytest.mark.parametrize(
    ("driver", "remedy"),
    [("580.65.06", "/whl/cu130"), ("470.82", "install 525 or later."), ("", "install 525 or later.")],
)
def test_which_wheels_a_driver_runs(driver: str, remedy: str) -> None:
    assert devices.remedy_for([{"name": "NVIDIA L4", "driver_version": driver}]).endswith(remedy)


@pytest.mark.usefixtures("boards")
def test_cuda_where_torch_has_none_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(UsageError) as refused:
        resolve_device("cuda")
    assert "has no CUDA" in refused.value.message
    assert "Use cpu, or auto. For driver 535.183.01: pip install" in str(refused.value)


@pytest.mark.usefixtures("usable")
def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError) as refused:
        resolve_device("cuda:7")
    assert "torch sees cuda:0 (NVIDIA L4), cuda:1 (NVIDIA H100)" in refused.value.message


@pytest.mark.usefixtures("usable")
def test_a_gpu_computes_float32_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cudnn.allow_tf32", True)
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.backends.cuda.matmul.allow_tf32
        device = resolve_device("auto")
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
        facts = devices.gpu_facts(device, None)
        assert (facts["tf32_matmul"], facts["tf32_cudnn"]) == (False, False)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("usable")
def test_of_two_boards_the_facts_are_of_the_one_that_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    nvidia_smi.install(tmp_path, monkeypatch, {**H100, "uuid": "GPU-4e1f"}, {**H100, "index": "1"})
    device = resolve_device("cuda:1")
    gpu = Gpu.of(device)
    assert gpu is not None
    assert title(device) == "NVIDIA H100, cuda:1"
    assert title(resolve_device("auto")) == "NVIDIA L4, cuda:0"
    assert {name: gpu.facts[name] for name in ("device", "index", "uuid", "driver", "capability")} == {
        "device": "cuda:1",
        "index": 1,
        "uuid": "GPU-8a1f",
        "driver": "535.183.01",
        "capability": "9.0",
    }
    assert (gpu.facts["cuda"], gpu.facts["visible_devices"], gpu.facts["source"]) == (
        "12.8",
        "0,1",
        "nvidia-smi",
    )


@pytest.mark.usefixtures("usable")
def test_without_a_driver_to_ask_the_facts_are_what_torch_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    gpu = Gpu.of(torch.device("cuda"))
    assert gpu is not None
    assert (gpu.facts["source"], gpu.facts["name"], gpu.facts["uuid"]) == ("torch", "NVIDIA L4", "GPU-4e1f")
    assert (gpu.facts["driver"], gpu.facts["power_limit_w"]) == (None, None)
    assert set(gpu.state().values()) == {None}
    assert Gpu.of(torch.device("cpu")) is None
    assert title(torch.device("cpu")) is None


@pytest.mark.parametrize(("number", "text"), [(91002, "9.10.2"), (8907, "8.9.7"), (None, None)])
def test_cudnn_goes_by_its_version(number: int | None, text: str | None) -> None:
    assert devices._cudnn_version(number) == text
