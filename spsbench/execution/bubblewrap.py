"""Bubblewrap: namespaces of its own around the zygote, with a read-only root of few folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from spsbench.execution.exposure import Exposure


def find() -> str | None:
    """The program ``bwrap``, if it is installed."""
    return shutil.which("bwrap")


def command(program: str, exposure: Exposure) -> list[str]:
    """Arguments in front of the command that is to run inside.

    No /proc, /dev, /tmp nor home. As root without a user namespace, so that the zygote can become
    another user; it gives up the two capabilities that this takes. (Bubblewrap's own --uid would be a
    mask over user 0.)
    """
    root = os.geteuid() == 0
    user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    namespaces = ["ipc", "pid", "net", "uts", "cgroup-try"] + ([] if root else ["user"])
    return [
        program,
        *(f"--unshare-{name}" for name in namespaces),
        *(user if root else []),
        "--die-with-parent",
        "--new-session",
        *_mounts(exposure),
        # Bubblewrap's root is a tmpfs: writable, without a limit, and outside RLIMIT_AS.
        *("--remount-ro", "/"),
        *("--chdir", "/"),
        "--",
    ]


def _mounts(exposure: Exposure) -> Iterator[str]:
    for kind, path, *target in exposure.tree():
        match kind:
            case "folder":  # made by --ro-bind it would be for root alone
                yield from ("--dir", path)
            case "show":
                yield from ("--ro-bind", path, path)
            case "link":
                yield from ("--symlink", *target, path)
            case "hide":
                yield from ("--tmpfs", path)
    for folder in exposure.hidden:
        yield from ("--remount-ro", folder)
