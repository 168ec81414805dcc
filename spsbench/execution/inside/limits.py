"""Resource limits of one program."""

from __future__ import annotations

import resource


def lower(memory_bytes: int, cpu_s: int) -> None:
    """Limit this process: memory, CPU time, no file, no core, few descriptors, no further process.

    A hard limit that is lower already stays.
    """
    wanted = {
        "AS": memory_bytes,
        "CPU": cpu_s,
        "FSIZE": 0,
        "CORE": 0,
        "NOFILE": 64,
        "NPROC": 0,  # root is exempt; seccomp is not
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
    for name, value in wanted.items():
        number = getattr(resource, f"RLIMIT_{name}", None)  # not every system has every limit
        if number is not None:
            _limit(number, value)


def _limit(number: int, value: int) -> None:
    _, hard = resource.getrlimit(number)
    lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(number, (lowered, lowered))
    except (OSError, ValueError):  # macOS refuses some; the deadline and the judge's caps remain
        return


def lower_soft(name: str, value: int) -> None:
    """Set a soft limit alone, where the hard one allows it."""
    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(number, (soft, hard))
    except (OSError, ValueError):
        return
