"""Writes a Llama-class Hugging Face folder as a GGUF file.

The rotation of llama.cpp's ``llama`` takes neighbours as pairs where transformers takes halves, so queries
and keys are permuted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spsbench.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"

_DTYPES = {"float32": np.float32, "float16": np.float16}
_REMEDY = "Only Llama models in one safetensors file, without biases and scaled rotation, can be converted."


def write_gguf(folder: Path, out: Path, dtype: str) -> None:
    """Convert a model; matrices in ``dtype`` (``float32``, ``float16``), norms in float32."""
    from gguf import GGUFWriter, LlamaFileType
    from safetensors.torch import load_file

    config = read_config(folder)
    writer = GGUFWriter(out, "llama")
    try:
        kinds = {"float32": LlamaFileType.ALL_F32, "float16": LlamaFileType.MOSTLY_F16}
        writer.add_file_type(kinds[dtype])
        _add_architecture(writer, config)
        _add_vocabulary(writer, folder, config)
        for name, array in _tensors(load_file(folder / WEIGHTS), config, dtype):
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a model that can be written; the rotation's settings under ``rope_parameters``."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    scaled = config.get("rope_scaling") or rope.get("rope_type", "default") != "default"
    if config["model_type"] != "llama" or scaled:
        raise UsageError(f"{folder} is of another architecture.", remedy=_REMEDY)
    if not (folder / WEIGHTS).is_file():
        raise UsageError(f"{folder} has no {WEIGHTS}.", remedy=_REMEDY)
    return config | {"rope_parameters": rope}


def head_width(config: Mapping[str, Any]) -> int:
    """Of an attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _add_architecture(writer: Any, config: Mapping[str, Any]) -> None:
    width = head_width(config)
    writer.add_name("model")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config["rope_parameters"]["rope_theta"]))
    writer.add_vocab_size(config["vocab_size"])


def _add_vocabulary(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    """Byte-level BPE. Prompts come as ids, so the pre-tokenizer's name only has to be a known one."""
    from gguf import TokenType

    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = dict(tokenizer["model"]["vocab"]) | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    names = {number: name for name, number in ids.items()}
    tokens = [names.get(number, f"[unused{number}]") for number in range(config["vocab_size"])]
    merges = tokenizer["model"]["merges"]
    end = config["eos_token_id"]
    end = end[0] if isinstance(end, list) else end
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_bos_token_id(end)  # there must be one; it is never added
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end if config.get("pad_token_id") is None else config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _tensors(
    state: Mapping[str, Tensor], config: Mapping[str, Any], dtype: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        theirs = names.get_name(name, try_suffixes=(".weight",))
        if theirs is None:
            raise UsageError(f"tensor {name} has no place in a GGUF file of Llama's class.", remedy=_REMEDY)
        kind = theirs.split(".")[-2]
        if kind in heads:
            tensor = _neighbours(tensor, heads[kind])
        wanted = np.float32 if tensor.ndim == 1 else _DTYPES[dtype]
        yield theirs, np.ascontiguousarray(tensor.float().numpy().astype(wanted))


def _neighbours(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head, halves (0, 1, .. | n/2, ..) interleaved: 0, n/2, 1, n/2 + 1, ..."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)
