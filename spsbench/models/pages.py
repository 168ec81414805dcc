"""Memory that is returned to the system as soon as it is freed, so that loading does not keep a model
twice."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def in_own_pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of zeros apart from the heap, which would keep what passes through it."""
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)


def trim_heap() -> None:
    """Give the heap's free pages back, where the C library can (glibc); takes milliseconds."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
