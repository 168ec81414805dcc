"""How many processes torchrun started, by the environment that it sets; nothing heavy is imported."""

from __future__ import annotations

import os

from spsbench.errors import UsageError

FLAG = "--tensor-parallel"

_COUNT = "WORLD_SIZE"


def started() -> int:
    """Processes that were started together, with this one; 1 without torchrun."""
    told = os.environ.get(_COUNT, "1")
    if not (told.isascii() and told.isdecimal() and int(told) > 0):
        raise UsageError(
            f"the environment's {_COUNT} is {told}, which is not a number of processes.",
            flag=FLAG,
            remedy=f"Unset it, or let torchrun set it for {FLAG}.",
        )
    return int(told)


def require_alone(command: str, remedy: str | None = None) -> None:
    """Refuse several processes for what one is to do."""
    if (count := started()) > 1:
        raise UsageError(
            f"{count} processes were started, and each would carry out the whole {command}.",
            flag=FLAG,
            remedy=remedy or f"Start spsbench without torchrun; unset {_COUNT} if something else set it.",
        )
