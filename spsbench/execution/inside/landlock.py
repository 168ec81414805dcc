"""Landlock: which files can be read, and nothing else of the file system; no TCP; no reach outside.

Numbers from ``linux/landlock.h``. What an older kernel cannot lock is left out, by its ``abi``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from spsbench.execution.inside import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_TCP = 0b11
_SCOPES = 0b11  # abstract unix sockets, signals


def abi() -> int:
    """Version of the kernel's Landlock, 0 if there is none or it is switched off."""
    try:
        return kernel.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def confine(readable: Iterable[str]) -> None:
    """Lock this process and its children: they can read beneath ``readable`` and do nothing else to files.

    Raises:
        OSError: no Landlock, or the kernel refuses.
    """
    version = abi()
    ruleset = _ruleset(_files(version), _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    for path in readable:
        _allow_reading(ruleset, path)
    _restrict(ruleset)


def separation() -> Callable[[], int]:
    """What puts the process that calls it in its own domain, where it can trace and signal itself alone.

    It may be called in any number of forks of a process without new privileges; the rule set's descriptor
    is theirs to close.

    Raises:
        OSError: no Landlock, or the kernel refuses; so does what it returns.
    """
    # Making nodes is refused to the parent already; a ruleset must handle something.
    ruleset = _ruleset(1 << 6, 0, _SCOPES if abi() >= 6 else 0)
    numbers = ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint32(0)
    return kernel.prepared("syscall", *numbers)


def _files(version: int) -> int:
    """Every right over files that the version knows."""
    known = (1 << 13) - 1  # execute .. make_sym
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, ioctl_dev
        known |= (1 << bit) if version >= since else 0
    return known


def _ruleset(files: int, network: int, scopes: int) -> int:
    attributes = struct.pack("QQQ", files, network, scopes)
    # An older kernel takes a longer structure if what it does not know is zero.
    return kernel.syscall(
        _CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, or not to be reached by this user: then there is nothing to allow
        return
    access = _READ_FILE | _READ_DIR if Path(path).is_dir() else _READ_FILE
    rule = ctypes.c_char_p(struct.pack("=Qi", access, handle))
    numbers = ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH)
    kernel.syscall(_ADD_RULE, *numbers, rule, ctypes.c_uint32(0))
    os.close(handle)


def _restrict(ruleset: int) -> None:
    kernel.no_new_privileges()
    kernel.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
