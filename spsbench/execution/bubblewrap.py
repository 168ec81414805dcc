"""Bubblewrap: namespaces of its own around the zygote, with a read-only root of few folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

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
    packages = (*exposure.packages.values(), *exposure.beside)
    for parent in _parents(exposure.folders, packages):  # made by --ro-bind they would be for root alone
        yield from ("--dir", parent)
    for folder in exposure.folders:
        yield from ("--ro-bind", folder, folder)
    for top in ("lib", "lib64"):
        link = Path("/") / top
        if link.is_symlink():
            yield from ("--symlink", str(link.readlink()), str(link))
    for folder in exposure.hidden:
        yield from ("--tmpfs", folder)
    for folder in packages:
        yield from ("--ro-bind", folder, folder)
    for folder in exposure.hidden:
        yield from ("--remount-ro", folder)


def _parents(folders: tuple[str, ...], packages: tuple[str, ...]) -> list[str]:
    above = {parent for path in (*folders, *packages) for parent in Path(path).parents}
    bound = [Path(folder) for folder in folders]
    made = [path for path in above if not any(path.is_relative_to(folder) for folder in bound)]
    return [str(path) for path in sorted(made) if path != Path("/")]
