"""Whether a checkpoint's weights are those that its configuration asks for, alike on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spsbench.base.errors import UnavailableError
from spsbench.models.causal_lm import text_config
from spsbench.models.checkpoint import EMBEDDING, HEAD, Checkpoint, StoredWeights
from spsbench.models.fetch.cache import keep_answer, kept_answer, watcher
from spsbench.models.messages import UnreadWeights, first_names
from spsbench.models.source import ModelSource
from spsbench.models.text_part import class_of, text_class


def is_tied(config: Any) -> bool:
    """Return whether a configuration uses the embedding as the head, too.

    A class that declares its tied weights and names none (Inkling) has a head of its own, whatever is said.
    """
    if getattr(class_of(config), "_tied_weights_keys", None) == {}:
        return False
    if text_class(config) is not None:  # the head is the whole's
        return bool(getattr(config, "tie_word_embeddings", False))
    return bool(getattr(text_config(config), "tie_word_embeddings", True))


def require_complete(missing: Sequence[str], name: str, flag: str) -> None:
    """Refuse a checkpoint with missing weights: transformers would initialise them at random."""
    if missing:
        why = f"{name} is incomplete: {len(missing)} of its weights are missing ({first_names(missing)})"
        if missing == [HEAD]:
            why = f"{why} and its configuration says tie_word_embeddings: false"
        remedy = "Download the model again, or choose a checkpoint with a language-model head."
        raise UnavailableError(f"{why}.", flag=flag, remedy=remedy)


def require_head(source: ModelSource, stored: StoredWeights, flag: str) -> None:
    if HEAD not in stored and not is_tied(source.config):
        require_complete([HEAD], source.name, flag)


_ROWS = 4096
_HEADS = (HEAD, "embed_out.weight")
_EMBEDDINGS = (
    EMBEDDING,
    "model.language_model.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "transformer.wte.weight",
    "transformer.word_embeddings.weight",
    "gpt_neox.embed_in.weight",
    "shared.weight",
)
"""As transformers' architectures call them."""


def require_one_head(source: ModelSource, stored: Checkpoint, flag: str) -> None:
    """Refuse a checkpoint that ties its head to the embedding and also stores another head."""
    head = next(filter(stored.reads, _HEADS), None)
    embedding = next(filter(stored.reads, _EMBEDDINGS), None)
    if head is None or embedding is None or not is_tied(source.config):
        return
    shapes = stored.shape(head), stored.shape(embedding)
    same = shapes[0] == shapes[1]
    count, width = shapes[1]
    for first in range(0, count if same else 0, _ROWS):
        ids = np.arange(first, min(first + _ROWS, count))
        one, other = (np.zeros((len(ids), width), np.float32) for _ in range(2))
        stored.rows(head, ids, one)
        stored.rows(embedding, ids, other)
        if not np.array_equal(one, other):
            same = False
            break
    if not same:
        raise UnavailableError(
            f"{source.name} has two heads: its configuration says tie_word_embeddings: true, and it stores "
            f"{head}, which is not {embedding}.",
            flag=flag,
            remedy="Write the configuration or the weights again, so that they agree.",
        )


_UNREAD = "unread"
"""The folder of the answers in the cache."""


def note_unread(source: ModelSource, names: Sequence[str]) -> None:
    if names:
        keep_answer(_UNREAD, source.key(), {"names": [*names]})


def say_unread(source: ModelSource) -> None:
    names = (kept_answer(_UNREAD, source.key()) or {}).get("names")
    if isinstance(names, list) and names:
        watcher().said(str(UnreadWeights(source.name, [*map(str, names)])))
