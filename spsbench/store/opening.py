"""How a directory becomes a run, and how a run is continued.

A directory counts as a run once its ``run.json`` exists, which is written last.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from spsbench.errors import UsageError
from spsbench.records import SCHEMA_VERSION, Prompt
from spsbench.store import files, identities, lock, shape
from spsbench.store import prompts as prompt_file
from spsbench.store.catalogue import RUN_FILE
from spsbench.store.journal import Row

CONFIG_FILE = "config.yaml"
PROMPTS_FILE = "prompts.jsonl"

# What a kill can leave of a run that had not quite begun.
_BEFORE_RUN_FILE = {
    lock.LOCK_NAME,
    CONFIG_FILE,
    PROMPTS_FILE,
    *(files.temporary(Path(name)).name for name in (CONFIG_FILE, PROMPTS_FILE, RUN_FILE)),
}


def take(directory: Path) -> int:
    """Make the directory if need be and lock it, unless it belongs to something else."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        entries = {path.name for path in directory.iterdir()}
    except OSError as problem:
        raise lock.unwritable(directory, problem, "--out") from problem
    if (directory / RUN_FILE).exists():
        read_run(directory)
    elif foreign := sorted(entries - _BEFORE_RUN_FILE if lock.LOCK_NAME in entries else entries):
        raise UsageError(
            f"{directory} is not empty and holds no run ({', '.join(foreign[:3])}).",
            flag="--out",
            remedy="Name a directory that is empty or does not exist.",
        )
    return lock.acquire(directory, "--out")


def read_run(directory: Path) -> Row:
    """What ``run.json`` says; UsageError if there is none, it is damaged or its schema is another."""
    path = directory / RUN_FILE
    if not path.exists():
        raise UsageError(
            f"{directory} holds no run.", flag="RUN", remedy=f"Name a directory with a {RUN_FILE} in it."
        )
    content = checked_schema(path)
    shape.require_shape(path, content)
    return content


def checked_schema(path: Path) -> Row:
    """The object in a JSON file that carries a schema version; UsageError if it is not ours."""
    content = files.read_json(path, "RUN")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version!r}, this spsbench reads {SCHEMA_VERSION}.",
            flag="RUN",
            remedy="Use the version of spsbench that wrote it.",
        )
    return content


def begin(directory: Path, identity: Row, config: Row, info: Row, prompts: Sequence[Prompt]) -> Row:
    """Write the files a run begins with, into a directory that was taken; answers ``run.json``."""
    run: Row = {
        "schema_version": SCHEMA_VERSION,
        "created_utc": _now(),
        "identity": files.plain(identity),
        **files.plain(info),
        "resumed": [],
    }
    _write(directory, run, config, prompts)
    return run


def resume(directory: Path, identity: Row, config: Row, info: Row, prompts: Sequence[Prompt]) -> Row:
    """Bring the files of a run up to date with what is asked now; answers ``run.json``.

    Raises:
        UsageError: if the run's identity or one of its prompts is another.
    """
    run = read_run(directory)
    identities.check(directory, run.get("identity"), files.plain(identity))
    path = directory / PROMPTS_FILE
    merged = prompt_file.merge(path, prompt_file.read(path) if path.exists() else [], prompts)
    run = run | {"resumed": [*run.get("resumed", []), {"time_utc": _now(), **files.plain(info)}]}
    _write(directory, run, config, merged)
    return run


def _write(directory: Path, run: Row, config: Row, prompts: Sequence[Prompt]) -> None:
    text = yaml.safe_dump(files.plain(config), sort_keys=False, allow_unicode=True)
    files.write_text(directory / CONFIG_FILE, text)
    prompt_file.write(directory / PROMPTS_FILE, prompts)
    files.write_json(directory / RUN_FILE, run)


def _now() -> str:
    return datetime.now(UTC).isoformat()
