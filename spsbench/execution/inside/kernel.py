"""System calls that Python has no function for, through the C library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: Any) -> int:
    """Call the kernel by number."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: Any) -> int:
    """``prctl(2)``; missing arguments are 0."""
    given = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    padding = [ctypes.c_ulong(0)] * (4 - len(given))
    return _checked(_libc.prctl(ctypes.c_int(option), *given, *padding))


def prepared(name: str, *arguments: Any) -> Callable[[], int]:
    """A call of the C library with its ctypes arguments put together beforehand.

    A process that was just forked pays for every page that it touches first; this touches few.
    """
    function = getattr(_libc, name)
    return lambda: _checked(function(*arguments))


def unshare(namespaces: int) -> None:
    """``unshare(2)``."""
    _checked(_libc.unshare(ctypes.c_int(namespaces)))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    """``mount(2)``."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _checked(_libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


def umount(target: str, flags: int) -> None:
    """``umount2(2)``."""
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)))


def no_new_privileges() -> None:
    """No exec can gain rights any more; Landlock and seccomp ask for it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability of this process, and of what it might execute."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # not permitted, or no such capability; the sets below are what counts
            break
    version_3, no_sets = 0x20080522, (ctypes.c_uint32 * 6)()
    _checked(_libc.capset((ctypes.c_uint32 * 2)(version_3, 0), no_sets))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
