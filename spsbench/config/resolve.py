"""The settings of a run from all their sources: defaults < protocol < config file < flags < ``--set``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from spsbench.config.files import load_pair, load_protocol, read_yaml, validate
from spsbench.config.models import ModelRef, PairConfig, RunConfig, chosen_kernels
from spsbench.errors import UsageError

DEFAULT_PAIR = "mini"
DEFAULT_PROTOCOL = "quick"

_FIELD_OF_FLAG = {"k": "ks", "arms": "methods", "sampling": "samplings", "engine": "engines"} | {
    "drafter": "drafters",
    "rule": "rules",
    "policy": "policies",
}
_FLAG_OF_FIELD = {field: flag for flag, field in _FIELD_OF_FLAG.items()} | {
    "score": "no-score",
    "task": "TASK",
}
_MODEL_FLAGS = ("target", "draft", "revision", "draft_revision")


def resolve(
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    overrides: Iterable[str] = (),
    protocol: str | None = None,
    pair: str | None = None,
) -> RunConfig:
    """Merge all sources into one validated configuration; nothing is loaded or downloaded.

    Args:
        flags: fields of ``RunConfig`` or the command line's names for them (``k``, ``arms``,
            ``sampling``, ``engine``), and ``target``, ``draft``, ``revision``, ``draft_revision``.
            Values may be text as typed; None means that the flag was not given.
        config_file: YAML with fields of ``RunConfig``, e.g. the ``config.yaml`` of an earlier run.
        overrides: ``a.b=c`` with a YAML value, as given to ``--set``.
        protocol: name or YAML file; the default is what the file says, else ``quick``.
        pair: name or YAML file; the default is what the file says, else ``mini``.

    Raises:
        UsageError: naming the flag or key, the value and the remedy.
    """
    given = {_FIELD_OF_FLAG.get(key, key): value for key, value in flags.items() if value is not None}
    models = {key: str(given.pop(key)) for key in _MODEL_FLAGS if key in given}
    given |= {key: name for key, name in (("protocol", protocol), ("pair", pair)) if name is not None}
    assignments = [_assignment(text) for text in overrides]
    settings = ({} if config_file is None else read_yaml(config_file, "--config")) | given
    settings |= {path[0]: value for path, value in assignments if len(path) == 1}
    settings["pair"] = _pair(settings.get("pair", DEFAULT_PAIR), models, named=pair is not None)
    for path, value in assignments:
        if len(path) > 1:
            _assign(settings, path, value)
    settings = _beneath(settings)
    origin = _Origin({path[0] for path, _ in assignments}, set(given), config_file)
    return validate(RunConfig, settings, origin.label)


def _beneath(settings: dict[str, Any]) -> dict[str, Any]:
    """Put the protocol's settings and the defaults that depend on others beneath ``settings``."""
    pair, protocol = settings["pair"], settings.get("protocol", DEFAULT_PROTOCOL)
    synthetic = isinstance(pair, dict) and pair.get("synthetic") is True
    defaults: dict[str, Any] = {"protocol": protocol, "data": "mini" if synthetic else "official"}
    if "kernels" not in settings:
        defaults["kernels"] = chosen_kernels()
    if isinstance(protocol, str):
        defaults |= load_protocol(protocol).settings(str(settings.get("task", "xsum")))
    return defaults | settings


class _Origin:
    """Remembers where each setting came from, so that an error names what the user wrote."""

    def __init__(self, overridden: set[str], flagged: set[str], config_file: Path | None) -> None:
        self._overridden = overridden
        self._flagged = flagged
        self._config_file = config_file

    def label(self, path: str) -> str:
        """How the user calls the setting at a dotted path."""
        field = path.split(".")[0]
        if field in self._overridden:
            return f"--set {path}"
        if field in self._flagged:
            name = _FLAG_OF_FIELD.get(field, field.replace("_", "-"))
            return name if name.isupper() else f"--{name}"
        return f"{self._config_file}: {path}" if self._config_file else path


def _assignment(text: str) -> tuple[list[str], Any]:
    """``a.b=c`` as path and value."""
    name, equals, value = text.partition("=")
    path = [_FIELD_OF_FLAG.get(part, part) for part in name.strip().split(".")]
    if not equals or not all(path):
        raise UsageError(
            f"{text!r} is no assignment.", flag="--set", remedy="Write key=value, e.g. limit=20."
        )
    try:
        return path, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(
            f"the value in {text!r} is not YAML.",
            flag="--set",
            remedy="Put it in quotes, e.g. data='\"a: b\"'.",
        ) from None


def _assign(settings: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a value inside nested mappings, in place."""
    inner: Any = settings
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(
                f"{part!r} has no settings inside.",
                flag=f"--set {'.'.join(path)}",
                remedy="Leave out the dot.",
            )
    inner[path[-1]] = value


def _pair(chosen: Any, models: Mapping[str, str], *, named: bool) -> Any:
    """The pair as a mapping, from a name, a mapping or two models; not validated yet."""
    ids = [key for key in ("target", "draft") if key in models]
    if ids and named:
        raise UsageError(
            f"{models[ids[0]]!r} is given together with --pair.",
            flag=f"--{ids[0]}",
            remedy="Give either --pair, or --target and --draft.",
        )
    if len(ids) == 1:
        missing = "draft" if ids == ["target"] else "target"
        raise UsageError(
            f"the {missing} of {models[ids[0]]!r} is not named.",
            flag=f"--{missing}",
            remedy="Give both models.",
        )
    pair: Any = chosen
    if ids:
        pair = PairConfig(
            name="custom",
            target=ModelRef(id=_filled(models, "target")),
            draft=ModelRef(id=_filled(models, "draft")),
        )
    elif isinstance(chosen, str):
        pair = load_pair(chosen)
    if isinstance(pair, PairConfig):
        pair = pair.model_dump(mode="json")
    for flag, role in (("revision", "target"), ("draft_revision", "draft")):
        if flag in models and isinstance(pair, dict) and isinstance(pair.get(role), dict):
            pair[role] = pair[role] | {"revision": _filled(models, flag)}
    return pair


def _filled(models: Mapping[str, str], key: str) -> str:
    value = models[key].strip()
    if not value:
        raise UsageError("the value is empty.", flag=f"--{key.replace('_', '-')}", remedy="Name a model.")
    return value
