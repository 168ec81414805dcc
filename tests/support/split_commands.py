"""Commands carried out one after another in every process that torchrun started, to pay for its start once.

    torchrun --nproc-per-node 2 tests/support/split_commands.py FOLDER

FOLDER/commands.json lists them, each with its ``arguments`` and perhaps a ``fault`` of the second process.
FOLDER/results-R.json gets what process R made of them: exit code, stdout and stderr of each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commandline import call

from spsbench.engines import local
from spsbench.models import tensor_parallel
from spsbench.models.tensor_parallel import Message


@contextmanager
def faulty(fault: str | None) -> Iterator[None]:
    """While the block lasts this process draws other numbers, or loses a cached token."""
    stream, obey = local.UniformStream, tensor_parallel.SplitLM.obey

    def forgetful(model: tensor_parallel.SplitLM, message: Message) -> None:
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


def main(folder: Path) -> None:
    rank, results = int(os.environ["RANK"]), []
    for command in json.loads((folder / "commands.json").read_text()):
        with faulty(command.get("fault") if rank else None):
            results.append(dataclasses.asdict(call(*command["arguments"])))
        (folder / f"results-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # as fast as it goes: a process that waits for others at its end would wait for nothing
