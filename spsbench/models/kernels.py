"""Which kernels compute layers that have several: those of a package, or transformers' reference code.

Without flash-linear-attention, causal-conv1d or mamba-ssm transformers computes gated delta rules, short
convolutions and Mamba's scans by reference code in Python, and says so in a log line. Times are then not
those of the model as it is served.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any

from spsbench.base.other_layers import REFERENCE
from spsbench.models.causal_lm import skeleton, text_config
from spsbench.models.layers import cache_widths
from spsbench.models.text_part import class_of

_DISTRIBUTIONS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d", "mamba_ssm": "mamba-ssm"}


def kernels_of(model: Any) -> dict[str, str]:
    """Return what computes the functions that a built model's layers call: a version, or ``REFERENCE``.

    By package, as pip knows it. Read from the functions themselves, which transformers binds when it imports
    a model's code: what is installed later changes nothing.
    """
    found: dict[str, str] = {}
    for kind in {type(part) for part in model.modules()}:
        for name in _globals_of_methods(kind):
            function = getattr(sys.modules.get(kind.__module__), name, None)
            for bound in _bound_kernels(function):
                package = str(bound["package"])
                distribution = _DISTRIBUTIONS.get(package, package)
                by_package = f"{distribution} {_version_of(distribution)}"
                is_fast = bool(bound["is_new_implementation"])
                # Where one function of a package is missing its layers run over reference code.
                if found.get(distribution) != REFERENCE:
                    found[distribution] = by_package if is_fast else REFERENCE
    return dict(sorted(found.items()))


def kernels_of_config(config: Any) -> dict[str, str]:
    """Return ``kernels_of`` the model of a configuration; nothing is built where every layer is attention."""
    widths = cache_widths(text_config(config))
    model_class = class_of(config)
    if widths and all(widths) and not getattr(model_class, "_is_stateful", False):
        return {}
    return dict(_kernels_of_skeleton(_KeyedConfig(config.to_json_string(), config)))


@dataclass(frozen=True)
class _KeyedConfig:
    name: str
    config: Any = field(compare=False)


@lru_cache(maxsize=8)
def _kernels_of_skeleton(named: _KeyedConfig) -> dict[str, str]:
    try:
        return kernels_of(skeleton(named.config))
    except Exception:  # whatever it is, loading says it
        return {}


def _globals_of_methods(kind: type) -> set[str]:
    names = set[str]()
    for method in vars(kind).values():
        code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
        names |= set(_names(code)) if code is not None else set()
    return names


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _bound_kernels(function: Any) -> Iterator[dict[str, Any]]:
    """What a function of transformers that has a fast implementation in a package is bound to."""
    seen, waiting = set[int](), [function]
    while waiting:
        part: Callable[..., Any] = waiting.pop()
        code = getattr(part, "__code__", None)
        if code is None or id(part) in seen:
            continue
        seen.add(id(part))
        cells = {
            name: cell.cell_contents
            for name, cell in zip(code.co_freevars, part.__closure__ or (), strict=True)
        }
        if "is_new_implementation" in cells and "package" in cells:
            yield cells
        else:
            waiting += [value for value in cells.values() if callable(value)]


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of an unknown version"
