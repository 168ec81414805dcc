"""Where things live: the packaged data of a wheel or the folders of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent

EMBEDDED = "embedded:"
"""Names of models inside the package begin with it."""

DataKind = Literal[
    "tasks", "configs/pairs", "configs/protocols", "configs/packages", "configs/engines", "configs/papers"
]


def data_dir(kind: DataKind) -> Path:
    """Folder of the shipped YAML files of one kind.

    In a wheel they lie in ``spsbench/_data``; in a checkout (or an editable install) at the top
    level, where people read and edit them.
    """
    packaged = _PACKAGE / "_data" / kind
    return packaged if packaged.is_dir() else _PACKAGE.parent / kind


def drafts_dir() -> Path:
    """Folder of the shipped drafts, one folder a target."""
    return _PACKAGE / "drafts"


def mini_dir(folder: str = "mini") -> Path:
    """Folder of an embedded pair, ``mini`` unless named: its models and the synthetic task data."""
    return _PACKAGE / folder


def mini_t5_dir() -> Path:
    """Folder of the embedded encoder-decoder pair: ``target``, three drafts and the synthetic task data."""
    return _PACKAGE / "mini_t5"


def embedded_dir(name: str) -> Path | None:
    """Folder of a model inside the package by its name, ``embedded:SET/PART``; None of another name.

    The sets ``mini`` and ``mini-t5`` are the embedded pairs; any other is a folder of drafts that were
    trained for one target.
    """
    if not name.startswith(EMBEDDED):
        return None
    group, _, part = name.removeprefix(EMBEDDED).partition("/")
    pairs = {"mini": mini_dir(), "mini-t5": mini_t5_dir()}
    return pairs.get(group, drafts_dir() / group) / part


def results_dir() -> Path:
    """Folder under which runs get their own directories: ``results`` of the current directory."""
    return Path("results")
