"""The locks that belong to the process of one program, as far as they can be made before it is forked."""

from __future__ import annotations

import os

from spsbench.execution.inside import landlock, limits, seccomp, syscalls


class Locks:
    """Made once by the zygote, which has no new privileges; put on by every program's process.

    Args:
        memory_bytes: of address space; the zygote takes this limit, and those like it, upon itself.
    """

    def __init__(self, layers: list[str], memory_bytes: int) -> None:
        self._limits = "limits" in layers
        self._separate = landlock.separation() if "landlock" in layers else None
        self._filter = seccomp.Filter(syscalls.table()) if "seccomp" in layers else None
        if self._limits:
            limits.lower_common(memory_bytes)

    def separate(self) -> None:
        """The lock that needs a descriptor of the zygote's, to be put on while it is open."""
        if self._separate is not None:
            self._separate()

    def put_on(self, cpu_s: int) -> None:
        """The others."""
        if self._limits:
            limits.lower_own(cpu_s)
        if self._filter is not None:
            self._filter.install(os.getpid())
