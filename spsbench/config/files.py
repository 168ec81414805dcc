"""Settings in YAML: what people wrote and what ships, read and checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from spsbench.config.models import Limits, ModelRef, PairConfig, PaperConfig, ProtocolConfig, RunConfig
from spsbench.errors import UsageError, as_typed
from spsbench.files import ordinary
from spsbench.paths import DataKind, data_dir


def read_yaml(path: Path, flag: str) -> dict[str, Any]:
    """The mapping in a YAML file."""
    of_run = path.with_name("run.json").exists()  # perhaps somebody else's; else it may be a pipe
    try:
        with open(path, encoding="utf-8", opener=ordinary if of_run else None) as file:
            content = yaml.safe_load(file)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise UsageError(
            f"{path} cannot be read ({reason}).", flag=flag, remedy="Give the path of a YAML file."
        ) from problem
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise UsageError(
            f"{path} is not YAML in UTF-8 ({reason}).", flag=flag, remedy="Correct the file."
        ) from problem
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings.", flag=flag, remedy="Write one `key: value` per line.")
    return {str(key): value for key, value in content.items()}


def unknown_name(kind: str, name: str, known: Iterable[str], flag: str) -> UsageError:
    """The error for a name that is not among the known ones; suggests the closest."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    guess = f"Did you mean {lowered[close[0]]}? " if close else ""
    return UsageError(
        f"the {kind} {name} is unknown.", flag=flag, remedy=f"{guess}Choose from {', '.join(names)}."
    )


_Model = TypeVar("_Model", bound=BaseModel)

_INNER: dict[str, type[BaseModel]] = {"pair": PairConfig, "target": ModelRef, "draft": ModelRef}

_MEANING: dict[str, str] = {
    name: field.description or ""
    for model in (ModelRef, PairConfig, PaperConfig, ProtocolConfig, RunConfig)
    for name, field in model.model_fields.items()
}


def validate(model: type[_Model], content: Mapping[str, Any], label: Callable[[str], str]) -> _Model:
    """Build ``model`` from ``content``."""
    try:
        return model.model_validate(dict(content))
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
    path = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        owner = model if len(path) == 1 else _INNER.get(path[-2], Limits)
        raise unknown_name("setting", path[-1], owner.model_fields, label(".".join(path)))
    while len(path) > 1 and path[-1] not in _MEANING:  # list indices and branches of unions
        path.pop()
    meaning = _MEANING.get(path[-1])
    if error["type"] == "missing":
        what, remedy = "the value is missing.", f"Give {meaning}." if meaning else None
    elif meaning:
        what, remedy = f"it must be {meaning}, got {as_typed(error['input'])}.", None
    else:
        what, remedy = f"{as_typed(error['input'])} is not valid.", None
    raise UsageError(what, flag=label(".".join(path)), remedy=remedy)


_Kind = Literal["pair", "protocol", "paper"]

_FOLDERS: dict[_Kind, DataKind] = {
    "pair": "configs/pairs",
    "protocol": "configs/protocols",
    "paper": "configs/papers",
}
_FLAGS: dict[_Kind, str] = {"pair": "--pair", "protocol": "--protocol", "paper": "--of"}


def list_pairs() -> list[str]:
    """Names of the shipped pairs, sorted."""
    return sorted(_files("pair"))


def list_protocols() -> list[str]:
    """Names of the shipped protocols, sorted."""
    return sorted(_files("protocol"))


def load_pair(name: str) -> PairConfig:
    """A pair by name, or from a YAML file of the user's."""
    path = _find("pair", name)
    content: dict[str, Any] = {"name": path.stem} | read_yaml(path, "--pair")
    return validate(PairConfig, content, lambda key: f"--pair {name}: {key}")


def load_protocol(name: str) -> ProtocolConfig:
    """A protocol by name, or from a YAML file of the user's."""
    path = _find("protocol", name)
    content: dict[str, Any] = {"name": path.stem} | read_yaml(path, "--protocol")
    return validate(ProtocolConfig, content, lambda key: f"--protocol {name}: {key}")


def list_papers() -> list[str]:
    """Names of the papers whose tables are described by a YAML file, sorted."""
    return sorted(_files("paper"))


def load_paper(name: str) -> PaperConfig:
    """What a paper's tables are measured with, by name or from a YAML file of the user's."""
    path = _find("paper", name)
    content: dict[str, Any] = {"name": path.stem} | read_yaml(path, "--of")
    return validate(PaperConfig, content, lambda key: f"--of {name}: {key}")


def is_file_name(name: str) -> bool:
    """Whether a name of a pair, protocol or paper means a YAML file of the user's."""
    return name.endswith((".yaml", ".yml"))


def _files(kind: _Kind) -> dict[str, Path]:
    return {path.stem: path for path in data_dir(_FOLDERS[kind]).glob("*.yaml")}


def _find(kind: _Kind, name: str) -> Path:
    if is_file_name(name):
        return Path(name)
    files = _files(kind)
    if name not in files:
        raise unknown_name(kind, name, files, _FLAGS[kind])
    return files[name]
