"""What a T5 computes, read from its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spsbench.models.blueprint import Blueprint, Family, NotCovered

_ACTIVATIONS = {"gelu_new": "gelu_pytorch_tanh", "relu": "relu"}


@dataclass(frozen=True, slots=True)
class T5Plan:
    """An encoder and a decoder of one width.

    Attributes:
        encoder, decoder: their shapes; positions rotate nothing.
    """

    encoder: Blueprint
    decoder: Blueprint
    buckets: int
    far: int

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """[out, in] of every matrix, by the last part of its name."""
        plan = self.decoder
        own, hidden, wide = plan.heads * plan.head_dim, plan.hidden, plan.intermediate
        inner = dict.fromkeys(("q", "k", "v"), (own, hidden)) | {"o": (hidden, own)}
        outer = dict.fromkeys(("wi", "wi_0", "wi_1"), (wide, hidden)) | {"wo": (hidden, wide)}
        return inner | outer | dict.fromkeys(("shared", "lm_head"), (plan.vocab_size, hidden))

    def buckets_of(self, distances: Tensor, *, both_sides: bool) -> Tensor:
        """The bucket of each relative position, by transformers' own formula."""
        from transformers.models.t5.modeling_t5 import T5Attention

        found: Tensor = T5Attention._relative_position_bucket(distances, both_sides, self.buckets, self.far)
        return found


def t5_plan(config: Any) -> T5Plan:
    """The plan of a configuration."""
    if config.model_type != "t5":
        raise NotCovered(f"the architecture {config.model_type} is not covered")
    if config.dense_act_fn not in _ACTIVATIONS:
        raise NotCovered(f"the activation {config.dense_act_fn} is not covered")
    encoder, decoder = (_half(config, n) for n in (config.num_layers, config.num_decoder_layers))
    return T5Plan(
        encoder, decoder, config.relative_attention_num_buckets, config.relative_attention_max_distance
    )


def _half(config: Any, layers: int) -> Blueprint:
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
