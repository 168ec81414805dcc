"""Whether engines ran with the same settings, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.axes import shown_engine
from spsbench.peers.protocol import SETTINGS

OF_SAMPLING = ("top_p", "sampler_order")
"""Settings without effect where nothing is sampled."""

_SAME = {
    **dict.fromkeys(("f32", "fp32"), "float32"),
    **dict.fromkeys(("f16", "fp16"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("none", "off", "no", "disabled"), "false"),
    **dict.fromkeys(("on", "yes", "enabled"), "true"),
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What one arm ran with.

    Attributes:
        engine: the place on the axis, e.g. ``eager``.
        settings: as in ``Described``.
    """

    label: str
    engine: str
    settings: Mapping[str, Any]


def unequal(arms: Sequence[Ran], *, sampled: bool = True) -> list[str]:
    """A sentence for each setting of ``SETTINGS`` that is not the same everywhere, or not reported."""
    names = [name for name in SETTINGS if sampled or name not in OF_SAMPLING]
    groups = {name: _by_value(name, arms) for name in names}
    found = []
    for name, values in groups.items():
        told = {value: who for value, who in values.items() if value}
        if len(told) > 1:
            parts = "; ".join(f"{value} with {who}" for value, who in told.items())
            found.append(f"{name} ({SETTINGS[name]}) differs: {parts}.")
    untold = {name: values[None] for name, values in groups.items() if None in values}
    for who in dict.fromkeys(untold.values()):
        silent = ", ".join(name for name, other in untold.items() if other == who)
        found.append(f"Not reported by {who}: {silent}.")
    return found


def _by_value(name: str, arms: Sequence[Ran]) -> dict[str | None, str]:
    """Who ran with each value of a setting; None where it is not reported."""
    groups: dict[str | None, list[Ran]] = {}
    for arm in arms:
        groups.setdefault(_said(arm.settings.get(name)), []).append(arm)
    return {value: _who(own, arms) for value, own in groups.items()}


def _who(some: Sequence[Ran], arms: Sequence[Ran]) -> str:
    """Engines by name where all of their arms are meant, else arms by label."""
    found: dict[str, None] = {}
    for arm in some:
        whole = all(other in some for other in arms if other.engine == arm.engine)
        found[shown_engine(arm.engine) if whole else arm.label] = None
    return ", ".join(found)


def _said(value: Any) -> str | None:
    """A value as it is compared and shown; several spellings of one are the same."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return ", ".join(_said(part) or "null" for part in value)
    text = str(value).strip().lower().replace("-", "_")
    return _SAME.get(text, text)
