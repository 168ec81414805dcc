"""Run directories: a fresh one, the latest one, and one that is taken for a run and prepared.

A directory counts as a run once its ``run.json`` exists, which is written last.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import yaml

from spsbench.base import files
from spsbench.base.errors import UsageError
from spsbench.base.files import slug, unwritable
from spsbench.base.records import SCHEMA_VERSION, Prompt
from spsbench.store import codec
from spsbench.store.journal import Row
from spsbench.store.schema import RUN_FILE, differences, read_run


def fresh_directory(results: Path, task: str, pair: str) -> Path:
    """Make a new empty directory for a run, e.g. ``results/20250131-120005-xsum-mini``.

    Call it when everything has been validated, or empty directories pile up.
    """
    names = [slug(Path(task).stem), slug(pair)]
    stamp = "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), *filter(None, names)])
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
    """Return the directory in ``results`` whose run was begun last."""
    begun = {}
    for path in results.glob(f"*/{RUN_FILE}"):
        with suppress(UsageError):  # damaged
            begun[path.parent] = str(files.read_json(path, "RUN").get("created_utc", ""))
    runs = [directory for directory, when in begun.items() if when]
    if not runs:
        remedy = "Start one with `spsbench run`, or name a directory."
        raise UsageError(f"{results} holds no run.", flag="RUN", remedy=remedy)
    return max(runs, key=lambda directory: (begun[directory], directory.name))


def check_identity(directory: Path, identity: Row) -> Row:
    """Refuse to continue a run under another identity; return ``run.json``."""
    run = read_run(directory)
    if lines := differences(run.get("identity"), files.plain(identity)):
        raise UsageError(
            "\n".join([f"{directory} holds another run (its value -> yours):", *lines, ""]),
            flag="--out",
            remedy=f"Name another directory, or use the settings of {directory / CONFIG_FILE}.",
        )
    return run


CONFIG_FILE = "config.yaml"
PROMPTS_FILE = "prompts.jsonl"

# What a kill can leave of a run that had not quite begun.
_BEFORE_RUN_FILE = {files.LOCK_NAME, CONFIG_FILE, PROMPTS_FILE}


def take(directory: Path) -> int:
    """Make the directory if need be and lock it, unless it belongs to something else."""
    _require_writable(directory)
    files.make_folder(directory, "--out")
    return files.acquire_lock(directory, "--out")


def require_usable(directory: Path) -> None:
    """Refuse a directory that ``take`` would refuse; nothing is made."""
    _require_writable(directory)
    if os.path.lexists(directory / files.LOCK_NAME):
        os.close(files.acquire_lock(directory, "--out"))


def _require_writable(directory: Path) -> None:
    """Refuse a directory that cannot be written to, or that belongs to something else."""
    files.require_makeable(directory, "--out")
    try:
        entries = {path.name for path in directory.iterdir()} if directory.exists() else set()
    except OSError as problem:
        raise files.unwritable(directory, problem, "--out") from problem
    if (directory / RUN_FILE).exists():
        read_run(directory)
    elif foreign := sorted(
        {name for name in entries - _BEFORE_RUN_FILE if not files.is_unfinished(name)}
        if files.LOCK_NAME in entries
        else entries
    ):
        why = f"{directory} is not empty and holds no run ({', '.join(foreign[:3])})."
        raise UsageError(why, flag="--out", remedy="Name a directory that is empty or does not exist.")


_AS_ASKED = ("tags", "expected_sequences", "truncated_prompts", "data")
"""What of run.json follows from how much is asked for, or is said again."""


def prepare(
    directory: Path, identity: Row, config: Row, info: Row, prompts: Sequence[Prompt], *, again: bool
) -> Row:
    """Write the files a run begins with into a directory that was taken; return ``run.json``.

    Of a run that goes on they are brought up to date with what is asked now.
    """
    now = datetime.now(UTC).isoformat()
    info = files.plain(info)
    run: Row = {"schema_version": SCHEMA_VERSION}
    if again:
        before = check_identity(directory, identity)
        run = before | run | {"resumed": [*before.get("resumed", []), {"time_utc": now, **info}]}
        run |= {key: info[key] for key in _AS_ASKED if key in info}
        path = directory / PROMPTS_FILE
        prompts = codec.merge_prompts(path, codec.read_prompts(path) if path.exists() else [], prompts)
    else:
        run |= {"created_utc": now, "identity": files.plain(identity), **info, "resumed": []}
    text = yaml.safe_dump(files.plain(config), sort_keys=False, allow_unicode=True)
    files.write_text(directory / CONFIG_FILE, text)
    codec.write_prompts(directory / PROMPTS_FILE, prompts)
    files.write_json(directory / RUN_FILE, run)
    return run
