"""Where things live: the packaged data of a wheel or the folders of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent

DataKind = Literal["tasks", "configs/pairs", "configs/protocols", "configs/packages"]


def data_dir(kind: DataKind) -> Path:
    """Folder of the shipped YAML files of one kind.

    In a wheel they lie in ``spsbench/_data``; in a checkout (or an editable install) at the top
    level, where people read and edit them.
    """
    packaged = _PACKAGE / "_data" / kind
    return packaged if packaged.is_dir() else _PACKAGE.parent / kind


def mini_dir() -> Path:
    """Folder of the embedded pair: ``target``, ``draft`` and the synthetic task data."""
    return _PACKAGE / "mini"


def results_dir() -> Path:
    """Folder under which runs get their own directories: ``results`` of the current directory."""
    return Path("results")
