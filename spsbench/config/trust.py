"""Which settings are code, and whether this user has typed it.

The settings of a folder may import, start or ask only what this user has typed before: a ``config.yaml`` is
code where it names a Python file, a task's YAML (whose metrics may be Python files), a command, a Python
interpreter or a server, which is sent the user's key. What is typed is remembered as a hash of it and of the
folder in which it was typed, in ``spsbench/typed`` of ``XDG_STATE_HOME`` (``~/.local/state``), outside of
every run. So one's own runs go on as they are, also moved or merged, and a stranger's need ``--trust``.

The prompts, answers and tests of a folder are code too, and run in a sandbox always
(``spsbench.parts.judge``); leaving it is a setting of the table below, which is typed each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.base.axes import OPENAI, WORKER
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.files import ordinary
from spsbench.base.plugins import names_file
from spsbench.base.records import Spec
from spsbench.config.models import UNSAFE, RunConfig
from spsbench.config.resolution import field_of

TASK_ENDINGS = (".yaml", ".yml")
"""Of files that define a task, whose metrics may be Python files."""


class NamedCode(NamedTuple):
    """What a setting would run: its field in ``RunConfig``, and the name as it was written."""

    field: str
    name: str

    @property
    def shown(self) -> str:
        """What people read."""
        return f"{RunConfig.model_fields[self.field].title or self.field}: {as_typed(self.name)}"


def _tasks(task: str) -> Iterator[str]:
    if names_file(task) or task.endswith(TASK_ENDINGS):
        yield task


def _kinds_from_files(names: Sequence[str]) -> Iterator[str]:
    """Also with an option that names a file, as the members of a union are named."""
    for text in names:
        spec = Spec.parse(text)
        if any(names_file(part) for part in (spec.name, *_parts(spec))):
            yield text


def _parts(spec: Spec) -> list[str]:
    return [part for _, value in spec.options for part in str(value).split("+")]


def _started_engines(names: Sequence[str]) -> Iterator[str]:
    """Commands, servers, and named engines under an interpreter of the user's."""
    for text in names:
        if text.strip().startswith((WORKER, OPENAI)) or "python" in dict(Spec.parse(text).options):
            yield text


def _unsafe(score: object) -> Iterator[str]:
    if score == UNSAFE:
        yield UNSAFE


CODE: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "task": _tasks,
    "drafters": _kinds_from_files,
    "rules": _kinds_from_files,
    "policies": _kinds_from_files,
    "engines": _started_engines,
    "score": _unsafe,
}
"""Every field of ``RunConfig`` that may name code, and what of its value, validated, would run. The other
fields are data: numbers, names of this package's own, and files and folders that are read."""

_EACH_TIME = ("score",)
"""Not remembered: with it everything of a folder is code, also what no setting names."""


def untyped_code(names: Iterable[str]) -> list[str]:
    """Fields that may name code and were not typed, of the options and keys of ``--set`` that were."""
    typed = {field_of(name) for name in names}
    if "unsafe_exec" in typed:
        typed.add("score")
    return [field for field in CODE if field not in typed]


def code_in(settings: Mapping[str, Any]) -> list[NamedCode]:
    """Return what settings, as they were validated, would run."""
    return [NamedCode(field, name) for field, value in settings.items() for name in CODE[field](value)]


def admit(
    config: RunConfig, folder: Path | None = None, typed: Iterable[str] = (), *, trust: bool = False
) -> None:
    """Remember the code that a user's own settings name; refuse that of a folder's which was not typed."""
    if folder is None:
        remember(config)
    else:
        require_trusted(config, untyped_code(typed), folder, trust=trust)


def require_trusted(config: RunConfig, fields: Sequence[str], folder: Path, *, trust: bool) -> None:
    """Refuse settings of a folder that name code which this user never typed; with ``trust`` remember it."""
    require_typed(code_in({field: getattr(config, field) for field in fields}), folder, trust=trust)


def require_typed(code: Sequence[NamedCode], folder: Path, *, trust: bool) -> None:
    """As ``require_trusted``, of code that was found before."""
    if trust:
        _note(code)
        return
    typed = _typed()
    if unknown := [each for each in code if each.field in _EACH_TIME or _hash(each.name) not in typed]:
        names = ", ".join(dict.fromkeys(each.shown for each in unknown))
        own = " A run of your own needs --unsafe-exec again." if "score" in {e.field for e in unknown} else ""
        raise UsageError(
            f"the settings of {folder} would run {names}, which you have not typed on this machine.",
            flag="--trust",
            remedy=f"Look at it first, then add --trust if the folder is yours or you trust its author.{own}",
        )


def remember(config: RunConfig) -> None:
    """Note the code that settings name as typed by this user, where that can be written."""
    _note(code_in({field: getattr(config, field) for field in CODE}))


def _note(code: Iterable[NamedCode]) -> None:
    typed = _typed()
    names = [each.name for each in code if each.field not in _EACH_TIME]
    if new := [_hash(name) for name in names if _hash(name) not in typed]:
        with suppress(OSError):
            _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(_file(), "a", opener=ordinary) as file:
                file.write("".join(f"{each}\n" for each in new))


def _hash(name: str) -> str:
    """Hash a name and the folder that it is relative to."""
    here = "" if Path(name).is_absolute() or name.startswith(OPENAI) else Path.cwd()
    return sha256(f"{here}\0{name}".encode(errors="surrogateescape")).hexdigest()


def _file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "spsbench/typed"


def _typed() -> Container[str]:
    try:
        with open(_file(), opener=ordinary) as file:
            return set(file.read().split())
    except OSError:
        return ()
