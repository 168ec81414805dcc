"""Whether engines ran with the same settings, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.peers.protocol import SETTINGS

SMALLEST_SET = "smallest set"
"""What ``top_p`` is where a nucleus is the smallest set of most probable tokens whose mass reaches it."""

SAMPLER_ORDER = ("temperature", "top_k", "top_p")
"""In which order logits are warped here."""

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
        label: of the arm, as tables have it.
        engine: the place on the axis, e.g. ``eager``.
        settings: as in ``Described``.
    """

    label: str
    engine: str
    settings: Mapping[str, Any]


def unequal(arms: Sequence[Ran], *, sampled: bool = True) -> list[str]:
    """A sentence for each setting of ``SETTINGS`` that is not the same everywhere, or not told.

    Args:
        arms: of one run.
        sampled: whether anything was sampled.
    """
    names = [name for name in SETTINGS if sampled or name not in OF_SAMPLING]
    return [sentence for name in names for sentence in _of_setting(name, arms)]


def _of_setting(name: str, arms: Sequence[Ran]) -> Iterator[str]:
    values = {arm.label: _said(arm.settings.get(name)) for arm in arms}
    title = f"{name} ({SETTINGS[name]})"
    if len({value for value in values.values() if value is not None}) > 1:
        told = _by_value(name, arms)
        yield f"{title} differs: {'; '.join(f'{value} with {who}' for value, who in told.items())}."
    untold = [arm for arm in arms if values[arm.label] is None]
    if untold:
        yield f"{title} is not told by {_who(untold, arms)}."


def _by_value(name: str, arms: Sequence[Ran]) -> dict[str, str]:
    groups: dict[str, list[Ran]] = {}
    for arm in arms:
        if (value := _said(arm.settings.get(name))) is not None:
            groups.setdefault(value, []).append(arm)
    return {value: _who(own, arms) for value, own in groups.items()}


def _who(some: Sequence[Ran], arms: Sequence[Ran]) -> str:
    """Engines by name where all of their arms are meant, else arms by label."""
    found: dict[str, None] = {}
    for arm in some:
        whole = all(other in some for other in arms if other.engine == arm.engine)
        found[arm.engine if whole else arm.label] = None
    return ", ".join(found)


def _said(value: Any) -> str | None:
    """A value as it is compared and shown; several spellings of one are the same."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return ", ".join(_said(part) or "null" for part in value)
    text = str(value).strip().lower()
    return _SAME.get(text, text)
