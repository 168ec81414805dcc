"""Language models behind one small protocol; the only owners of KV caches."""

from __future__ import annotations

EAGLE, MEDUSA, MODEL = KINDS = ("eagle", "medusa", "model")
"""Of folders with ``draft.json``."""

EAGLE3 = "eagle3"
"""Of folders in the format of ``speculators``."""
