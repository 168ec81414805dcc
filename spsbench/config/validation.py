"""From a mapping to a settings model, with the first mistake told in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from spsbench.config.models import Limits, ModelRef, PairConfig, ProtocolConfig, RunConfig
from spsbench.config.yamlfile import unknown_name
from spsbench.errors import UsageError

_Model = TypeVar("_Model", bound=BaseModel)

_INNER: dict[str, type[BaseModel]] = {"pair": PairConfig, "target": ModelRef, "draft": ModelRef}

_MEANING: dict[str, str] = {
    name: field.description or ""
    for model in (ModelRef, PairConfig, ProtocolConfig, RunConfig)
    for name, field in model.model_fields.items()
}


def validate(model: type[_Model], content: Mapping[str, Any], label: Callable[[str], str]) -> _Model:
    """Build ``model`` from ``content``.

    Args:
        model: the settings to build.
        content: keys and raw values.
        label: from the dotted path of a key to how the user calls it: a flag, or a key of a file.

    Raises:
        UsageError: for the first unknown key or bad value.
    """
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
    what = "the value is missing" if error["type"] == "missing" else f"{_short(error['input'])} is not valid"
    remedy = f"Give {_MEANING[path[-1]]}." if path[-1] in _MEANING else None
    raise UsageError(f"{what}.", flag=label(".".join(path)), remedy=remedy)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
