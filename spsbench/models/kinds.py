"""What a folder with ``draft.json`` holds."""

from __future__ import annotations

EAGLE, MEDUSA, MODEL = KINDS = ("eagle", "medusa", "model")

EAGLE3 = "eagle3"
"""Of folders in the format of ``speculators``."""
