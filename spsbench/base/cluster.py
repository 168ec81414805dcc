"""Whose machines measure a run: what ``--on`` may say, and whether anybody is there to be asked.

Nothing heavy is imported, and Ray itself is only looked for: what is wrong is said before anything is loaded.
"""

from __future__ import annotations

import os
import re
import socket
from importlib.util import find_spec

from spsbench.base.errors import UnavailableError, UsageError

RAY = "ray"
FLAG = "--on"

LOCAL = "local"
"""The address of a cluster that Ray starts on this machine for the run, and ends with it."""

_ADDRESS = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/\s\[\]]+):(?P<port>[0-9]{1,5})/?")
_VARIABLE = "RAY_ADDRESS"
_ANSWER_S = 5.0


def cluster_of(text: str) -> str:
    """Return the address that ``--on`` stands for, as ``ray.init`` takes it."""
    if text == RAY:
        return os.environ.get(_VARIABLE) or LOCAL
    if text.startswith(f"{RAY}://") and _ADDRESS.fullmatch(text):
        return text
    raise UsageError(
        f"{text} is unknown.",
        flag=FLAG,
        remedy="Write ray for this machine or ray://HOST:PORT for a cluster; with Slurm use --shard, see "
        "docs/scale.md.",
    )


def require_cluster(text: str) -> str:
    """Return ``cluster_of``, once Ray is installed and a cluster answers at the address."""
    address = cluster_of(text)
    if find_spec("ray") is None:
        remedy = "pip install 'spsbench[ray]'"
        raise UnavailableError(f"{text} needs Ray, which is not installed.", flag=FLAG, remedy=remedy)
    if match := _ADDRESS.fullmatch(address):
        try:  # Ray itself would go on trying for minutes
            socket.create_connection((match["host"].strip("[]"), int(match["port"])), _ANSWER_S).close()
        except (OSError, OverflowError, UnicodeError) as error:
            reason = str(getattr(error, "strerror", None) or error).rstrip(".")
            raise UnavailableError(
                f"cannot connect to {address}: {reason}.",
                flag=FLAG,
                remedy="Start the cluster with `ray start --head`; the port of ray:// addresses is 10001 "
                "unless it was started with another --ray-client-server-port.",
            ) from error
    return address


TENSOR_PARALLEL = "--tensor-parallel"

_COUNT = "WORLD_SIZE"


def started() -> int:
    """Count the processes that were started together, with this one; 1 without torchrun."""
    count = os.environ.get(_COUNT, "1")
    if not (count.isascii() and count.isdecimal() and int(count) > 0):
        raise UsageError(
            f"the environment's {_COUNT} is {count}, which is not a number of processes.",
            flag=TENSOR_PARALLEL,
            remedy=f"Unset it, or let torchrun set it for {TENSOR_PARALLEL}.",
        )
    return int(count)


def require_alone(command: str, remedy: str | None = None) -> None:
    """Refuse to run in several processes a command that runs in one."""
    if (count := started()) > 1:
        raise UsageError(
            f"{count} processes were started, and each would carry out the whole {command}.",
            flag=TENSOR_PARALLEL,
            remedy=remedy or f"Start spsbench without torchrun; unset {_COUNT} if something else set it.",
        )
