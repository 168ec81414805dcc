"""The kinds of drafts that can be trained."""

from __future__ import annotations

EAGLE, MEDUSA, MODEL = KINDS = ("eagle", "medusa", "model")
