"""Landlock: no file, no TCP, no reach outside.

Numbers from ``linux/landlock.h``. What an older kernel cannot lock is left out, by its ``abi``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable

from spsbench.execution.inside import kernel

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_VERSION_FLAG = 1
_TCP = 0b11
_SCOPES = 0b11  # abstract unix sockets, signals


def abi() -> int:
    """Version of the kernel's Landlock, 0 if there is none or it is switched off."""
    try:
        return kernel.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def confine() -> None:
    """Lock this process and its children out of all files."""
    ruleset = _ruleset()
    kernel.no_new_privileges()
    kernel.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def separation() -> Callable[[], int]:
    """What puts the process that calls it in its own domain, where it can trace and signal itself alone.

    It may be called in any number of forks of a process without new privileges; the rule set's descriptor
    is theirs to close.
    """
    numbers = ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(_ruleset()), ctypes.c_uint32(0)
    return kernel.prepared("syscall", *numbers)


def _ruleset() -> int:
    """Every right that this kernel's version knows, and none of them given."""
    version = abi()
    files = (1 << 13) - 1  # execute .. make_sym
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, ioctl_dev
        files |= (1 << bit) if version >= since else 0
    attributes = struct.pack("QQQ", files, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    # An older kernel takes a longer structure if what it does not know is zero.
    return kernel.syscall(
        _CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
