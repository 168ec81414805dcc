"""What a folder with a trained draft holds."""

from __future__ import annotations

from pathlib import Path

EAGLE, MEDUSA, MODEL = KINDS = ("eagle", "medusa", "model")
"""Of folders with ``draft.json``."""

EAGLE3, PEAGLE, DFLASH, DFLASH2, DSPARK, XPRESS, MTP, ASSISTANT = PUBLISHED = (
    "eagle3",
    "peagle",
    "dflash",
    "dflash2",
    "dspark",
    "xpress",
    "mtp",
    "assistant",
)
"""Of folders that others publish: in the format of ``speculators``, or in that of their authors."""

READ_LAYERS = frozenset({EAGLE3, PEAGLE, DFLASH, DFLASH2, DSPARK, XPRESS})
"""Kinds that read the target's states after some of its layers."""

BLOCKS = frozenset({DFLASH, DFLASH2, DSPARK})
"""Kinds that draft a block in one forward."""

SPSBENCH, SPECULATORS, AUTHORS = ("spsbench", "speculators", "authors")
"""Whose layout a folder has."""

AFTER, OUTPUT, PRE, POST = "after", "output", "pre", "post"

OWN, NEXT = "own", "next"
EARLIER, BOTH = "earlier", "both"
ANCHORED, EACH = "anchored", "each"
BONUS, WRITTEN = "bonus", "written"

OF_HEADS = {
    "ids": (AFTER, OUTPUT),
    "recycle": (PRE, POST),
    "residual": (PRE, POST),
    "anchor": (OWN, NEXT),
    "sliding": (EARLIER, BOTH),
    "window": (ANCHORED, EACH),
}
"""What engines read differently in the same folder, and how each can be read; options of ``heads``.

``ids``: an id k is the state after k layers, or the output of the layer with index k, which is state k + 1.
``recycle``: what a head reads of itself, before or after its final norm. ``residual``: whether the attention
of an EAGLE-3 layer adds to the fused state before its norm, or after.

Of a block: ``anchor``, whether a place predicts its own token or the next one, so that the pending token's
place predicts too. In its sliding layers: ``sliding``, whether a place sees the earlier ones of the block
alone or both sides; ``window``, whether it is counted from the block's first place for all, or from each.
"""

CONVENTIONS = OF_HEADS | {"position": (BONUS, WRITTEN)}
"""Those of every kind. ``position``: where an assistant's draft stands, at the pending token or at the last
token that the target has read."""

AS_WRITTEN = "as-written"
"""What a convention is unless it is asked for: as the folder, or who wrote it, says."""

DESCRIPTION, CONFIG = "draft.json", "config.json"


def is_trained(folder: Path) -> bool:
    """Return whether a folder says that it holds a trained draft."""
    return (folder / DESCRIPTION).is_file()
