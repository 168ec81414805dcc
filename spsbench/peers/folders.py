"""Where the files of our models are, for engines that read them by themselves."""

from __future__ import annotations

from pathlib import Path

from spsbench.errors import UnavailableError
from spsbench.models.source import ModelSource, files_of


def folder_of(source: ModelSource) -> Path:
    """The whole Hugging Face folder of a model that was loaded: configuration, tokenizer and weights."""
    found = files_of(source.location, source.commit)
    if found is None:
        raise UnavailableError(f"the files of {source.name} are in no folder that an engine could read.")
    return found.resolve()
