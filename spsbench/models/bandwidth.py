"""How fast this machine reads memory, and how large its last cache is: for floors of a forward's time."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

_LEAST_BYTES = 64 << 20
_MOST_BYTES = 512 << 20
_CACHES = 8
_REPEATS = 5
_SYSTEM_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def measured_bandwidth(device: torch.device) -> float | None:
    """Bytes a second that summing a large array reads, the best of a few; takes about a second.

    A sum reads and writes nothing, as a forward reads its weights: a copy or a triad would put the
    traffic of writing on top. With as many threads as torch is set to, so measure after these are chosen.

    Args:
        device: where the models are.

    Returns:
        None where there is no memory for it.
    """
    size = min(max(_CACHES * (cache_bytes(device) or 0), _LEAST_BYTES), _MOST_BYTES)
    try:
        data = torch.ones(size // 4, dtype=torch.float32, device=device)
        seconds = [_seconds(data) for _ in range(_REPEATS + 1)][1:]
    except (RuntimeError, MemoryError):
        return None
    return 4 * data.numel() / min(seconds)


def cache_bytes(device: torch.device | None = None) -> int | None:
    """Size of the last-level cache; None where it cannot be told.

    Args:
        device: a GPU has its own; otherwise the CPU's is meant.
    """
    if device is not None and device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
        return None if not size else int(size)
    sizes = [_size(folder / "size") for folder in _SYSTEM_CACHES.glob("index*")]
    return max((size for size in sizes if size), default=None)


def _size(path: Path) -> int | None:
    """``33792K`` as bytes."""
    try:
        text = path.read_text(encoding="ascii").strip()
        return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)
    except (OSError, ValueError):
        return None


def _seconds(data: Tensor) -> float:
    started = _now(data.device)
    torch.sum(data)
    return _now(data.device) - started


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
