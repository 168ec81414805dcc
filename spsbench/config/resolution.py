"""The settings of a run from all their sources: defaults < protocol < config file < flags < ``--set``.

A protocol that is typed is a flag: its limits are above those of the file.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from spsbench.base.axes import BEAM, CHAIN, FIXED, MODEL, MODIFIED_REJECTION, TREE_RULE
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.records import Spec, number, seconds_of
from spsbench.config.files import load_pair, load_protocol, pair_name, read_yaml, validate
from spsbench.config.models import (
    BETWEEN_TREES,
    UNSAFE,
    BeamSettings,
    ModelRef,
    PairConfig,
    RunConfig,
    chosen_backend,
)
from spsbench.config.processing import parse_processing
from spsbench.config.together import refuse_together

DEFAULT_PAIR = "mini"
DEFAULT_PROTOCOL = "quick"

_FLAG_OF_FIELD = {name: field.title or name for name, field in RunConfig.model_fields.items()}
_FIELD_OF_FLAG = {flag: name for name, flag in _FLAG_OF_FIELD.items()}
_ROW_OF_FIELD = RunConfig.rows()


def field_of(flag: str) -> str:
    """The field of ``RunConfig`` that an option sets, by its name in Python."""
    return _FIELD_OF_FLAG.get(flag, flag)


def typed_settings(options: Mapping[str, object]) -> dict[str, Any]:
    """The settings among a command's options: numbers as such, times in seconds, ``--no-x`` as x, any other
    text as it is.

    A switch that is not given must not overrule what a file says.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value is False:
            continue
        if (field := RunConfig.model_fields.get(own := field_of(name))) is not None:
            if own.endswith("_s"):
                found[name] = typed_seconds(str(value), f"--{name}")
            else:
                found[name] = number(str(value)) if _is_numeric(field.annotation) else value
        elif name in (*_MODELS, "unsafe_exec"):
            found[name] = value
        elif (denied := name.removeprefix("no_")) in RunConfig.model_fields:
            found[denied] = False
    return found


def typed_seconds(text: str, flag: str) -> float:
    """What a time is given as: ``300``, ``90s``, ``5min``, ``1.5h``; a number alone is in seconds."""
    value = seconds_of(text)
    if math.isnan(value):
        remedy = "Give 300, 90s, 5min or 2h."
        raise UsageError(f"it must be a time, got {text}.", flag=flag, remedy=remedy)
    return value


def _is_numeric(annotation: Any) -> bool:
    if annotation in (int, float):
        return True
    return get_origin(annotation) is not tuple and any(map(_is_numeric, get_args(annotation)))


ADAPTIVE, ADAPTIVE_POLICY = "adaptive", "stop-below"
"""Among the Ks: a lookahead that a policy decides, and which policy unless one is named."""

_WITH_DRAFT = frozenset({"model", "union"})
_MODELS = ("target", "draft")


def resolve(
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    overrides: Iterable[str] = (),
    *,
    target_alone: bool = False,
    of_run: bool = False,
) -> RunConfig:
    """Merge all sources into one validated configuration; nothing is loaded or downloaded.

    With ``target_alone`` a target may stand without a draft, whatever the settings do with it. The file may
    be the one ``of_run``, which has begun.
    """
    given = {field_of(key): value for key, value in flags.items() if value is not None}
    models = {key: str(given.pop(key)) for key in _MODELS if key in given}
    assignments = [_path_and_value(text) for text in overrides]
    flag = "--resume" if of_run else "--config"
    file = {} if config_file is None else read_yaml(config_file, flag)
    typed = {path[0]: value for path, value in assignments if len(path) == 1}
    settings = _merged({f"{config_file}: process": file, "--process": given, "--set process": typed})
    names = [str(drafter).partition(":")[0] for drafter in _listed(settings.get("drafters"))]
    methods = _listed(settings.get("methods"))
    no_draft = methods == ["ars"] or (bool(names) and "draft" not in methods and not {*names} & _WITH_DRAFT)
    alone = target_alone or no_draft
    if "target" in models and "draft" not in models and alone:
        models["draft"] = models["target"]
    chosen = settings.get("pair", DEFAULT_PAIR)
    settings["pair"] = _pair(chosen, models, named="pair" in given, alone=alone)
    for path, value in assignments:
        if len(path) > 1:
            _set_inside(settings, path, value)
    overridden = {path[0] for path, _ in assignments}
    named = {*given, *overridden}
    if "protocol" in named and file:
        settings = _under_protocol(settings, file, named)
    defaults = _defaults(settings)
    settings = defaults | _adaptive(settings, defaults["ks"], typed=named)

    def label(path: str) -> str:
        """What the user wrote the setting at a dotted path as."""
        field, _, inner = path.partition(".")
        if field in overridden:
            return f"--set {path}"
        if field in given:
            row = _ROW_OF_FIELD.get(field)
            flag = f"--{field.replace('_', '-')}" if row is None else row.flag
            return f"{flag} {inner}" if field == "process" and inner else flag
        return f"{config_file}: {path}" if config_file else path

    config = validate(RunConfig, settings, label)
    for spec in map(Spec.parse, config.samplings or ()):
        if spec.name == BEAM:
            validate(BeamSettings, dict(spec.options), lambda path: f"{label('samplings')} {BEAM}:{path}")
    asked = {_FLAG_OF_FIELD[name]: value for name, value in config} | {"pair": None}
    asked |= {
        "batch": max(config.batches) if max(config.batches) > 1 else None,
        "process": str(config.process) or None,
        "--until": config.until_ci,
        BEAM: config.beam is not None,
    }
    refuse_together("settings", asked)
    return config


def _merged(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge settings, the later over the earlier; tags one by one, those of processing too.

    To run programs without a sandbox (``unsafe_exec``) is a way to score, where outputs are scored. The keys
    say where ``process`` is written, for errors.
    """
    settings: dict[str, Any] = {}
    process: dict[str, Any] = {}
    for flag, source in sources.items():
        process_settings = source.get("process")
        if isinstance(process_settings, (str, list, tuple)):
            texts = [process_settings] if isinstance(process_settings, str) else process_settings
            process_settings = parse_processing([str(text) for text in texts], flag)
        tags = settings.get("tags")
        settings |= {name: value for name, value in source.items() if name != "process"}
        if isinstance(tags, Mapping) and isinstance(source.get("tags"), Mapping):
            settings["tags"] = {**tags, **source["tags"]}
        if isinstance(process_settings, Mapping):
            process |= process_settings
        elif process_settings is not None:  # the check of the settings says what it must be
            settings["process"] = process_settings
    if settings.pop("unsafe_exec", False) and settings.get("score", True) is True:
        settings["score"] = UNSAFE
    return {"process": process} | settings


def _under_protocol(
    settings: Mapping[str, Any], file: Mapping[str, Any], typed: Container[str]
) -> dict[str, Any]:
    """The settings below a protocol that was typed; what else was typed stays above it.

    They are without the limits of the file that the protocol sets too, and without those that the file has
    from the protocol it was written under.
    """
    now, before = (_protocol_limits(each, settings) for each in (settings, file))
    same = {name for name in before if name in file and as_typed(file[name]) == as_typed(before[name])}
    gone = {*now, *same} & {*file}
    return {name: value for name, value in settings.items() if name in typed or name not in gone}


def _protocol_limits(source: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """For the task of ``settings``; nothing if the protocol of ``source`` is unknown."""
    with suppress(UsageError):
        return load_protocol(str(source.get("protocol", DEFAULT_PROTOCOL))).settings(_task_name(settings))
    return {}


def _task_name(settings: Mapping[str, Any]) -> str:
    """Or its path: the pair's unless one is named."""
    pair = settings["pair"]
    own = pair.get("task") if isinstance(pair, dict) else None
    return str(settings.get("task", own or "xsum"))


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What lies beneath ``settings``: the protocol's, and the defaults that depend on others."""
    pair, protocol = settings["pair"], settings.get("protocol", DEFAULT_PROTOCOL)
    synthetic = isinstance(pair, dict) and pair.get("synthetic") is True
    defaults: dict[str, Any] = {"protocol": protocol, "data": "mini" if synthetic else "official"}
    defaults["ks"] = list(RunConfig.model_fields["ks"].default)
    if isinstance(pair, dict) and pair.get("drafter"):
        defaults["drafters"] = [pair["drafter"]]
    if isinstance(pair, dict) and pair.get("task"):
        defaults["task"] = pair["task"]
    if "backend" not in settings:
        defaults["backend"] = chosen_backend()
    if isinstance(protocol, str):
        defaults |= load_protocol(protocol).settings(_task_name(settings))
    shapes = {str(shape) for shape in _listed(settings.get("trees", CHAIN), BETWEEN_TREES)}
    drafters = _listed(settings.get("drafters", defaults.get("drafters", MODEL)))
    own = [":tree=" in str(drafter) for drafter in drafters]
    if shapes - {CHAIN} or any(own):
        chains = CHAIN in shapes and not all(own)
        defaults["rules"] = [MODIFIED_REJECTION, TREE_RULE] if chains else [TREE_RULE]
    return defaults


def _adaptive(settings: dict[str, Any], default_ks: Sequence[int], typed: Container[str]) -> dict[str, Any]:
    """Read ``adaptive`` among the Ks as what it stands for: a policy that decides up to the largest K.

    The other Ks stay beside it under the policy ``fixed``. Without any above 0 the bound is the default's.
    """
    ks, policies = _listed(settings.get("ks")), _listed(settings.get("policies"))
    if ADAPTIVE not in ks:
        return settings
    kept = [k for k in ks if k != ADAPTIVE]
    deciding = [policy for policy in policies if policy != FIXED]
    if policies and not deciding and "policies" in typed:
        raise UsageError(
            f"the policy {FIXED} always drafts K, and --k asks for {ADAPTIVE}.",
            flag="--policy",
            remedy="Name stop-below, entropy or momentum, or leave one of the two out.",
        )
    bounded = any(k not in (0, "0") for k in kept)
    beside = bounded or (FIXED in policies and "policies" in typed)
    return settings | {
        "ks": ",".join(map(str, kept if bounded else [*kept, *default_ks])),
        "policies": [*([FIXED] if beside else []), *(deciding or [ADAPTIVE_POLICY])],
    }


def _listed(value: Any, between: str = ",") -> list[Any]:
    """The parts of a list, written as one or as ``a,b``."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(between)]
    return list(value) if isinstance(value, (list, tuple)) else []


def _path_and_value(text: str) -> tuple[list[str], Any]:
    name, equals, value = text.partition("=")
    first, *inner = name.strip().split(".")
    path = [_FIELD_OF_FLAG.get(first, first), *inner]
    if not equals or not all(path):
        remedy = "For example: --set limit=20."
        raise UsageError(f"it must be key=value, got {text}.", flag="--set", remedy=remedy)
    try:
        return path, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        remedy = "Put it in quotes, e.g. data='\"a: b\"'."
        raise UsageError(f"the value in {text} is not YAML.", flag="--set", remedy=remedy) from None


def _set_inside(settings: dict[str, Any], path: list[str], value: Any) -> None:
    inner: Any = settings
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            flag = f"--set {'.'.join(path)}"
            raise UsageError(f"{part!r} has no settings inside.", flag=flag, remedy="Leave out the dot.")
    inner[path[-1]] = value


def _pair(chosen: Any, models: Mapping[str, str], *, named: bool, alone: bool) -> Any:
    """The pair as a mapping, from a name, a mapping or two models; not validated yet.

    With ``alone`` no draft model runs, and two models are called by the target.
    """
    ids = [*models]
    refuse_together("settings", {**models, "pair": named or None})
    if len(ids) == 1:
        missing = "draft" if ids == ["target"] else "target"
        raise UsageError(
            f"it is missing beside --{ids[0]} {models[ids[0]]}.",
            flag=f"--{missing}",
            remedy="Give both models, or a drafter that needs no draft model, e.g. --drafter lookup.",
        )
    for key, value in models.items():
        if not value.strip():
            raise UsageError("the value is empty.", flag=f"--{key}", remedy="Name a model.")
    pair: Any = chosen
    if ids:
        target, draft = (ModelRef(id=models[role].strip()) for role in _MODELS)
        pair = PairConfig(name=pair_name(target, None if alone else draft), target=target, draft=draft)
    elif isinstance(chosen, str):
        pair = load_pair(chosen)
    if isinstance(pair, PairConfig):
        pair = pair.model_dump(mode="json")
    return pair
