"""Targets with a recurrent state as GGUF files: Mamba, and LFM2, whose layers are convolutions and attention.

As llama.cpp's own converter writes them. They are in float32 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_ENDLESS = 1 << 20
"""Context of a model without positions."""


@dataclass(frozen=True)
class Recurrent:
    """How a ``model_type`` is written: its fields, and a tensor by its name in the Hugging Face folder."""

    architecture: str
    describe: Callable[[Any, Mapping[str, Any], Mapping[str, Tensor]], None]
    changed: Callable[[str, Tensor], Tensor]


def _describe_mamba(writer: Any, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    writer.add_context_length(_ENDLESS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(float(config["layer_norm_epsilon"]))
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["intermediate_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])
    writer.add_ssm_dt_b_c_rms(False)


def _describe_lfm2(writer: Any, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    writer.add_context_length(config["max_position_embeddings"])
    # The configuration's width is adjusted before it becomes a matrix.
    writer.add_feed_forward_length(state["model.layers.0.feed_forward.w1.weight"].shape[0])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([config["num_key_value_heads"] if each else 0 for each in attends])
    writer.add_layer_norm_rms_eps(float(config["norm_eps"]))
    writer.add_rope_freq_base(float(config["rope_parameters"]["rope_theta"]))
    writer.add_shortconv_l_cache(config["conv_L_cache"])


def _of_mamba(name: str, tensor: Tensor) -> Tensor:
    if name.endswith(".A_log"):
        return -tensor.float().exp()
    return tensor.squeeze(1) if name.endswith(".conv1d.weight") else tensor


def _of_lfm2(name: str, tensor: Tensor) -> Tensor:
    return tensor.squeeze(1) if name.endswith(".conv.conv.weight") else tensor


RECURRENT: Mapping[str, Recurrent] = {
    "mamba": Recurrent("mamba", _describe_mamba, _of_mamba),
    "lfm2": Recurrent("lfm2", _describe_lfm2, _of_lfm2),
}
"""By ``model_type``."""
