"""``prompts.jsonl``: every example of a run as the models saw it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.records import Prompt
from spsbench.store.codec import decode_prompt, encode_prompt
from spsbench.store.files import write_text


def write(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write all prompts, one line each, atomically."""
    write_text(path, "".join(json.dumps(encode_prompt(prompt)) + "\n" for prompt in prompts))


def read(path: Path) -> list[Prompt]:
    """All prompts in the file.

    Raises:
        UsageError: if it is missing or damaged.
    """
    try:
        with path.open("rb") as file:
            return [decode_prompt(json.loads(line)) for line in file]
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}).", flag="RUN", remedy="Restore the file."
        ) from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UsageError(
            f"{path} is damaged ({problem}).",
            flag="RUN",
            remedy="Restore the file, or remove it and resume the run, which writes it anew.",
        ) from problem


def merge(path: Path, old: Sequence[Prompt], new: Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a run that goes on, perhaps with other limits: the old ones, then what is added.

    Raises:
        UsageError: if an example has become another prompt, because its samples would not belong to it.
    """
    known = {prompt.example_id: prompt for prompt in old}
    for prompt in new:
        before = known.setdefault(prompt.example_id, prompt)
        if before != prompt:
            raise UsageError(
                f"example {prompt.example_id!r} has another prompt or reference than in {path}.",
                flag="--out",
                remedy="The data has changed: name another directory.",
            )
    return list(known.values())
