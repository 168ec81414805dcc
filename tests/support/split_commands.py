"""Commands carried out one after another by two processes that began as torchrun's do, to pay for that once.

    python tests/support/split_commands.py FOLDER

FOLDER/commands.json lists them, each with its ``arguments`` and perhaps a ``fault`` of the second process.
FOLDER/results-R.json gets what process R made of them: exit code, stdout and stderr of each.
Both are forked, so that they begin with everything imported. What torchrun's agent gives they have too: a
place in the environment, and a store in the process that started them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commandline import call
from support.killing import IMPORTED
from torch.distributed import TCPStore

from spsbench.engines import local
from spsbench.models import tensor_parallel
from spsbench.models.tensor_parallel import OrderedForward


@contextmanager
def faulty(fault: str | None) -> Iterator[None]:
    """While the block lasts this process draws other numbers, or loses a cached token."""
    stream, obey = local.UniformStream, tensor_parallel.SplitLM.obey

    def forgetful(model: tensor_parallel.SplitLM, message: OrderedForward) -> None:
        if model.length > 3:
            model.rollback(message.number - 1)
        obey(model, message)

    if fault == "numbers":
        local.UniformStream = lambda seed, device: stream(seed + 1, device)  # type: ignore[assignment, misc]
    elif fault == "cache":
        tensor_parallel.SplitLM.obey = forgetful  # type: ignore[method-assign]
    try:
        yield
    finally:
        local.UniformStream, tensor_parallel.SplitLM.obey = stream, obey  # type: ignore[method-assign, misc]


RANKS = 2


def carry_out(folder: Path, rank: int) -> None:
    """Every command, in the process of this rank."""
    results = []
    for command in json.loads((folder / "commands.json").read_text()):
        with faulty(command.get("fault") if rank else None):
            results.append(dataclasses.asdict(call(*command["arguments"])))
        (folder / f"results-{rank}.json").write_text(json.dumps(results))


def main(folder: Path) -> int:
    """How many processes failed."""
    for name in IMPORTED:
        importlib.import_module(name)
    listening = socket.create_server(("127.0.0.1", 0))
    place, port = listening.getsockname()
    shared = {"WORLD_SIZE": RANKS, "MASTER_ADDR": place, "MASTER_PORT": port}
    shared |= {"LOCAL_WORLD_SIZE": RANKS, "TORCHELASTIC_USE_AGENT_STORE": True}
    children = []
    for rank in range(RANKS):
        if child := os.fork():
            children.append(child)
            continue
        os.environ.update({name: str(value) for name, value in (shared | {"RANK": rank}).items()})
        carry_out(folder, rank)
        os._exit(0)  # as fast as it goes: a process that waits for others at its end would wait for nothing
    store = TCPStore(place, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    del store
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
