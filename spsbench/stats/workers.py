"""What a reader must know of a run that several workers measured at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spsbench.store.conditions import condition
from spsbench.summary_types import Conditions


def sentences(info: Mapping[str, Any]) -> list[str]:
    """That workers shared a machine, and that they were unlike; nothing where neither holds."""
    most = max((int(one.get("workers_per_machine", 1)) for one in info.get("conditions") or []), default=1)
    shared = (
        f"Up to {most} workers of this run measured on one machine at once: times are those of a shared "
        "machine, whose memory bandwidth they divide."
    )
    used = [condition(info, worker["condition"]) for worker in info.get("workers") or []]
    return [*([shared] if most > 1 else []), *unlike(used)]


def unlike(workers: Iterable[Conditions]) -> list[str]:
    """A sentence where the conditions of workers differ; else none."""
    found = list(workers)
    names = dict.fromkeys(name for conditions in found for name in conditions)
    values = {name: list(dict.fromkeys(str(one.get(name)) for one in found)) for name in names}
    told = [f"{name} {' and '.join(seen)}" for name, seen in values.items() if len(seen) > 1]
    if not told:
        return []
    return [
        f"Workers are unlike: {'; '.join(told)}. All arms of a prompt are measured by one of them, and times "
        "are shown for each kind and not pooled."
    ]
