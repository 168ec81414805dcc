"""What the settings of a run would import, start or ask: from a folder, only what this user has typed before.

A ``config.yaml`` is code where it names a Python file, a task's YAML (whose metrics may be Python files), a
command, or a server, which is sent the user's key. What is typed is remembered as a hash of it and of the
folder in which it was typed, in ``spsbench/typed`` of ``XDG_STATE_HOME`` (``~/.local/state``), outside of
every run. So one's own runs go on as they are, also moved or merged, and a stranger's need ``--trust``.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from spsbench.config.models import RunConfig
from spsbench.errors import UsageError, as_typed
from spsbench.files import ordinary

FIELDS = ("task", "drafters", "rules", "policies", "engines")


def require_trusted(config: RunConfig, fields: Sequence[str], folder: Path, *, trust: bool) -> None:
    """Refuse settings of a folder that name code which this user never typed; with ``trust`` remember it."""
    if trust:
        remember(config)
        return
    typed = _typed()
    if unknown := [name for name in _code_in(config, fields) if _hash(name) not in typed]:
        raise UsageError(
            f"the settings of {folder} would import, start or ask {', '.join(map(as_typed, unknown))}, "
            "which you have not typed on this machine.",
            flag="--trust",
            remedy="Look at it first, then add --trust if the folder is yours or you trust its author.",
        )


def remember(config: RunConfig) -> None:
    """Note the code that settings name as typed by this user, where that can be written."""
    typed = _typed()
    if new := [_hash(name) for name in _code_in(config, FIELDS) if _hash(name) not in typed]:
        with suppress(OSError):
            _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(_file(), "a", opener=ordinary) as file:
                file.write("".join(f"{each}\n" for each in new))


def _code_in(config: RunConfig, fields: Sequence[str]) -> list[str]:
    found: list[str] = []
    for field in fields:
        value = getattr(config, field)
        found += [value] if isinstance(value, str) else map(str, value)
    return [name for name in found if ".py:" in name or name.endswith((".yaml", ".yml")) or _is_engine(name)]


def _is_engine(name: str) -> bool:
    return name.startswith(("worker:", "openai:"))


def _hash(name: str) -> str:
    """Of a name and the folder that it is relative to."""
    here = "" if Path(name).is_absolute() or name.startswith("openai:") else Path.cwd()
    return sha256(f"{here}\0{name}".encode(errors="surrogateescape")).hexdigest()


def _file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "spsbench/typed"


def _typed() -> Container[str]:
    try:
        with open(_file(), opener=ordinary) as file:
            return set(file.read().split())
    except OSError:
        return ()
