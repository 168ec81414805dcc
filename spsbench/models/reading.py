"""Reads a trained drafter's folder in any known layout: by its configuration and its tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spsbench.base.errors import UnavailableError
from spsbench.models.authors import read_eagle, read_eagle3, read_medusa
from spsbench.models.block_folders import read_blocks
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import CONFIG, DESCRIPTION, is_trained
from spsbench.models.published import Published, open_published
from spsbench.models.speculators import read_speculators
from spsbench.models.trained import TrainedDraft, read_trained

READERS: tuple[Callable[[Published], TrainedDraft | None], ...] = (
    read_blocks,
    read_speculators,
    read_medusa,
    read_eagle3,
    read_eagle,
)
"""Each reads the folders of some kinds and layouts, and returns None of others."""


def read_draft(folder: Path, flag: str) -> TrainedDraft:
    """Read a trained drafter's folder.

    Raises:
        UsageError: it is one that does not run here, or its parts contradict each other.
        UnavailableError: it is none, or something is missing or damaged.
    """
    if is_trained(folder):
        return read_trained(folder, flag)
    published = open_published(folder, flag)
    if published is not None:
        with typed_errors(str(folder), flag):
            for reader in READERS:
                draft = reader(published)
                if draft is not None:
                    return draft
    why = (
        f"it has no {DESCRIPTION}" if published is None else f"its {CONFIG} and tensors match no known format"
    )
    why = f"{folder} is not a trained draft: {why}."
    remedy = "Name a folder of spsbench distill, of speculators, or of an EAGLE-3 or Medusa head."
    raise UnavailableError(why, flag=flag, remedy=remedy)
