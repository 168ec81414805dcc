"""Whether two runs are the same run, and if not, how they differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError

_SHOWN = 12
_WIDTH = 60
_ABSENT = object()


def check(directory: Path, theirs: Any, ours: Any) -> None:
    """Refuse to continue a run under another identity.

    Raises:
        UsageError: with one line ``key: theirs -> ours`` per difference.
    """
    lines = differences(theirs, ours)
    if lines:
        raise UsageError(
            "\n".join([f"{directory} holds another run (its value -> yours):", *lines, ""]),
            flag="--out",
            remedy=f"Name another directory, or use the settings of {directory / 'config.yaml'}.",
        )


def differences(theirs: Any, ours: Any) -> list[str]:
    """One line ``key: theirs -> ours`` per difference, the first dozen."""
    lines = [f"  {key}: {_show(old)} -> {_show(new)}" for key, old, new in _differences("", theirs, ours)]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _differences(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(inner, theirs.get(key, _ABSENT), ours.get(key, _ABSENT))
    elif theirs != ours:
        yield path or "identity", theirs, ours


def _show(value: Any) -> str:
    text = "(absent)" if value is _ABSENT else str(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
