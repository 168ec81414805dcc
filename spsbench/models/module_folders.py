"""Prediction modules as a folder has them, a target's own or trained apart: described, and not loaded."""

from __future__ import annotations

from transformers import PretrainedConfig

from spsbench.models.checkpoint import Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import AUTHORS, MTP, POST, PRE, SPECULATORS
from spsbench.models.messages import MODULES_RECYCLE
from spsbench.models.mtp import LONGCAT, PROMISES, NoModules, find_modules
from spsbench.models.published import Published
from spsbench.models.speculators import LAYER, TYPE, verifier_of
from spsbench.models.trained import Convention, MadeFor, TrainedDraft

_BEFORE_NORM = ("step3", "mimo_v2")
"""Targets whose modules read each other's states before the norm, by vLLM and by llama.cpp."""

_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")


def describe_modules(published: Published) -> TrainedDraft | None:
    """Describe the modules of a folder, a target's own or trained apart; None where it promises none.

    Raises:
        UnavailableError: it promises some, and its files lack them or a part of one.
    """
    told = published.config
    is_apart = told.get(TYPE) == MTP
    text = told.get(LAYER) if is_apart else told.get("text_config", told)
    if not isinstance(text, dict) or not isinstance(text.get("model_type"), str):
        return None
    if isinstance(kinds := text.get("layers_block_type"), list):  # Nemotron-H's need not say how many
        text = text | {"num_hidden_layers": len(kinds)}
    if text["model_type"] == LONGCAT and type(text.get("num_layers")) is int:  # two attentions each
        text = {"num_hidden_layers": 2 * text["num_layers"]} | text
    if not is_apart and any(type(text.get(field)) is not int for field in _SIZES):
        return None  # a head's folder may say less of its target
    _, hidden, vocab_size = (published.number(field, text) for field in _SIZES)
    config = PretrainedConfig(**text)
    with typed_errors(str(published.folder), published.flag):
        stored = Checkpoint(published.folder)
    try:
        layout = find_modules(stored, config)
    except NoModules as reason:
        if not is_apart and not any(text.get(name) for name in PROMISES):
            return None
        raise published.damage(f"cannot draft by modules of its own: {reason}") from reason
    made = verifier_of(published, hidden, vocab_size) if is_apart else None
    return TrainedDraft(
        published.folder,
        MTP,
        made or MadeFor(str(text["model_type"]), hidden, vocab_size, ""),
        dict(text),
        stored,
        writer=SPECULATORS if is_apart else AUTHORS,
        conventions=(Convention("recycle", recycle_of(str(text["model_type"])), MODULES_RECYCLE),),
        extra={
            "modules": len(layout.modules),
            "own_heads": sum(bool(each.head) for each in layout.modules),
            "apart": is_apart,
        },
    )


def recycle_of(model_type: str) -> str:
    """Return whether a target's modules read each other's states before or after the norm."""
    return PRE if model_type.startswith(_BEFORE_NORM) else POST
