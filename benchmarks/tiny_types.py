"""A tiny configuration of any model type that the installed transformers knows.

A type's default configuration is shrunk by the names of its fields: width 64, as many layers as it has kinds
of layers, windows of 16, four experts. What only one type calls so is in ``_OWN``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

VOCABULARY, PADDING, START, END = 259, 256, 256, 257
"""Of the byte-level tokenizer: a token per byte, then BOS, EOS and one for padding."""

WINDOW = 16
_LAYERS = 2
"""At least, which a list of layers with more kinds exceeds."""

_LAYER_COUNTS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
    "num_decoder_layers", "num_encoder_layers", "depth", "num_blocks", "resampler_depth", "max_window_layers",
    "conf_num_hidden_layers", "num_hidden_layers_per_stack", "encoder_depth",
)  # fmt: skip

_TEXT: dict[str, int] = dict.fromkeys(
    ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "word_embed_proj_dim", "lru_width",
     "embedding_size", "input_embedding_size", "output_embedding_size", "attention_hidden_size",
     "embedding_dim", "dim_model_base", "hidden_size_global", "moe_hidden_size", "projection_dim",
     "out_hidden_size", "text_hidden_size", "decoder_hidden_size", "projection_hidden_size", "mm_hidden_size",
     "projector_hidden_size", "entity_emb_size", "cross_attention_hidden_size", "output_dim"), 64
) | dict.fromkeys(
    ("intermediate_size", "moe_intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim",
     "n_inner", "ffn_hidden_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size", "dim_ff",
     "shared_intermediate_size", "moe_shared_expert_intermediate_size", "intermediate_size_mlp", "d_inner",
     "feed_forward_size", "share_expert_dim", "moe_ffn_dim", "shared_experts_intermediate_size",
     "expert_intermediate_size", "expert_hidden_size", "router_hidden_size"), 64
) | dict.fromkeys(
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads",
     "decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads",
     "num_sliding_attention_heads", "swa_num_attention_heads", "linear_num_heads",
     "linear_num_value_heads"), 4
) | dict.fromkeys(
    ("num_key_value_heads", "swa_num_key_value_heads", "num_global_key_value_heads", "kv_n_heads",
     "num_kv_heads", "linear_num_key_heads"), 2
) | dict.fromkeys(
    ("head_dim", "swa_head_dim", "global_head_dim", "d_kv", "d_head", "attention_head_size", "kv_lora_rank",
     "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "linear_key_head_dim", "linear_value_head_dim",
     "linear_head_dim", "hidden_size_per_layer_input", "index_head_dim", "dim_head",
     "sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "sliding_window_size",
     "local_attention", "rotary_dim", "kv_channels", "swa_v_head_dim", "qk_rope_head_dim",
     "adapter_rank", "prompt_mid_dim", "num_buckets", "o_lora_rank"), WINDOW
) | dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4
) | dict.fromkeys(
    ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts",
     "zero_expert_num"), 2
) | {
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "decoder_vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "n_positions": 512, "n_ctx": 512, "max_seq_len": 512,
    "context_length": 512,
    "max_target_positions": 512, "max_source_positions": 512, "original_max_position_embeddings": 512,
    "qk_head_dim": 32, "n_group": 1, "topk_group": 1, "num_expert_group": 1, "n_groups": 2,
    "mamba_d_state": 16,
    "state_size": 16, "ssm_state_size": 16, "index_topk": 8, "index_n_heads": 16, "mamba_n_groups": 1,
    "mamba_chunk_size": 16, "chunk_size": 16, "block_size": 16, "head_k_dim": 16,
    "query_pre_attn_scalar": 16, "type_vocab_size": 2, "num_kv_shared_layers": 0, "altup_num_inputs": 2,
    "laurel_rank": 8, "mlp_dim": 64, "first_k_dense_replace": 1, "num_dense_layers": 1,
    "rel_extent": 64, "d_rel": 8, "compress_rate": 4,
}  # fmt: skip
"""Of the text model: sizes by name."""

_TOWER: dict[str, int] = {
    "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_heads": 2, "embed_dim": 32,
    "d_model": 32, "num_key_value_heads": 2, "head_dim": 16, "mlp_dim": 32, "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "projection_dim": 32,
    "out_hidden_size": 64, "text_hidden_size": 64, "output_dim": 64, "projector_hidden_size": 64,
    "image_size": 56, "patch_size": 14, "num_position_embeddings": 16, "attention_heads": 2,
    "hidden_size_per_layer_input": 16,
}  # fmt: skip
"""Of a tower of images or sounds, which a text never enters."""

_TEXT_PARTS = ("text_config", "decoder", "decoder_config", "text_encoder", "thinker_config", "llm_config")

_TOKENS = ("_token_id", "_token_index", "_index_id")

DROPPED = object()
"""In place of a field's value: the field goes, and its class derives it."""

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
_SECTIONS = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_HALF = _SECTIONS | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
_QSA = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
_BOTH_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

_OWN: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "granitemoehybrid": _MAMBA | {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "cohere_compass_text": {"rope_parameters": _BOTH_ROPES},
    "cohere_compass": {"text_config.rope_parameters": _BOTH_ROPES},
    "dbrx": {"attn_config.rope_theta": 10_000.0, "attn_config.clip_qkv": 8.0},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl": {"text_config.head_dim": 16, "text_config.rope_parameters": _SECTIONS},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_hidden_layers": 4},
    "lfm2_vl": {
        "text_config.layer_types": ["conv", "conv", "full_attention", "conv"],
        "text_config.num_hidden_layers": 4,
    },
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_hidden_layers": 4},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_hidden_layers": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_hidden_layers": 4,
        "hybrid_layer_ids": DROPPED,
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "mamba_ngroups": 1,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "chameleon": {"vocabulary_map": {"<image>": 257}},
    "glm46v": {"text_config.rope_parameters": _HALF},
    "glm4v": {"text_config.rope_parameters": _SECTIONS},
    "glm4v_moe": {"text_config.rope_parameters": _HALF},
    "glm_ocr": {"text_config.rope_parameters": _SECTIONS},
    "glmga": {"text_config.rope_parameters": _SECTIONS},
    "paddleocr_vl": {"text_config.rope_parameters": _SECTIONS},
    "qwen2_5_omni_thinker": {"text_config.rope_parameters": _SECTIONS},
    "qwen2_5_vl": {"text_config.rope_parameters": _SECTIONS},
    "qwen2_vl": {"text_config.rope_parameters": _SECTIONS},
    "glm5_next": {"text_config.index_kpool": 4},
    "molmo2": {"adapter_config.vision_feature_layer": [0, 0]},
    "step3p7": {"text_config.sliding_window": 16},
    "gemma4_assistant": {
        "text_config.hidden_size_per_layer_input": 0,
        "text_config.vocab_size_per_layer_input": 0,
    },
    "qwen4_exp_text": _QSA,
    "qwen4_exp": {f"text_config.{name}": value for name, value in (_QSA | {"vocab_size": 272}).items()},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": [16, 48],
        "axial_pos_shape": [16, 32],
        "lsh_attn_chunk_length": 16,
        "local_attn_chunk_length": 16,
    },
    "emu3": {
        "vq_config.base_channels": 32,
        "vq_config.z_channels": 32,
        "vq_config.num_res_blocks": 1,
        "vocabulary_map": {"<image>": 257},
    },
    "dots3_note": {
        "text_config.per_layer_config.2.head_dim": 32,
        "vision_config.adapter_in_dim": 32,
        "vision_config.adapter_out_dim": 64,
        "audio_config.adapter_input_size": 32,
        "audio_config.adapter_out_dim": 64,
    },
    "dots3_note_text": {"per_layer_config.2.head_dim": 32},
    "deepseek_ocr2": {
        "text_config.num_experts_per_tok": 2,
        "text_config.mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "ernie4_5_vl_moe": {"text_config.rope_parameters": _SECTIONS | {"mrope_section": [3, 3, 2]}},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "4/8", "vision_config.hidden_size": 64},
    "perception_lm": {"vision_config.model_args": {"embed_dim": 32}},
    "mistral4": {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "head_dim": DROPPED, "qk_head_dim": DROPPED},
    "blt": {"encoder_hash_byte_group_vocab": 100},
}
"""By type: fields, a dotted path each, that no rule finds."""


def tiny_settings(kind: str) -> dict[str, Any]:
    """Return the shrunk settings of a type, as its configuration class takes them."""
    from transformers import CONFIG_MAPPING

    kind, is_decoder, _ = kind.partition(DECODER)
    try:
        settings = CONFIG_MAPPING[kind]().to_dict()
    except Exception:  # a default that its own class refuses
        settings = {"model_type": kind}
    settings = _shrunk(settings, is_tower=False)
    for path, value in _OWN.get(kind, {}).items():
        *way, last = path.split(".")
        place = settings
        for step in way:
            place = place.setdefault(step, {})
        if value is DROPPED:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return settings | ({"is_decoder": True} if is_decoder else {})


def tiny_config(kind: str, **changes: Any) -> Any:
    """Return a tiny configuration of a type."""
    from transformers import CONFIG_MAPPING

    settings = tiny_settings(kind)
    settings.pop("model_type", None)
    return CONFIG_MAPPING[kind.partition(DECODER)[0]](**settings | changes)


def _shrunk(settings: Mapping[str, Any], *, is_tower: bool) -> dict[str, Any]:
    """Shrink a (sub)configuration; lists with an entry for each layer keep an entry of each kind."""
    sizes = _TOWER if is_tower else _TEXT
    count = next((settings[name] for name in _LAYER_COUNTS if isinstance(settings.get(name), int)), 0)
    kept = _kept_layers(settings, count, 1 if is_tower else _LAYERS)
    small: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _NOT_SIZES:
            continue
        if isinstance(value, Mapping):
            small[name] = _small_part(str(name), value, kept, is_tower=is_tower)
        elif isinstance(value, list):
            small[name] = [value[i] for i in kept] if count and len(value) == count else value
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            small[name] = value
        else:
            small[name] = _small_number(str(name), value, sizes, len(kept))
    if isinstance(small.get("num_key_value_heads"), int) and isinstance(
        settings.get("num_attention_heads"), int
    ):
        whole = settings["num_key_value_heads"] == settings["num_attention_heads"]
        small["num_key_value_heads"] = small["num_attention_heads"] if whole else small["num_key_value_heads"]
    return small


_NOT_SIZES = ("transformers_version", "id2label", "label2id", "architectures", "dtype", "_name_or_path")


def _small_part(name: str, value: Mapping[Any, Any], kept: list[int], *, is_tower: bool) -> dict[Any, Any]:
    """Return a shrunk mapping: positions, the layers that differ from others, or a configuration within."""
    if name.startswith("rope") or name == "quantization_config":
        return _small_rope(value)
    if name == "per_layer_config":  # heads wider than the others', so that layers differ
        return {
            str(new): _shrunk(value[key], is_tower=is_tower)
            | ({"head_dim": 2 * WINDOW} if "head_dim" in value[key] else {})
            for new, old in enumerate(kept)
            for key in value
            if int(key) == old
        }
    return _shrunk(value, is_tower=is_tower or (name.endswith("_config") and name not in _TEXT_PARTS))


def _small_number(name: str, value: float, sizes: Mapping[str, int], layers: int) -> float:
    if name in _LAYER_COUNTS:
        return min(value, layers or 1)
    if name.endswith(_TOKENS) or name.startswith("forced_"):
        return int(_small_token(name, value))
    return min(value, sizes[name]) if name in sizes and value > 0 else value


def _kept_layers(settings: Mapping[str, Any], count: int, most: int) -> list[int]:
    """Return which layers stay: the first of each kind, then the first others, the last one of all last."""
    lists = [v for v in settings.values() if isinstance(v, list) and count and len(v) == count]
    kinds: dict[Any, int] = {}
    for index in range(count):
        kinds.setdefault(str([part[index] for part in lists]), index)
    wanted: list[int] = sorted(kinds.values())[: max(most, 6)]
    for index in (count - 1, *range(count)):
        if index not in wanted and index >= 0 and len(wanted) < min(most, count):
            wanted.append(index)
    return sorted(wanted)


def _small_rope(value: Mapping[str, Any]) -> dict[str, Any]:
    small = copy.deepcopy(dict(value))
    for part in (small, *(each for each in small.values() if isinstance(each, dict))):
        if "mrope_section" in part:
            part["mrope_section"] = [2, 3, 3]
        if "original_max_position_embeddings" in part:
            part["original_max_position_embeddings"] = 512
    return small


def _small_token(name: str, value: Any) -> Any:
    """Return an id of the small vocabulary; images' and sounds' lie behind it, so that no text holds one."""
    if name == "eos_token_id" or name.startswith("forced_"):
        return END
    if name in ("bos_token_id", "decoder_start_token_id", "pad_token_id", "sep_token_id", "cls_token_id"):
        return PADDING
    return value if value < 0 else 0


DECODER = "@decoder"
"""Behind a type that reads both ways unless its configuration has ``is_decoder``: that one."""

_READ_BOTH_WAYS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
    "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
    "xmod",
)  # fmt: skip


def known_types() -> dict[str, str]:
    """Return, by type, which it is: every causal model, BERT-like decoders, others of images and text."""
    from transformers.models.auto import modeling_auto as auto

    causal = dict.fromkeys(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "causal")
    beside: Iterable[str] = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    decoders = dict.fromkeys((kind + DECODER for kind in _READ_BOTH_WAYS), "decoder")
    return causal | decoders | {kind: "image-text" for kind in beside if kind not in causal}
