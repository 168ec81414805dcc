"""The device that computes: its name, what a benchmark records of it, and a GPU that torch cannot use."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from spsbench.base.environment import gpus
from spsbench.base.errors import UsageError, first_line
from spsbench.base.gpu import FACTS, STATE, Board, NoNvml, NvmlBoard, SmiBoard, board_of, gpu_watched, nvml_of
from spsbench.models.fetch.cache import watcher
from spsbench.models.messages import GpusUnused

VISIBLE = "CUDA_VISIBLE_DEVICES"

_WHEELS = ((580, "cu130"), (570, "cu128"), (525, "cu126"))
"""By the least driver: the wheels of torch that run on it. CUDA 12 runs on every driver since its first."""


def resolve_device(name: str) -> torch.device:
    """Find a device by name; ``auto`` is the GPU if torch can use one, and else the user learns why not.

    A float32 product on a GPU is computed in float32 from here on. Some builds of torch (NVIDIA's
    containers) round its factors to TF32: the proof would find every text to be wrong.

    Raises:
        UsageError: there is no such device, or torch cannot use it.
    """
    usable = _cuda_is_usable()
    if name == "auto" and not usable and (unused := gpus()):
        names = [board["name"] for board in unused]
        watcher().warned(str(GpusUnused(names, why_unusable(), remedy_for(unused))))
    if name == "auto":
        name = "cuda" if usable else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise _refusal(name, error, usable=usable) from error
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    return device


def _cuda_is_usable() -> bool:
    with warnings.catch_warnings():  # an old driver: said in a sentence of ours
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def _refusal(name: str, error: Exception, *, usable: bool) -> UsageError:
    reason = first_line(error).rstrip(".")
    remedy = "Use cpu, or auto."
    if name.startswith("cuda") and not usable:
        reason = why_unusable()
        remedy = f"{remedy} {remedy_for(gpus())}".rstrip()
    elif name.startswith("cuda"):
        here = [f"cuda:{index} ({_name(index)})" for index in range(torch.cuda.device_count())]
        reason, remedy = f"torch sees {', '.join(here)}", f"Use one of these, {remedy[4:]}"
    return UsageError(f"device {name} cannot be used here: {reason}.", flag="--device", remedy=remedy)


def why_unusable() -> str:
    """Return why torch has no GPU, with its build; no full stop."""
    build = f"torch {metadata.version('torch')}"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"{build} has no CUDA"
    if (hidden := _hidden_by()) is not None:
        return f"{VISIBLE} is {hidden}, which hides it"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        return f"{build} (CUDA {torch.version.cuda}) says: {reason}"
    value = os.environ.get(VISIBLE)
    within = "" if value is None else f" in {VISIBLE}={value.strip()}"
    return f"{build} (CUDA {torch.version.cuda}) finds no device{within}"


def _hidden_by() -> str | None:
    """The value of ``VISIBLE`` if it hides every GPU."""
    value = os.environ.get(VISIBLE)
    if value is None or (value.strip() and not value.strip().startswith("-")):
        return None
    return value.strip() or "empty"


def remedy_for(boards: Sequence[Mapping[str, str]]) -> str:
    """Return what to type so that torch can use boards of ``environment.gpus``.

    It is empty without a board, or if the boards are hidden.
    """
    if not boards:
        return ""
    driver = boards[0]["driver_version"]
    major = driver.partition(".")[0]
    known = int(major) if major.isdecimal() else 0
    wheels = next((name for least, name in _WHEELS if known >= least), None)
    build = torch.version.cuda
    runs = build is not None and wheels is not None and int(wheels[2:4]) >= int(build.partition(".")[0])
    if build is not None and (_hidden_by() is not None or (runs and VISIBLE in os.environ)):
        remedy = f"Without {VISIBLE} torch sees all of them."
    elif wheels is None:
        remedy = f"Its driver is {driver}: install {_WHEELS[-1][0]} or later."
    else:
        index = f"https://download.pytorch.org/whl/{wheels}"
        remedy = f"For driver {driver}: pip install --force-reinstall torch --index-url {index}"
    return remedy


def _name(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).name)


def _with_index(device: torch.device) -> torch.device:
    """``cuda`` as the ``cuda:N`` that it means now."""
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def title(device: torch.device) -> str | None:
    """Return ``NVIDIA H100 80GB HBM3, cuda:0``; None for a CPU, where nothing was chosen."""
    if device.type == "cuda":
        return f"{_name(_with_index(device).index)}, {_with_index(device)}"
    return None if device.type == "cpu" else str(device)


def uuid_of(device: torch.device) -> str | None:
    """Return a CUDA device's UUID without the driver's ``GPU-``; None for any other, or if it is unknown."""
    uuid = None
    if device.type == "cuda":
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def gpu_facts(device: torch.device, board: Board | None) -> dict[str, Any]:
    """Return what is recorded of a CUDA device that computes: torch's facts and the driver's.

    Of a MIG slice name, memory and UUID are its own, everything else is the board's.
    """
    properties = torch.cuda.get_device_properties(device)
    uuid = uuid_of(device)
    facts = dict.fromkeys(FACTS) if board is None else board.facts()
    if uuid is not None and facts["uuid"] not in (f"GPU-{uuid}", f"MIG-{uuid}"):
        facts["uuid"] = f"MIG-{uuid}" if facts["mig"] else f"GPU-{uuid}"
    return {
        "device": str(_with_index(device)),
        "source": "torch" if board is None else board.source,
        **facts,
        "name": properties.name,
        "memory_bytes": int(properties.total_memory),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "cudnn": _cudnn_version(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "visible_devices": os.environ.get(VISIBLE),
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "reduced_bfloat16_sums": bool(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
    }


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device that computes: its facts, and what can be asked of its board."""

    facts: dict[str, Any]
    board: NvmlBoard | SmiBoard | None

    @classmethod
    def of(cls, device: torch.device) -> Gpu | None:
        if device.type != "cuda":
            return None
        board = board_of(uuid_of(device))
        return cls(gpu_facts(device, board), board)

    def not_followed(self) -> str | None:
        """Return why nothing is known of each sequence; None if something is.

        Only NVML reports fast enough for that.
        """
        if isinstance(self.board, NvmlBoard):
            return None
        try:
            nvml_of(self.facts["uuid"])
            return "NVML knows another board"
        except NoNvml as reason:
            return str(reason)

    def of_sequence(self) -> dict[str, float]:
        """Return what is known of a sequence as it ends, see ``NvmlBoard.of_sequence``."""
        return self.board.of_sequence() if isinstance(self.board, NvmlBoard) else {}

    def watched(self) -> AbstractContextManager[None]:
        return gpu_watched(self.board)

    def state(self) -> dict[str, float | None]:
        return dict.fromkeys(STATE) if self.board is None else self.board.state()


def _cudnn_version(number: int | None) -> str | None:
    """``9.10.2`` of 91002, ``8.9.7`` of 8907."""
    if number is None:
        return None
    major = 10_000 if number >= 90_000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def computing_by(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return how transformers' models, by role, compute: their attention, and whether torch compiled one."""
    kernels = ("flash", "mem_efficient", "math", "cudnn")
    enabled = [name for name in kernels if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]
    named = {role: str(getattr(model.config, "_attn_implementation", None)) for role, model in models.items()}
    return {
        "attention": named | {"sdpa_kernels": ", ".join(enabled)},
        "compiled": any(getattr(model, "_compiled_call_impl", None) is not None for model in models.values()),
    }
