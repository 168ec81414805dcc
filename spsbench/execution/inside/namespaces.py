"""Namespaces and an identity of a program's own, where bubblewrap is not there to ask for them.

A root with what programs can read and nothing else, so that no other path has a size, a time, an owner
or even a name; and no process but the zygote and its programs. It hides; to refuse is for the locks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from spsbench.execution.inside import kernel

# linux/sched.h: CLONE_NEWNS, NEWUTS, NEWIPC, NEWPID and NEWNET; and apart NEWUSER.
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_USER = 0x10000000
# linux/mount.h: MS_NOSUID | MS_NODEV; MS_BIND | MS_REC; MS_REC | MS_PRIVATE; and umount2's MNT_DETACH.
_PLAIN, _BIND, _PRIVATE = 2 | 4, 1 << 12 | 1 << 14, 1 << 14 | 1 << 18
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_BASE, _OLD, _NEW = "/tmp", "/old", "/new"

Step = Sequence[str]
"""What to make of a path, and the path; see ``Exposure.tree``."""


def enter(tree: Iterable[Step]) -> None:
    """Go on as the first process of new namespaces, which see ``tree`` alone.

    The process that called stays outside, waits, and ends when that one does.

    Args:
        tree: how to build the root, in this order.

    Raises:
        OSError: the kernel gives none (to this user, in this container).
    """
    _unshare()
    _mount(None, "/", None, _PRIVATE)  # what is mounted here is seen here only
    _build(tree)
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


def _build(tree: Iterable[Step]) -> None:
    """Make the new root and leave the old one.

    Through a root in between, which holds both: a folder of ``tree`` may lie below the one that the new
    root is mounted on.
    """
    os.umask(0o022)
    _mount("tmpfs", _BASE, "tmpfs", _PLAIN)
    for folder in (_OLD, _NEW):
        Path(_BASE + folder).mkdir()
    _pivot(_BASE, _BASE + _OLD)
    _mount("tmpfs", _NEW, "tmpfs", _PLAIN)
    for step in tree:
        _make(*step)
    os.chdir(_NEW)
    _pivot(".", ".")  # the old root lies on the new one then, and is taken off with all that it holds
    kernel.umount(".", _DETACH)
    os.chdir("/")


def _make(kind: str, path: str, target: str = "") -> None:
    place = Path(_NEW + path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        place.symlink_to(target)
    elif kind == "show":
        source = Path(_OLD + path)
        place.mkdir(exist_ok=True) if source.is_dir() else place.touch()
        _mount(str(source), str(place), None, _BIND)
    elif kind == "hide":
        _mount("tmpfs", str(place), "tmpfs", _PLAIN)


def _pivot(new: str, old: str) -> None:
    if platform.machine() not in _PIVOT_ROOT:
        raise OSError(errno.ENOSYS, f"no number of pivot_root for {platform.machine()}")
    paths = ctypes.c_char_p(os.fsencode(new)), ctypes.c_char_p(os.fsencode(old))
    kernel.syscall(_PIVOT_ROOT[platform.machine()], *paths)


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
    """Give up root's user id, if this is root, and every capability; the user id that is left.

    Root becomes nobody, where nobody can read the interpreter's library. In a root-only directory
    (``/root/.pyenv``) nobody could import nothing more; then it stays user 0, without capabilities.
    """
    if os.geteuid() == 0 and _nobody_can_read(os.__file__):
        _become_nobody()
    try:
        kernel.drop_capabilities()
    except (OSError, AttributeError):  # no such call on this system: an ordinary user has none
        if os.geteuid() == 0:
            raise
    return os.geteuid()


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _nobody_can_read(path: str) -> bool:
    child = os.fork()
    if child == 0:
        try:
            _become_nobody()
            os.close(os.open(path, os.O_RDONLY))
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
