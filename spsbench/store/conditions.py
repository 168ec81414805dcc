"""The conditions of several runs as one list, for shards that are merged and processes that are pooled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from spsbench.summary_types import Conditions


def joined(infos: Sequence[Mapping[str, Any]], used: Sequence[Iterable[int]]) -> list[Conditions]:
    """Every condition that something was measured under, each once."""
    found: list[Conditions] = []
    for info, indices in zip(infos, used, strict=True):
        for index in sorted(set(indices)):
            own = condition(info, index)
            if own not in found:
                found.append(own)
    return found


def condition(info: Mapping[str, Any], index: int) -> Conditions:
    """One of a run's conditions; empty where a run of an earlier version kept none."""
    known = info.get("conditions") or []
    return cast("Conditions", dict(known[index])) if 0 <= index < len(known) else {}
