"""Heads in the format of the ``speculators`` package: EAGLE-3's layer over the target's last state.

An EAGLE-3 head (Li et al. 2025) takes the states after some layers of its target through a norm and ``fc``.
Where that is the last layer alone, the normed state is what a target keeps here, up to the norm's weight.
Heads on several layers, and the format's other algorithms, read what is not kept.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spsbench.base.errors import UnavailableError, UsageError, as_typed
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import EAGLE3, is_trained
from spsbench.models.plausible import WIDEST, require_bounded_config, require_ordinary_files
from spsbench.models.trained import (
    MadeFor,
    TrainedDraft,
    read_settings,
    read_vocabulary,
    require_consistent,
    require_vocabulary,
)

CONFIG = "config.json"
LAYER = "transformer_layer_config"
READS = "eagle_aux_hidden_state_layer_ids"
D2T = "d2t"
T2D = "t2d"
HEAD = "lm_head.weight"
OWN_EMBEDDING = "embed_tokens.weight"
NORM = "norm.weight"
INPUT_NORMS = ("input_norm.weight", "fc_norm.0.weight")
FINGERPRINT = "verifier_embedding"
"""Of our own: ``embedding_fingerprint`` of the target."""


class WideLayer(nn.Module):
    """A layer of transformers whose attention reads an embedding beside a state and adds to the state."""

    def __init__(self, layer: Any, before_residual: bool) -> None:
        super().__init__()
        self._before_residual = before_residual
        self.self_attn = layer.self_attn
        self.mlp = layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.hidden_norm = copy.deepcopy(layer.input_layernorm)
        for name in ("q_proj", "k_proj", "v_proj"):
            product = getattr(self.self_attn, name)
            product.in_features *= 2
            product.weight = nn.Parameter(torch.cat([product.weight.detach()] * 2, 1))

    def forward(self, hidden_states: Tensor, **attention: Any) -> Tensor:
        """[b, n, hidden] of embeddings and states [b, n, 2 hidden]."""
        embedded, state = hidden_states.chunk(2, -1)
        normed = self.hidden_norm(state)
        read = torch.cat([self.input_layernorm(embedded), normed], -1)
        added = self.self_attn(hidden_states=read, **attention)[0]
        state = (normed if self._before_residual else state) + added
        output: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return output


def read_speculators(folder: Path, flag: str) -> TrainedDraft | None:
    """Read such a folder; None where there is no configuration of that format."""
    if is_trained(folder) or not os.path.lexists(folder / CONFIG):
        return None
    require_ordinary_files(folder, str(folder), flag)
    config = read_settings(folder / CONFIG, flag)
    if (kind := config.get("speculators_model_type")) is None:
        return None
    require_bounded_config(config, str(folder), flag)
    layer, reads = config.get(LAYER), config.get(READS)
    layer = layer if isinstance(layer, dict) else {}
    norms = config.get("norm_before_fc") or config.get("fc_norm")
    model_type = layer.get("model_type")
    wide = config.get("target_hidden_size")
    for field, value, fits, runs in (
        ("speculators_model_type", kind, kind == EAGLE3, EAGLE3),
        (READS, reads, isinstance(reads, list) and len(reads) == 1, "one id, the number of layers"),
        ("norm_before_fc", norms, norms is True, "true, or fc_norm"),
        (f"{LAYER}.model_type", model_type, model_type in ("llama", "qwen3"), "llama or qwen3"),
        ("target_hidden_size", wide, wide in (None, layer.get("hidden_size")), "the layer's"),
    ):
        if not fits:
            raise UsageError(
                f"{folder} has {field} {as_typed(value)}; what runs here is {runs}.",
                flag=flag,
                remedy="Train a head by spsbench distill --kind eagle3.",
            )
    try:
        hidden, vocab_size = int(layer["hidden_size"]), int(layer["vocab_size"])
        if not (0 < hidden <= WIDEST and 0 < vocab_size <= WIDEST):
            raise ValueError(f"hidden_size is {hidden:,}, vocab_size {vocab_size:,}")
        name = str(config["speculators_config"]["verifier"]["name_or_path"])
    except (KeyError, TypeError, ValueError) as fault:
        raise UnavailableError(
            f"the {CONFIG} of {folder} does not say all that it must: {fault}.",
            flag=flag,
            remedy="Name a folder in the format of the speculators package.",
        ) from fault
    target = MadeFor(name, hidden, vocab_size, str(config.get(FINGERPRINT, "")))
    flags = {field: bool(config.get(field)) for field in ("norm_before_residual", "norm_output")}
    with typed_errors(str(folder), flag):
        stored, ids = Checkpoint(folder), None
        if (offsets := read_vocabulary(stored, D2T, vocab_size)) is not None:
            ids = np.arange(len(offsets)) + offsets
            require_vocabulary(folder, ids, vocab_size, flag)
    draft = TrainedDraft(folder, EAGLE3, target, layer | flags | {READS: reads}, 0, ids, stored)
    require_consistent(draft, flag)
    return draft


def require_last_layer(draft: TrainedDraft, config: Any, flag: str) -> None:
    """Refuse a target whose last normed state is not what the head reads."""
    config_of_draft = draft.config or {}
    for field, wanted, value in (
        (READS, config_of_draft.get(READS), [config.num_hidden_layers]),
        ("rms_norm_eps", config_of_draft.get("rms_norm_eps"), getattr(config, "rms_norm_eps", None)),
    ):
        if wanted != value:
            raise UsageError(
                f"{draft.folder} has {field} {wanted}; the target's is {value}.",
                flag=flag,
                remedy="Choose the target that it was made for.",
            )
