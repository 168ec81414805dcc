"""Finding run directories: a fresh one, the latest one."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.store.files import unwritable

RUN_FILE = "run.json"


def fresh_directory(results: Path, task: str, pair: str) -> Path:
    """Make an empty directory of its own for a run, e.g. ``results/20250131-120005-xsum-mini``.

    Call it when everything has been validated, or empty directories pile up.

    Raises:
        UsageError: if ``results`` cannot be written to.
    """
    parts = (datetime.now().strftime("%Y%m%d-%H%M%S"), Path(task).stem, Path(pair).stem)
    stamp = re.sub(r"[^A-Za-z0-9._+-]+", "-", "-".join(parts))
    number = 1
    while True:
        directory = results / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as problem:
            raise unwritable(results, problem, "--out") from problem
        else:
            return directory


def latest(results: Path) -> Path:
    """The directory in ``results`` whose run was begun last.

    Raises:
        UsageError: if there is no run.
    """
    begun = {path.parent: _begun(path) for path in results.glob(f"*/{RUN_FILE}")}
    runs = [directory for directory, when in begun.items() if when]
    if not runs:
        raise UsageError(
            f"there is no run in {results}.",
            flag="RUN",
            remedy="Start one with `spsbench run`, or name a directory.",
        )
    return max(runs, key=lambda directory: (begun[directory], directory.name))


def _begun(path: Path) -> str:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    return str(content.get("created_utc", "")) if isinstance(content, dict) else ""
