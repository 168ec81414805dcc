"""A tiny random Llama as a GGUF file, and wheels that hold one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import yaml
from support.tiny_models import config_of, make
from tokenizers import pre_tokenizers

VOCABULARY = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>", "ab"]
"""A token per byte, BOS, EOS, and the one merge that the format wants."""

_NAMES = {
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


def tiny_llama(seed: int = 0) -> Any:
    """A model whose rows are whole blocks of every quantisation; its head is its embedding."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": True}
    return make(config_of("llama", vocab_size=len(VOCABULARY), **sizes), seed)


def write_gguf(
    path: Path, model: Any, kind: str = "F32", architecture: str = "llama", *, named: bool = True
) -> Path:
    """Write a model as llama.cpp's converter does.

    Args:
        path: of the new file.
        model: of ``tiny_llama``.
        kind: how its matrices are stored, e.g. ``Q8_0``.
        architecture: as the file will name it.
        named: whether the file says how it is quantised.
    """
    config, stored = model.config, gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if named:
        kinds = {"F32": "ALL_F32"}
        writer.add_file_type(gguf.LlamaFileType[kinds.get(kind, f"MOSTLY_{kind}")])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(VOCABULARY.index("<s>"))
    writer.add_eos_token_id(VOCABULARY.index("</s>"))
    for name, weights in model.named_parameters():
        data = _permuted(name, weights.detach(), config).numpy()
        how = stored if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_name(name), gguf.quantize(data, how), raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[
            name
        ]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _permuted(name: str, weights: torch.Tensor, config: Any) -> torch.Tensor:
    """Rows of queries and keys in llama.cpp's order of rotated pairs."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weights
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    halves = weights.view(heads, 2, weights.shape[0] // heads // 2, weights.shape[1])
    return halves.transpose(1, 2).reshape(weights.shape).contiguous()


def write_wheel(path: Path, member: str, content: bytes) -> Path:
    """A wheel with one file, and a setup that must never run."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tiny/__init__.py", "raise SystemExit('a package was imported')")
    return path


def write_catalogue(folder: Path, name: str, wheel: Path, member: str, content: bytes) -> Path:
    """The folder that ``data_dir`` answers, with one packaged model."""
    folder.mkdir()
    stored = {"wheel": _stored(wheel.name, wheel.read_bytes()), "member": _stored(member, content)}
    about = {"model": "Tiny", "licence": "Apache-2.0", "package": "llm_Tiny", "version": "1.0"}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(about | stored | {"kept_bytes": 1_000_000}))
    return folder


def _stored(name: str, content: bytes) -> dict[str, Any]:
    return {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def state_of(model: Any) -> dict[str, np.ndarray]:
    """Its weights."""
    return {name: weights.detach().numpy() for name, weights in model.named_parameters()}
