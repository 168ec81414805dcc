"""Memory traffic of a forward, this machine's bandwidth, and the threads that suit a model's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.base.environment import cpus_left, is_virtual
from spsbench.base.errors import UsageError
from spsbench.config.models import ONNXRUNTIME, Precision
from spsbench.decode.clock import device_now
from spsbench.law.theory import union_share
from spsbench.models.body import head_of
from spsbench.models.causal_lm import skeleton, text_config
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.downloads import local_weights, remote_weights
from spsbench.models.hf_errors import typed_errors
from spsbench.models.layers import cache_widths, widest
from spsbench.models.quantised import packed_bytes, stored_bytes
from spsbench.models.source import ModelSource, files_of
from spsbench.models.text_part import text_class

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")

_LEAST_BYTES = 64 << 20
_MOST_BYTES = 512 << 20
_CACHES = 8
_REPEATS = 5
_SUMS = 32
"""Of a CUDA device at a time: a sum of the array takes 0.1 ms and more, a launch and a wait 0.02 ms."""
_SYSTEM_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a mixture-of-experts model: a forward reads those that its rows activate."""

    bytes: int  # of all experts in all layers
    count: int
    per_token: int


def forward_bytes(model: Any, rows: int = 1) -> int:
    """Return the bytes of weights that a forward of a few tokens reads.

    All weights except an untied input embedding, of which a forward reads a few rows only. Of the experts
    of a mixture, the expected union over the rows (``union_share``).
    """
    total = sum(map(stored_bytes, model.parameters()))
    inner = model.get_input_embeddings()
    outer = head_of(model)
    tied = outer is None or inner is None or outer.weight is inner.weight
    total = total if tied else total - inner.weight.nbytes
    experts = experts_of(model)
    if experts is None:
        return int(total)
    return int(total - experts.bytes * (1.0 - union_share(experts.count, experts.per_token, rows)))


def experts_of(model: Any) -> Experts | None:
    config = text_config(model.config)
    count = _first_known(config, _EXPERT_COUNTS)
    per_token = _first_known(config, _EXPERTS_PER_TOKEN)
    size = sum(stored_bytes(part) for name, part in model.named_parameters() if ".experts." in name)
    return Experts(size, count, per_token) if count and per_token and size else None


def kv_bytes_per_token(model: Any) -> int | None:
    """Return the bytes of keys and values that a forward reads per cached token; None if unknown."""
    return cache_bytes_per_token(model.config, model.dtype.itemsize) or None


def cache_bytes_per_token(config: Any, width_bytes: int) -> int:
    """Return the bytes of keys and values of one cached token; 0 where the configuration does not say."""
    return sum(cache_widths(text_config(config))) * width_bytes


def forward_bytes_per_token(config: Any, width_bytes: int) -> int:
    """Return the bytes between the layers of a forward for each of its tokens: the residual states, those of
    a norm and of attention, and the three widest of an MLP; 0 where the configuration does not say.
    """
    text = text_config(config)
    hidden = widest(text, "hidden_size")
    return (6 * hidden + 3 * (widest(text, "intermediate_size") or 4 * hidden)) * width_bytes


def _first_known(config: Any, names: tuple[str, ...]) -> int:
    values = (getattr(config, name, None) for name in names)
    return next((int(value) for value in values if isinstance(value, int)), 0)


def measured_bandwidth(device: torch.device) -> float | None:
    """Measure read bandwidth in bytes per second: the best of several sums of a large array, about 1 s.

    A sum only reads, as a forward only reads its weights: a copy or a triad would add write traffic. It
    uses torch's current number of threads, so call it after that is set.
    """
    size = min(max(_CACHES * (cache_bytes(device) or 0), _LEAST_BYTES), _MOST_BYTES)
    try:
        data = torch.ones(size // 4, dtype=torch.float32, device=device)
        seconds = [_seconds_of_sum(data) for _ in range(_REPEATS + 1)][1:]
    except (RuntimeError, MemoryError):
        return None
    return 4 * data.numel() / min(seconds)


def cache_bytes(device: torch.device | None = None) -> int | None:
    """Return the size of the last-level cache in bytes; None if unknown."""
    if device is not None and device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
        return None if not size else int(size)
    sizes = [_size(folder / "size") for folder in _SYSTEM_CACHES.glob("index*")]
    return max((size for size in sizes if size), default=None)


def cache_shared(device: torch.device | None = None) -> bool | None:
    """Return whether ``cache_bytes`` may be shared with other guests of a host, as in a virtual machine."""
    return False if device is not None and device.type == "cuda" else is_virtual()


def _size(path: Path) -> int | None:
    """Read ``33792K`` as bytes."""
    try:
        text = path.read_text(encoding="ascii").strip()
        return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)
    except (OSError, ValueError):
        return None


def _seconds_of_sum(data: Tensor) -> float:
    """On a CUDA device by ``_SUMS`` between two events."""
    if data.device.type == "cuda":
        before, after = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        stream = torch.cuda.current_stream(data.device)
        before.record(stream)
        for _ in range(_SUMS):
            torch.sum(data)
        after.record(stream)
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3 / _SUMS
    started = device_now(data.device)
    torch.sum(data)
    return device_now(data.device) - started


# Another thread pays while its share of a product outweighs the synchronization. The embedded target
# (6.7 million) takes 2.2 ms a token on one thread and 1.6 on two; at 1 million two gain nothing.
_PARAMETERS_PER_THREAD = 3_000_000

# Torch's default at the start of this process: OMP_NUM_THREADS, or the number of cores.
_MOST = torch.get_num_threads()


def suitable_threads(parameters: int) -> int:
    """Take one thread per three million parameters, at most torch's default and the CPUs that others leave.

    A thread that shares a CPU is waited for by all others; tokens do not depend on their number.
    """
    most = threads_by_size(parameters)
    return most if most == 1 else min(most, cpus_left())


def threads_by_size(parameters: int) -> int:
    """Return ``suitable_threads`` of an idle machine."""
    return max(1, min(math.ceil(parameters / _PARAMETERS_PER_THREAD), _MOST))


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}  # any other: one byte
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_GIB = 1 << 30


def weight_bytes(
    source: ModelSource, dtype: str, flag: str, packed_on: torch.device | None = None
) -> int | None:
    """Return the size in bytes of a model's weights once loaded; None if unknown.

    From the heads of safetensors files, else from the sizes of files, on the hub for what is not downloaded.
    """
    folder = files_of(source.location, source.commit)
    if folder is None:
        return None
    precision = Precision(dtype)
    whole = precision.quantise is not None and packed_on is None
    wanted = DTYPES.get("float32" if whole else precision.dtype) or getattr(source.config, "dtype", None)
    # Quantised weights keep the size that they have on disk.
    width = None if source.quantization or not isinstance(wanted, torch.dtype) else wanted.itemsize
    with typed_errors(source.name, flag):
        tensors = [*Checkpoint(folder).tensors.values()]
        size = None if tensors else _weight_file_bytes(source, folder, flag)
    if text_class(source.config) is not None and not source.quantization:  # files are of the whole
        tensors, size = [], sum(part.nbytes for part in skeleton(source.config).parameters())
    if tensors:
        size_bytes = sum(
            tensor.size * (width if width and tensor.kind in _FLOATS else _WIDTHS.get(tensor.kind, 1))
            for tensor in tensors
        )
    elif size is None:
        return None
    else:
        stored = getattr(source.config, "dtype", None)
        stored_width = stored.itemsize if isinstance(stored, torch.dtype) else 4
        size_bytes = size * (width or stored_width) // stored_width
    if precision.quantise is not None and packed_on is not None and width:
        sizes = packed_bytes(skeleton(source.config), precision, packed_on, width)
        size_bytes -= sum(whole - packed for whole, packed in sizes.values())
    if source.sharing is not None:  # the rows that a trained draft takes from its target's head
        draft = source.sharing.draft
        size_bytes += len(draft.ids_below(draft.target.vocab_size)) * draft.target.hidden * (width or 4)
    return size_bytes


def _weight_file_bytes(source: ModelSource, folder: Path, flag: str) -> int | None:
    """On this machine or on the hub; None if none are known."""
    here = local_weights(folder)
    if source.is_local or (here and all(file.is_file() for file in here)):
        return sum(file.stat().st_size for file in here if file.is_file()) or None
    there, files = remote_weights(source.location, str(source.commit), flag)
    return sum(there.files[file].bytes for file in files)


def computed_width(source: ModelSource, dtype: str) -> int:
    """Return the bytes of a number that a model, loaded in a dtype, computes with; see ``weight_bytes``."""
    precision = Precision(dtype)
    stored = torch.float32 if precision.quantise is not None else getattr(source.config, "dtype", None)
    wanted = DTYPES.get(precision.dtype) or stored
    return wanted.itemsize if isinstance(wanted, torch.dtype) else 4


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    return None


def forget_device_peak(device: torch.device) -> None:
    """Let ``device_peak`` count from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def device_peak(device: torch.device) -> dict[str, int]:
    """Return for run.json the most bytes of tensors on a device, weights included; nothing for a CPU."""
    if device.type != "cuda":
        return {}
    return {"device_peak_bytes": int(torch.cuda.max_memory_allocated(device))}


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the weights of a target and a draft once loaded; None where they are not known before they are
    downloaded. A draft that is the target itself, or is not there, has none."""

    target: int | None
    draft: int | None

    @property
    def known(self) -> int:
        """Sum of the known sizes."""
        return (self.target or 0) + (self.draft or 0)

    def require(
        self,
        names: str,
        device: torch.device,
        backend: str,
        stock: Sequence[ModelSource] = (),
        split: int = 1,
    ) -> None:
        """Refuse weights that do not fit on the device.

        Args:
            stock: the models that are loaded over torch, too.
            split: over how many processes the target is split.
        """
        target = (self.target or 0) // (1 if device.type == "cpu" else split)
        draft = self.draft or 0
        needed, when = target + draft, ""
        if backend == ONNXRUNTIME:
            beside = sum(weight_bytes(model, "float32", "--target") or 0 for model in stock)
            needed, when = max(
                (max(2 * target, target + 2 * draft), " while they are loaded"),
                (target + draft + beside, " over ONNX Runtime and torch together"),
            )
        remedy = "Choose smaller models, --dtype bfloat16 or int8, or another --device."
        require_free(needed, device, f"the weights of {names}", "--target", remedy, when)


def weights_of(
    target: ModelSource,
    draft: ModelSource | None,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
) -> Weights:
    """Count the weights of models that a backend computes on a device."""
    packed_on = None if backend == ONNXRUNTIME else device
    models = zip((target, draft), dtypes, ("--target", "--draft"), strict=True)
    return Weights(
        *(
            0 if model is None else weight_bytes(model, dtype, flag, packed_on)
            for model, dtype, flag in models
        )
    )


def require_memory(
    target: ModelSource,
    draft: ModelSource | None,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
) -> None:
    names = target.name if draft is None else f"{target.name} and {draft.name}"
    weights_of(target, draft, dtypes, device, backend).require(names, device, backend)


def require_free(
    needed_bytes: int, device: torch.device, what: str, flag: str, remedy: str, when: str = ""
) -> None:
    """Refuse what does not fit into the free memory of a device; nothing where that is not known."""
    available = available_bytes(device)
    if available is not None and needed_bytes > available:
        raise UsageError(
            f"{what} need {needed_bytes / _GIB:.3g} GiB{when}, but {device.type} has "
            f"{available / _GIB:.3g} GiB free.",
            flag=flag,
            remedy=remedy,
        )
