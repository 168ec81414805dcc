"""``run.json`` and ``summary.json`` as they are read: schema, conditions, and how two identities differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard, cast

from spsbench.base import files
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.records import SCHEMA_VERSION
from spsbench.store.journal import Row
from spsbench.store.run_types import run_fault
from spsbench.store.shape import fault_of
from spsbench.store.summary_types import Conditions, Summary

PROCESS = "process-"
"""Before the number of each run of ``--processes``, in the name of its directory."""

RUN_FILE = "run.json"


_SHOWN = 12
_ABSENT = object()


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
    """Return one of a run's conditions; empty where it kept none."""
    known = info.get("conditions") or []
    return cast("Conditions", dict(known[index])) if 0 <= index < len(known) else {}


SUMMARY_FILE = "summary.json"


def write_summary(directory: Path, summary: Summary) -> None:
    """Write ``summary.json``, with the schema version that the summary carries; NaN becomes null."""
    files.write_json(directory / SUMMARY_FILE, summary)


def read_summary(directory: Path) -> Summary:
    """Read ``summary.json``, in which keys may be missing, see ``fault_of``."""
    path = directory / SUMMARY_FILE
    content = checked_schema(path)
    if fault := fault_of(content, Summary):
        remedy = f"`spsbench report {directory}` writes it again."
        raise UsageError(f"{path} is damaged ({fault}).", flag="RUN", remedy=remedy)
    return cast("Summary", content)
