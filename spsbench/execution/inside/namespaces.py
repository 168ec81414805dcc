"""Namespaces and an identity of a program's own, where bubblewrap is not there to ask for them.

An empty root, so that no path has a size, a time, an owner or even a name; and no process but the zygote
and its programs. It hides; to refuse is for the locks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
from pathlib import Path
from typing import NoReturn

from spsbench.execution.inside import kernel

# linux/sched.h: CLONE_NEWNS, NEWUTS, NEWIPC, NEWPID and NEWNET; and apart NEWUSER.
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_USER = 0x10000000
# linux/mount.h: MS_RDONLY | MS_NOSUID | MS_NODEV; MS_REC | MS_PRIVATE; and umount2's MNT_DETACH.
_EMPTY, _PRIVATE = 1 | 2 | 4, 1 << 14 | 1 << 18
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_BASE = "/tmp"


def enter() -> None:
    """Go on as the first process of new namespaces, which see no file at all.

    The process that called stays outside, waits, and ends when that one does.
    """
    _unshare()
    _mount(None, "/", None, _PRIVATE)  # what is mounted here is seen here only
    _leave_all_files()
    child = os.fork()
    if child != 0:
        _wait_for(child)


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        kernel.unshare(_NAMESPACES)
        return
    kernel.unshare(_NAMESPACES | _USER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _leave_all_files() -> None:
    """Make an empty root, and take the old one off, which lies on it then."""
    _mount("tmpfs", _BASE, "tmpfs", _EMPTY)
    os.chdir(_BASE)
    if platform.machine() not in _PIVOT_ROOT:
        raise OSError(errno.ENOSYS, f"no number of pivot_root for {platform.machine()}")
    kernel.syscall(_PIVOT_ROOT[platform.machine()], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    kernel.umount(".", _DETACH)
    os.chdir("/")


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    try:
        kernel.mount(source, target, kind, flags, "mode=755" if kind == "tmpfs" else None)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (mounting {target})") from error


def _wait_for(child: int) -> NoReturn:
    os.closerange(0, 1024)  # the judge must see the zygote hang up
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.drop_capabilities()
    os.waitpid(child, 0)
    os._exit(0)


NOBODY = 65534


def lower_identity() -> int:
    """Give up root's user id, if this is root, and every capability; the user id that is left."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    with contextlib.suppress(AttributeError):  # no such call on this system; nor has an ordinary user any
        kernel.drop_capabilities()
    return os.geteuid()
