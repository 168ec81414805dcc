"""Folders in the format of the ``speculators`` package, and EAGLE-3's layer as it and the authors have it.

An EAGLE-3 head (Li et al. 2025) takes the states after some layers of its target through ``fc``, with norms
before it or without. Its first layer reads the embedding of the next token beside that, and layers after it
are ordinary. P-EAGLE has the same layers, and a learned state for places whose token is not known yet.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.base.errors import as_typed, first_line
from spsbench.models.checkpoint import HEAD as HEAD
from spsbench.models.kinds import AFTER, EAGLE3, MTP, PEAGLE, POST, PRE, SPECULATORS, XPRESS
from spsbench.models.kinds import CONFIG as CONFIG
from spsbench.models.messages import (
    OTHER_DRAFTER,
    SPECULATORS_IDS,
    SPECULATORS_RECYCLE,
    SPECULATORS_RESIDUAL,
    XPRESS_REFUSED,
)
from spsbench.models.published import D2T as D2T
from spsbench.models.published import T2D as T2D
from spsbench.models.published import Published, Shape
from spsbench.models.trained import Convention, MadeFor, TrainedDraft, config_of_layers

LAYER = "transformer_layer_config"
READS = "eagle_aux_hidden_state_layer_ids"
TYPE = "speculators_model_type"
FC, OWN_EMBEDDING = "fc.weight", "embed_tokens.weight"
WHOLE_NORM = "input_norm.weight"
"""``norm_before_fc``: one norm over all states beside each other."""
MASK_HIDDEN = "mask_hidden"
FINGERPRINT = "verifier_embedding"
"""Of our own: ``embedding_fingerprint`` of the target."""

LAYER_TYPES = ("llama", "qwen3")
_VERIFIERS = ("verifier_norm.weight", "verifier_lm_head.weight")
"""Of training: the target's, which nothing reads."""


def norm_of_state(number: int) -> str:
    return f"fc_norm.{number}.weight"


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


def eagle3_body(config: Any, before_residual: bool, dtype: torch.dtype | None = None) -> Any:
    """Build the layers and the norm of an EAGLE-3 head, as transformers computes them.

    Args:
        config: Hugging Face's, of the layers; no embedding is built.
    """
    from transformers import AutoModel

    config = copy.deepcopy(config)
    # The layers get states, not tokens: one empty row of embedding is enough.
    config.vocab_size, config.pad_token_id = 1, None
    body = AutoModel.from_config(config, dtype=dtype or torch.float32)
    body.layers[0] = WideLayer(body.layers[0], before_residual)
    return body


def read_speculators(published: Published) -> TrainedDraft | None:
    """Read a folder in the format of ``speculators``; None of any other."""
    kind = published.config.get(TYPE)
    if kind is None:
        return None
    if kind == XPRESS:
        return _read_xpress(published)
    if kind == MTP:
        raise published.refusal(
            f"has {TYPE} {MTP}: a module over its target's last state, not a head",
            f"Give --drafter mtp:from={published.folder}.",
        )
    if kind not in (EAGLE3, PEAGLE):
        why = f"has {TYPE} {as_typed(kind)}; what runs here is {EAGLE3} or {PEAGLE}"
        raise published.refusal(why, OTHER_DRAFTER)
    return _read_eagle3(published, kind)


def layer_settings(published: Published) -> Mapping[str, Any]:
    layer = published.config.get(LAYER)
    if not isinstance(layer, dict):
        raise published.damage(f"has no {LAYER} in its {CONFIG}")
    return layer


def verifier_of(published: Published, hidden: int, vocab_size: int) -> MadeFor:
    told = published.config.get("speculators_config")
    verifier = told.get("verifier") if isinstance(told, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    if not name:
        raise published.damage(f"names no verifier in its {CONFIG}")
    return MadeFor(str(name), hidden, vocab_size, str(published.config.get(FINGERPRINT, "")))


def _read_eagle3(published: Published, kind: str) -> TrainedDraft:
    config, layer = published.config, layer_settings(published)
    hidden, vocab_size = published.number("hidden_size", layer), published.number("vocab_size", layer)
    wide = config.get("target_hidden_size")
    target = verifier_of(
        published, hidden if wide is None else published.number("target_hidden_size"), vocab_size
    )
    if config.get("norm_before_fc") and config.get("fc_norm"):
        raise published.damage(
            f"has both norm_before_fc and fc_norm in its {CONFIG}, which exclude each other"
        )
    reads = published.numbers(READS)
    said = "norm_before_residual" in config
    conventions = [
        Convention("ids", AFTER, SPECULATORS_IDS),
        Convention(
            "residual",
            POST if config.get("norm_before_residual") else PRE,
            f"norm_before_residual in {CONFIG}" if said else SPECULATORS_RESIDUAL,
            said,
        ),
    ]
    if kind == EAGLE3:
        recycled = POST if config.get("norm_output") else PRE
        conventions.append(Convention("recycle", recycled, SPECULATORS_RECYCLE))
    norms: dict[str, Shape] = {}
    if config.get("norm_before_fc"):
        norms[WHOLE_NORM] = (_count(reads) * target.hidden,)
    if config.get("fc_norm"):
        norms = {norm_of_state(number): (target.hidden,) for number in range(_count(reads))}
    extra: dict[str, Any] = {}
    if kind == PEAGLE:
        norms[MASK_HIDDEN] = (1, 1, _count(reads) * target.hidden)
        norms[OWN_EMBEDDING] = (vocab_size, hidden)
        extra["mask_token_id"] = published.mask_token(config, vocab_size)
    rows = published.number("draft_vocab_size")
    return eagle3_of(
        published, kind, SPECULATORS, target, dict(layer), reads, tuple(conventions), norms, rows, extra
    )


def _count(reads: tuple[int, ...] | None) -> int:
    return 3 if reads is None else len(reads)


def eagle3_of(
    published: Published,
    kind: str,
    writer: str,
    target: MadeFor,
    layer: dict[str, Any],
    reads: tuple[int, ...] | None,
    conventions: tuple[Convention, ...],
    norms: Mapping[str, Shape],
    rows: int,
    extra: Mapping[str, Any],
) -> TrainedDraft:
    """Return an EAGLE-3 head whose tensors are held against its configuration, shape by shape.

    Args:
        layer: of its decoder layers.
        norms: what it has before ``fc``, and of its own kind.
        rows: of its output head.
    """
    kind_of_layer = layer.get("model_type")
    if kind_of_layer not in LAYER_TYPES:
        raise published.refusal(
            f"has {LAYER}.model_type {as_typed(kind_of_layer)}; what runs here is {' or '.join(LAYER_TYPES)}",
            OTHER_DRAFTER,
        )
    if layer.get("sliding_window") and kind_of_layer == "llama" and _slides(layer):
        raise published.refusal(
            "has sliding_attention in llama layers, which transformers lacks", OTHER_DRAFTER
        )
    layers, hidden = published.number("num_hidden_layers", layer), published.number("hidden_size", layer)
    published.require_layers(layers)
    wanted: dict[str, Shape] = {FC: (hidden, _count(reads) * target.hidden), HEAD: (rows, hidden), **norms}
    wanted |= _layer_shapes(published, layer)
    if OWN_EMBEDDING in published.stored:
        wanted[OWN_EMBEDDING] = (target.vocab_size, hidden)
    elif hidden != target.hidden:
        raise published.damage(
            f"is {hidden} wide over a target of {target.hidden} and has no {OWN_EMBEDDING}"
        )
    published.require_tensors(wanted, (D2T, T2D, *_VERIFIERS, "*.rotary_emb.inv_freq"))
    vocabulary, way = published.vocabulary(rows, target.vocab_size)
    return TrainedDraft(
        folder=published.folder,
        kind=kind,
        target=target,
        config=layer,
        stored=published.stored,
        vocabulary=vocabulary,
        writer=writer,
        reads=reads,
        conventions=conventions,
        extra={**extra, "d2t": way} if way else extra,
    )


def _slides(layer: Mapping[str, Any]) -> bool:
    types = layer.get("layer_types")
    return isinstance(types, list) and "sliding_attention" in types


def _layer_shapes(published: Published, layer: Mapping[str, Any]) -> dict[str, Shape]:
    """Of the layers' tensors and of the norm after them; nothing is allocated."""
    try:
        with torch.device("meta"):
            body = eagle3_body(config_of_layers(layer), before_residual=False)
    except Exception as fault:  # whatever transformers raises at settings that make no layer
        raise published.damage(
            f"has a {LAYER} from which no layer can be built ({first_line(fault)})"
        ) from fault
    shapes = {name: tuple(part.shape) for name, part in body.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if not name.startswith("embed_tokens")}


def _read_xpress(published: Published) -> TrainedDraft:
    """Describe an XPress drafter, which is DFlash under a refiner that this version does not compute."""
    layer = layer_settings(published)
    hidden, vocab_size = published.number("hidden_size", layer), published.number("vocab_size", layer)
    return TrainedDraft(
        folder=published.folder,
        kind=XPRESS,
        target=verifier_of(published, hidden, vocab_size),
        config=dict(layer),
        stored=published.stored,
        writer=SPECULATORS,
        reads=published.numbers("aux_hidden_state_layer_ids"),
        conventions=(Convention("ids", AFTER, SPECULATORS_IDS),),
        extra={
            name: published.config.get(name) for name in ("block_size", "xpress_rank", "num_jacobi_passes")
        },
        refused=XPRESS_REFUSED,
    )
