"""What an error says of the machine: memory is short, which it may not be for the next sequence, or the
device is lost."""

from __future__ import annotations

import gc
import re
import sys
import traceback

from spsbench.base.errors import DeviceFault, SpsbenchError, causes_of
from spsbench.models.messages import NEEDS_LESS, SEE_DRIVER, TAKES_LESS, OutOfMemory

_WITHOUT_MEMORY = re.compile(
    r"CUDA out of memory|(CUDA|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator"
    r"|Failed to allocate memory for requested buffer"
)
_OF_A_DEVICE = re.compile(r"(CUDA|CUDA driver|HIP|cuDNN) error|CUBLAS_STATUS_")
# After one of these every later call of the process fails: the driver's context is gone.
_LOST = re.compile(
    r"device-side assert|illegal memory access|illegal address|illegal instruction|misaligned address"
    r"|launch failure|launch timed out|invalid program counter|hardware stack error|address space"
    r"|uncorrectable|context is destroyed|unknown error|busy or unavailable",
    re.IGNORECASE,
)
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]iB)")


def _torch_error(name: str) -> tuple[type[BaseException], ...]:
    """Empty where torch was not imported, and so raised nothing."""
    torch = sys.modules.get("torch")
    return () if torch is None else (getattr(torch, name),)


def is_out_of_memory(error: BaseException) -> bool:
    return any(
        isinstance(cause, (MemoryError, *_torch_error("OutOfMemoryError")))
        or (isinstance(cause, RuntimeError) and _WITHOUT_MEMORY.search(str(cause)) is not None)
        for cause in causes_of(error)
    )


def of_a_device(error: BaseException) -> str | None:
    """Return what a device's driver or library reported, in one line; None for any other error."""
    for cause in causes_of(error):
        text = next(iter(str(cause).splitlines()), "")
        if isinstance(cause, _torch_error("AcceleratorError")) or (
            isinstance(cause, RuntimeError) and _OF_A_DEVICE.match(text)
        ):
            return text.rstrip(".")
    return None


def shortage(error: BaseException, remedy: str = TAKES_LESS, when: str = "") -> str | None:
    """Return out of memory in one line, with the size asked for if known; None for any other error."""
    if not is_out_of_memory(error):
        return None
    needed = next((match[1] for cause in causes_of(error) if (match := _ASKED.search(str(cause)))), None)
    return str(OutOfMemory(needed, when, remedy))


def refuse_fault(error: BaseException, when: str = "") -> None:
    """Raise the typed error for a fault of the machine; return where the error is another one.

    Args:
        when: what was done, as `` while ...``.

    Raises:
        SpsbenchError: memory was short.
        DeviceFault: the device failed.
    """
    if (short := shortage(error, NEEDS_LESS, when)) is not None:
        raise SpsbenchError(short) from error
    if (reported := of_a_device(error)) is not None:
        raise DeviceFault(f"the device failed{when}: {reported}.", remedy=SEE_DRIVER) from error


def settle(error: Exception) -> None:
    """Free the memory that a failed sequence holds, for the next one.

    The frames of its traceback hold its tensors, and cycles among them wait for a collection, which a
    command makes rarely.

    Raises:
        DeviceFault: the device computes nothing any more, so that there is no next one.
    """
    reported = of_a_device(error)
    if reported is not None and _LOST.search(reported):
        why = f"the device failed and computes nothing more: {reported}."
        raise DeviceFault(why, remedy=SEE_DRIVER) from error
    for cause in causes_of(error):
        traceback.clear_frames(cause.__traceback__)
        cause.__traceback__ = None
    if is_out_of_memory(error):
        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
