"""Writes a Llama-class Hugging Face folder as a GGUF file, version 3.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The rotation of llama.cpp's ``llama``
takes neighbours as pairs where transformers takes halves, so queries and keys are permuted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5
_TYPES = {"float32": (0, np.float32), "float16": (1, np.float16)}
"""Tensor type (and ``general.file_type``, which counts alike here) and what numpy calls it."""
_NORMAL, _CONTROL = 1, 3
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

Value = int | float | bool | str | list[str] | list[int]


def write_gguf(folder: Path, out: Path, dtype: str) -> None:
    """Convert a model; matrices in ``dtype`` (``float32``, ``float16``), norms in float32.

    Raises:
        ValueError: the model is not of Llama's class, or not in one safetensors file.
    """
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    if config["model_type"] != "llama" or rope.get("rope_type", "default") != "default":
        raise ValueError(f"{folder}: only Llama models without scaled rotation can be written as GGUF")
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder} has no model.safetensors")
    tensors = list(_tensors(load_file(folder / "model.safetensors"), config, dtype))
    facts = _architecture(config, _TYPES[dtype][0]) | _vocabulary(folder, config)
    with out.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)))
        for key, value in facts.items():
            file.write(_string(key) + _value(key, value))
        offset = 0
        for name, array in tensors:
            kind = 0 if array.dtype == np.float32 else 1
            shape = array.shape[::-1]
            file.write(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
            offset += array.nbytes + -array.nbytes % _ALIGNMENT
        _pad(file)
        for _, array in tensors:
            file.write(np.ascontiguousarray(array).tobytes())
            _pad(file)


def _architecture(config: Mapping[str, Any], file_type: int) -> dict[str, Value]:
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config
    return {
        "general.architecture": "llama",
        "general.name": "model",
        "general.file_type": file_type,
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": width,
        "llama.attention.value_length": width,
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.dimension_count": width,
        "llama.rope.freq_base": float(rope["rope_theta"]),
        "llama.vocab_size": config["vocab_size"],
    }


def _vocabulary(folder: Path, config: Mapping[str, Any]) -> dict[str, Value]:
    """Byte-level BPE. Prompts come as ids, so the pre-tokenizer's name only has to be a known one."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = dict(tokenizer["model"]["vocab"]) | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens = sorted(ids, key=ids.__getitem__)
    merges = tokenizer["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if token in special else _NORMAL for token in tokens],
        "tokenizer.ggml.merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": config["eos_token_id"],  # there must be one; it is never added
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
    }


def _tensors(
    state: Mapping[str, Tensor], config: Mapping[str, Any], dtype: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        theirs = _WHOLE.get(name) or _in_layer(name)
        kind = theirs.split(".")[-2]
        if kind in heads:
            tensor = _neighbours(tensor, heads[kind])
        wanted = np.float32 if tensor.ndim == 1 else _TYPES[dtype][1]
        yield theirs, tensor.float().numpy().astype(wanted)


def _in_layer(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    head, _, rest = name.partition("model.layers.")
    index, _, inner = rest.partition(".")
    ours = _LAYER.get(inner.removesuffix(".weight"))
    if head or ours is None:
        raise ValueError(f"tensor {name} has no place in a GGUF file of Llama's class")
    return f"blk.{index}.{ours}.weight"


def _neighbours(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head, halves (0, 1, .. | n/2, ..) interleaved: 0, n/2, 1, n/2 + 1, ..."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(key: str, value: Value) -> bytes:
    """Type and content."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    kind = _INT32 if key.endswith("token_type") else _STRING
    items = [struct.pack("<i", x) if isinstance(x, int) else _string(x) for x in value]
    return struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(items)


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGNMENT))
