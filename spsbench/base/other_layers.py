"""What is said of layers that are not attention: what computes them, and how their states are put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spsbench.base.messages import REFERENCE as REFERENCE
from spsbench.base.messages import FewerLayersCompiled, PackagesMissing, TokensReadAgain


def slow_kernels(kernels: Mapping[str, str]) -> str | None:
    """Return the sentence on packages without which reference code computes; None if none is missing."""
    packages = sorted(package for package, by in kernels.items() if by == REFERENCE)
    return str(PackagesMissing(tuple(packages))) if packages else None


def slower_than_asked(models: Mapping[str, Any]) -> Iterator[str]:
    """Yield, of what a run records of its models, why states of a block are not kept, layers not compiled."""
    for role in ("target", "draft"):
        model = models.get(role) or {}
        if reason := model.get("planes_left_out"):
            yield str(TokensReadAgain(role, reason))
        compiled = model.get("compiled") or {"layers": 0, "of": 0}
        if (count := compiled["layers"]) < (of := compiled["of"]):
            yield str(FewerLayersCompiled(count, of, role, compiled["reason"]))


def kernels_of_models(models: Mapping[str, Any]) -> dict[str, str]:
    """Return, of what a run records of its models, what computes layers that have several kernels."""
    found = [(models.get(role) or {}).get("kernels") or {} for role in ("draft", "target")]
    return {package: by for each in found if isinstance(each, Mapping) for package, by in each.items()}
