"""How matrix products are computed on a CPU: a setting of a run, from a flag or the environment."""

from __future__ import annotations

import os

from spsbench.errors import UsageError

PLAIN, PACKED = "plain", "packed"
KERNELS = (PLAIN, PACKED)
VARIABLE = "SPSBENCH_KERNELS"


def chosen_kernels(typed: str | None = None) -> str:
    """What was typed, else what the environment variable says, else ``plain``.

    Raises:
        UsageError: it is neither ``plain`` nor ``packed``.
    """
    flag, name = ("--kernels", typed) if typed is not None else (VARIABLE, os.environ.get(VARIABLE) or PLAIN)
    if name not in KERNELS:
        raise UsageError(f"{name!r} is unknown.", flag=flag, remedy=f"Choose from {', '.join(KERNELS)}.")
    return name
