"""What a folder with ``draft.json`` holds."""

from __future__ import annotations

from pathlib import Path

EAGLE, MEDUSA, MODEL = KINDS = ("eagle", "medusa", "model")

EAGLE3 = "eagle3"
"""Of folders in the format of ``speculators``."""

DESCRIPTION = "draft.json"


def is_trained(folder: Path) -> bool:
    """Return whether a folder says that it holds a trained draft."""
    return (folder / DESCRIPTION).is_file()
