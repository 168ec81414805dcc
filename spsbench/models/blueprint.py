"""What a decoder-only model computes, read from its Hugging Face configuration.

Architectures differ from Llama in a few places, and each place is a field here. One that differs
elsewhere is not covered: ``blueprint_of`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Family:
    """How the models of one ``model_type`` differ from Llama."""

    # Of attention and of the feed-forward block: before them, or after them where ``norms_after``.
    norm: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    norms_after: bool = False
    norm_offset: float = 0.0
    query_norm: str = ""  # of queries and keys: ``head`` by head, ``whole`` across all heads; or none
    fused: bool = False
    gated: bool = True
    scaled_embedding: bool = False


_LLAMA = Family()
_OLMO = Family(
    norm=("post_attention_layernorm", "post_feedforward_layernorm"), norms_after=True, query_norm="whole"
)
FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": Family(query_norm="head"),
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "olmo2": _OLMO,
    "gemma": Family(norm_offset=1.0, scaled_embedding=True),
    "phi3": Family(fused=True),
    "arcee": Family(gated=False),
    "seed_oss": _LLAMA,
    "cwm": _LLAMA,
}
"""By ``model_type``; each is compared with transformers in the tests."""

ACTIVATIONS = frozenset({"silu", "gelu_pytorch_tanh", "relu2"})
_HEAD_UNIT = 16


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model's shape and what its layers do."""

    family: Family
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float
    activation: str
    scale: float
    windows: tuple[int | None, ...]
    rotates: tuple[bool, ...]
    embedding_scale: float
    residual_scale: float  # of what every block adds
    logit_scale: float
    frequencies: Tensor = field(repr=False)
    rotary_scale: float = 1.0

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return [out, in] of every matrix, by the last part of its name."""
        queries, shared = self.heads * self.head_dim, self.kv_heads * self.head_dim
        wide, hidden = self.intermediate, self.hidden
        return {
            "embed_tokens": (self.vocab_size, hidden),
            "lm_head": (self.vocab_size, hidden),
            "qkv_proj": (queries + 2 * shared, hidden),
            "q_proj": (queries, hidden),
            "k_proj": (shared, hidden),
            "v_proj": (shared, hidden),
            "o_proj": (hidden, queries),
            "gate_up_proj": (2 * wide, hidden),
            "gate_proj": (wide, hidden),
            "up_proj": (wide, hidden),
            "down_proj": (hidden, wide),
        }

    @property
    def layer_entries(self) -> int:
        attention = (self.heads + self.kv_heads) * self.head_dim
        return self.hidden * (2 * attention + (3 if self.family.gated else 2) * self.intermediate)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values in float32 per cached token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4


class NotCovered(Exception):
    """The forward cannot be built; the message says what is in the way."""


def blueprint_of(config: Any) -> Blueprint:
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise NotCovered(f"the architecture {config.model_type} is not covered")
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if activation not in ACTIVATIONS:
        raise NotCovered(f"the activation {activation} is not covered")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim % _HEAD_UNIT:
        raise NotCovered(f"heads of {head_dim} are not covered, only multiples of {_HEAD_UNIT}")
    frequencies, rotary_scale = _rotary_frequencies(config, head_dim)
    return Blueprint(
        family=family,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim,
        vocab_size=config.vocab_size,
        epsilon=config.rms_norm_eps,
        activation=activation,
        scale=float(getattr(config, "attention_multiplier", None) or head_dim**-0.5),
        windows=_windows(config),
        rotates=tuple(map(bool, getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers)),
        embedding_scale=float(
            config.hidden_size**0.5
            if family.scaled_embedding
            else getattr(config, "embedding_multiplier", 1.0)
        ),
        residual_scale=float(getattr(config, "residual_multiplier", 1.0)),
        logit_scale=1.0 / float(getattr(config, "logits_scaling", 1.0)),
        frequencies=frequencies,
        rotary_scale=rotary_scale,
    )


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        used = window if getattr(config, "use_sliding_window", True) else None
        return tuple([used] * config.num_hidden_layers)
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise NotCovered(f"layers of the kind {', '.join(sorted(unknown))} are not covered")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rotary_frequencies(config: Any, head_dim: int) -> tuple[Tensor, float]:
    """With the factor of sines and cosines, by transformers' own formulas."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    # Others have frequencies that depend on the sequence length.
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise NotCovered(f"the rotary embedding {kind} is not covered")
    if float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise NotCovered("a rotary embedding of a part of each head is not covered")
    if "rope_theta" not in rope:
        raise NotCovered("rotary embeddings that differ by layer are not covered")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (rope["rope_theta"] ** exponents), 1.0
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config)
    return frequencies, float(scale)


_ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "relu": "relu"}


@dataclass(frozen=True, slots=True)
class T5Plan:
    """An encoder and a decoder of one width; positions rotate nothing."""

    encoder: Blueprint
    decoder: Blueprint
    buckets: int
    far: int

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        plan = self.decoder
        queries = plan.heads * plan.head_dim
        hidden = plan.hidden
        wide = plan.intermediate
        inner = dict.fromkeys(("q", "k", "v"), (queries, hidden)) | {"o": (hidden, queries)}
        outer = dict.fromkeys(("wi", "wi_0", "wi_1"), (wide, hidden)) | {"wo": (hidden, wide)}
        return inner | outer | dict.fromkeys(("shared", "lm_head"), (plan.vocab_size, hidden))

    def buckets_of(self, distances: Tensor, *, both_sides: bool) -> Tensor:
        """Return the bucket of each relative position, by transformers' own formula."""
        from transformers.models.t5.modeling_t5 import T5Attention

        buckets: Tensor = T5Attention._relative_position_bucket(distances, both_sides, self.buckets, self.far)
        return buckets


def t5_plan(config: Any) -> T5Plan:
    if config.model_type != "t5":
        raise NotCovered(f"the architecture {config.model_type} is not covered")
    if config.dense_act_fn not in _ACTIVATIONS:
        raise NotCovered(f"the activation {config.dense_act_fn} is not covered")
    encoder, decoder = (_t5_stack(config, n) for n in (config.num_layers, config.num_decoder_layers))
    return T5Plan(
        encoder, decoder, config.relative_attention_num_buckets, config.relative_attention_max_distance
    )


def _t5_stack(config: Any, layers: int) -> Blueprint:
    return Blueprint(
        family=Family(gated=config.is_gated_act),
        layers=layers,
        hidden=config.d_model,
        intermediate=config.d_ff,
        heads=config.num_heads,
        kv_heads=config.num_heads,
        head_dim=config.d_kv,
        vocab_size=config.vocab_size,
        epsilon=config.layer_norm_epsilon,
        activation=_ACTIVATIONS[config.dense_act_fn],
        scale=1.0,
        windows=(None,) * layers,
        rotates=(False,) * layers,
        embedding_scale=1.0,
        residual_scale=1.0,
        logit_scale=config.d_model**-0.5 if config.scale_decoder_outputs else 1.0,
        frequencies=torch.empty(0),
    )
