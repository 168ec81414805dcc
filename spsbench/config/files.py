"""Settings in YAML, read and checked; and what models and files of one's own are called."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from spsbench.base.errors import UsageError, as_typed
from spsbench.base.files import DEEPEST, open_file, ordinary, shortened
from spsbench.base.paths import EMBEDDED, DataKind, data_dir
from spsbench.base.plugins import unknown
from spsbench.config.models import (
    BeamSettings,
    Limits,
    ModelRef,
    PairConfig,
    PaperConfig,
    ProtocolConfig,
    RunConfig,
)
from spsbench.config.processing import ProcessingSettings

_MOST_YAML, _MOST_ALIASES, _MOST_EVENTS = 1 << 20, 16, 50_000
"""Bytes, aliases and values of a file of settings: libyaml takes seconds for a megabyte of short values."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: every command reads some files of settings."""


def read_yaml(path: Path, flag: str) -> dict[str, Any]:
    """Read a YAML file as a mapping; refuse unreadable files and nested aliases."""
    of_run = path.with_name("run.json").exists()  # it may be a pipe, or belong to another user
    try:
        with open(path, "rb", opener=ordinary) if of_run else open_file(path) as file:
            read = file.read(_MOST_YAML + 1)
        if len(read) > _MOST_YAML:
            raise ValueError(f"it has more than {_MOST_YAML >> 20} MiB")
        text = read.decode("utf-8")
        _require_plausible(text)
        content = yaml.load(text, _Loader)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        remedy = "Give the path of a YAML file."
        raise UsageError(f"{path} cannot be read ({reason}).", flag=flag, remedy=remedy) from problem
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:200]
        remedy = "Correct the file."
        raise UsageError(f"{path} is not YAML in UTF-8 ({reason}).", flag=flag, remedy=remedy) from problem
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings.", flag=flag, remedy="Write one `key: value` per line.")
    return {str(key): value for key, value in content.items()}


def _require_plausible(text: str) -> None:
    """Raise ValueError for YAML that takes much more memory, time or stack than its size says.

    The loader recurses in C, where a level too many ends the process; the parser does not.
    """
    aliases = level = 0
    for number, event in enumerate(yaml.parse(text, _Loader)):
        aliases += isinstance(event, yaml.AliasEvent)
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if aliases > _MOST_ALIASES:  # each may double what a reader goes through
            raise ValueError(f"it has more than {_MOST_ALIASES} aliases")
        if level > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        if number > _MOST_EVENTS:
            raise ValueError(f"it has more than {_MOST_EVENTS:,} values")


_Model = TypeVar("_Model", bound=BaseModel)

_INNER: dict[str, type[BaseModel]] = {
    "pair": PairConfig,
    "target": ModelRef,
    "draft": ModelRef,
    "process": ProcessingSettings,
}

_MEANING: dict[str, str] = {
    name: field.description or ""
    for model in (
        ModelRef,
        PairConfig,
        PaperConfig,
        ProtocolConfig,
        ProcessingSettings,
        BeamSettings,
        RunConfig,
    )
    for name, field in model.model_fields.items()
}


def validate(model: type[_Model], content: Mapping[str, Any], label: Callable[[str], str]) -> _Model:
    """Validate content by a pydantic model; an error names the field by ``label``."""
    try:
        return model.model_validate(dict(content))
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
    path = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        owner = model if len(path) == 1 else _INNER.get(path[-2], Limits)
        raise unknown(path[-1], sorted(owner.model_fields), label(".".join(path)), sort="setting")
    while len(path) > 1 and path[-1] not in _MEANING:  # list indices and branches of unions
        path.pop()
    meaning, flag = _MEANING.get(path[-1]), label(".".join(path))
    if error["type"] == "missing":
        fault = "the value is missing."
        remedy = f"Give {meaning}." if meaning else None
    elif meaning:
        # What is typed as an option is always a text.
        shown = as_typed if flag.startswith("--") else _as_written
        fault = f"it must be {meaning}, got {shown(error['input'])}."
        remedy = None
    else:
        fault = f"{as_typed(error['input'])} is not valid."
        remedy = None
    raise UsageError(fault, flag=flag, remedy=remedy)


_FOLDERS: dict[str, DataKind] = {
    "pair": "configs/pairs",
    "protocol": "configs/protocols",
    "paper": "configs/papers",
}


def list_pairs() -> list[str]:
    return sorted(_files("pair"))


def list_protocols() -> list[str]:
    return sorted(_files("protocol"))


def load_pair(name: str) -> PairConfig:
    """Load a pair by name, or from a YAML file of the user's."""
    return _load(PairConfig, "pair", "--pair", name)


def load_protocol(name: str) -> ProtocolConfig:
    """Load a protocol by name, or from a YAML file of the user's."""
    return _load(ProtocolConfig, "protocol", "--protocol", name)


def load_paper(name: str) -> PaperConfig:
    """Load what a paper's tables are measured with, by name or from a YAML file of the user's."""
    return _load(PaperConfig, "paper", "--of", name)


def is_file_name(name: str) -> bool:
    """Return whether a name of a pair, protocol or paper means a YAML file of the user's."""
    return name.endswith((".yaml", ".yml"))


def _files(kind: str) -> dict[str, Path]:
    return {path.stem: path for path in data_dir(_FOLDERS[kind]).glob("*.yaml")}


def _load(model: type[_Model], kind: str, flag: str, name: str) -> _Model:
    files = {name: Path(name)} if is_file_name(name) else _files(kind)
    if name not in files:
        raise unknown(name, sorted(files), flag, sort=kind)
    content = {"name": files[name].stem} | read_yaml(files[name], flag)
    return validate(model, content, lambda key: f"{flag} {name}: {key}")


PACKAGE = "package:"
LONGEST = 60
"""Characters of a model's name; of a longer one the middle is left out."""

_COMMIT = re.compile(r"[0-9a-f]{12,64}")
_SHORT_COMMIT = 7


def pair_name(target: ModelRef, draft: ModelRef | None) -> str:
    """Return the names of both, e.g. ``my-llama-8b with my-llama-1b``."""
    if draft is None:
        return model_name(target)
    if draft == target:
        return f"{model_name(target)} with itself"
    return " with ".join(_shortest_distinct_names([_NameParts.of(target), _NameParts.of(draft)]))


def model_name(model: ModelRef) -> str:
    """Return the name of a model alone, see ``pair_name``."""
    return shortened(_NameParts.of(model).name(1), LONGEST)


def with_draft(pair: PairConfig, draft: ModelRef) -> PairConfig:
    """Return the pair with another draft in place of its own, and named after both models."""
    if draft == pair.draft:
        return pair
    return pair.model_copy(update={"draft": draft, "name": pair_name(pair.target, draft)})


def file_name(path: Path) -> str:
    """Return a file's path as it was typed, so that files of one name can be told apart."""
    return "/".join(part for part in path.parts[-2:] if part not in (".", "..", "/", "~"))


@dataclass(frozen=True, slots=True)
class _NameParts:
    """A name as parts, outermost first, of which the last few are shown."""

    parts: tuple[str, ...]
    revision: str

    @classmethod
    def of(cls, model: ModelRef) -> _NameParts:
        revision = "" if model.revision is None else f"@{_commit(model.revision)}"
        local = model.id.startswith((".", "/", "~")) or model.id.count("/") > 1 or Path(model.id).exists()
        if model.id.startswith((EMBEDDED, PACKAGE)) or not local:
            return cls((model.id.removeprefix(EMBEDDED).removeprefix(PACKAGE),), revision)
        parts = Path(os.path.normpath(Path.cwd() / Path(model.id).expanduser())).parts
        if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
            hub_id = parts[-3].removeprefix("models--").replace("--", "/")
            return cls((hub_id,), revision or f"@{_commit(parts[-1])}")
        return cls(parts[1:] or (model.id,), revision)

    def name(self, count: int) -> str:
        """Return the last ``count`` parts with the revision."""
        return " ".join("/".join(self.parts[-count:]).split()) + self.revision


def _commit(revision: str) -> str:
    return revision[:_SHORT_COMMIT] if _COMMIT.fullmatch(revision) else revision


def _shortest_distinct_names(models: Sequence[_NameParts]) -> list[str]:
    longest = max(len(model.parts) for model in models)
    for count in range(1, longest + 1):
        names = [model.name(count) for model in models]
        if len(set(names)) == len(names):
            break
    short = [shortened(name, LONGEST) for name in names]
    return short if len(set(short)) == len(names) else names


def _as_written(value: object) -> str:
    """Write a refused value; a number in quotes is called a text, since else nothing seems wrong."""
    with suppress(TypeError, ValueError):
        if isinstance(value, str):
            float(value)
            return f'the text "{as_typed(value)}"'
    return as_typed(value)
