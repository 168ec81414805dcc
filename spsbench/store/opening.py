"""Finding run directories: a fresh one, the latest one.

A directory counts as a run once its ``run.json`` exists, which is written last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard, cast

import yaml

from spsbench.base import files
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.files import slug, unwritable
from spsbench.base.records import SCHEMA_VERSION, Prompt
from spsbench.store import codec
from spsbench.store.journal import Row
from spsbench.store.run_types import run_fault
from spsbench.store.shape import fault_of
from spsbench.store.summary_types import Conditions, Summary

PROCESS = "process-"
"""Before the number of each run of ``--processes``, in the name of its directory."""

RUN_FILE = "run.json"


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


_SHOWN = 12
_ABSENT = object()


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


def differences(theirs: Any, ours: Any) -> list[str]:
    """Return one line ``key: theirs -> ours`` per difference, the first dozen."""
    lines = [f"  {key}: {_show(old)} -> {_show(new)}" for key, old, new in _differences("", theirs, ours)]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _is_of_rows(value: Any) -> TypeGuard[list[Row]]:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _differences(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(inner, theirs.get(key, _ABSENT), ours.get(key, _ABSENT))
    elif _is_of_rows(theirs) and _is_of_rows(ours):
        for place, (old, new) in enumerate(zip_longest(theirs, ours, fillvalue=_ABSENT)):
            yield from _differences(f"{path}[{place}]", old, new)
    elif theirs != ours:
        yield path or "identity", theirs, ours


def _show(value: Any) -> str:
    text = "(absent)" if value is _ABSENT else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


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


def read_run(directory: Path, flag: str = "RUN") -> Row:
    """Return what ``run.json`` says; UsageError if there is none, it is damaged or its schema is another."""
    path = directory / RUN_FILE
    if not path.exists():
        parts = sorted(each.parent for each in directory.glob(f"{PROCESS}*/{RUN_FILE}"))
        remedy = f"Name a directory with a {RUN_FILE} in it" + (f", such as {parts[0]}." if parts else ".")
        raise UsageError(f"{directory} is not a run directory.", flag=flag, remedy=remedy)
    content = checked_schema(path)
    if fault := run_fault(content):
        why = f"{path} is damaged ({fault})."
        raise UsageError(why, flag=flag, remedy="Restore the file or start a new run.")
    return content


def checked_schema(path: Path) -> Row:
    """Return the object in a JSON file with a schema version; UsageError if that is not ours."""
    content = files.read_json(path, "RUN")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        why = (
            f"{path} was written by an unreleased version of spsbench or by a later one: it has schema "
            f"version {as_typed(version)}, this spsbench reads {SCHEMA_VERSION}."
        )
        raise UsageError(why, flag="RUN", remedy="Use the version that wrote it.")
    return content


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


def joined(infos: Sequence[Mapping[str, Any]], used: Sequence[Iterable[int]]) -> list[Conditions]:
    """Return every condition that something was measured under, each once."""
    conditions: list[Conditions] = []
    for info, indices in zip(infos, used, strict=True):
        for index in sorted(set(indices)):
            own = of_any_board(condition(info, index))
            if own not in conditions:
                conditions.append(own)
    return conditions


def of_any_board(conditions: Conditions) -> Conditions:
    """Return a condition without its GPU's number: two boards of one kind count as equal."""
    return {**conditions, "gpu_uuid": None} if "gpu_uuid" in conditions else conditions


def condition(info: Mapping[str, Any], index: int) -> Conditions:
    """Return one of a run's conditions; empty where a run of an earlier version kept none."""
    known = info.get("conditions") or []
    return cast("Conditions", dict(known[index])) if 0 <= index < len(known) else {}


SUMMARY_FILE = "summary.json"


def write_summary(directory: Path, summary: Summary) -> None:
    """Write ``summary.json``, with the schema version that the summary carries; NaN becomes null."""
    files.write_json(directory / SUMMARY_FILE, summary)


def read_summary(directory: Path) -> Summary:
    """Read ``summary.json``; one that an earlier version wrote may lack keys that were added since."""
    path = directory / SUMMARY_FILE
    content = checked_schema(path)
    if fault := fault_of(content, Summary):
        remedy = f"`spsbench report {directory}` writes it again."
        raise UsageError(f"{path} is damaged ({fault}).", flag="RUN", remedy=remedy)
    return cast("Summary", content)
