"""Where things live: the packaged data of a wheel or the folders of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

_PACKAGE = Path(__file__).resolve().parents[1]

EMBEDDED = "embedded:"
"""Names of models inside the package begin with it."""

PairFolder = Literal["mini", "mini_t5"]
"""Folders of the embedded pairs; a pair is named like its folder, with hyphens."""

_APART: dict[PairFolder, str] = {"mini_t5": "spsbench_mini_t5"}
"""Pairs that spsbench's own wheel leaves out, and the packages that hold them, built from ``training/``."""

DataKind = Literal[
    "tasks", "configs/pairs", "configs/protocols", "configs/packages", "configs/engines", "configs/papers"
]


def data_dir(kind: DataKind) -> Path:
    """Return the folder of the shipped YAML files of one kind.

    In a wheel they lie in ``spsbench/_data``; in a checkout (or an editable install) at the top
    level, where people read and edit them.
    """
    packaged = _PACKAGE / "_data" / kind
    return packaged if packaged.is_dir() else _PACKAGE.parent / kind


def drafts_dir() -> Path:
    """Return the folder of the shipped drafts, with one folder for each target."""
    return _PACKAGE / "drafts"


def mini_dir(folder: PairFolder = "mini") -> Path:
    """Return the folder of an embedded pair, by default ``mini``: its models and the synthetic task data.

    A pair with a package of its own lies in ``training/`` of a checkout, and else beside this package.
    """
    if folder not in _APART:
        return _PACKAGE / folder
    here = _PACKAGE.parent / "training" / folder / "pair"
    return here if here.is_dir() else _PACKAGE.parent / _APART[folder]


def mini_dirs() -> dict[str, Path]:
    """Return the folders of all embedded pairs by the pair's name."""
    return {folder.replace("_", "-"): mini_dir(folder) for folder in get_args(PairFolder)}


def embedded_dir(name: str) -> Path | None:
    """Return the folder of an embedded model named ``embedded:SET/PART``; None for any other name.

    A set is an embedded pair, see ``mini_dirs``, or else a folder of drafts that were trained for one target.
    """
    if not name.startswith(EMBEDDED):
        return None
    group, _, part = name.removeprefix(EMBEDDED).partition("/")
    return mini_dirs().get(group, drafts_dir() / group) / part


def way_to_install(name: str) -> str | None:
    """Return the command that installs a pair that is missing, by its folder or by one of its models."""
    folder = name.removeprefix(EMBEDDED).partition("/")[0].replace("-", "_")
    places = (mini_dir(pair) for pair in _APART if pair == folder)
    is_missing = any(not place.is_dir() for place in places)
    return "`pip install ./training` in a checkout of spsbench" if is_missing else None


def results_dir() -> Path:
    """Return the folder under which runs get their own directories: ``results`` of the current directory."""
    return Path("results")
