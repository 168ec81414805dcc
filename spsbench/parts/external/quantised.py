"""Weights as they are served: GGUF's quantised blocks written, and the weights of a served file read back.

What is audited is the law of the very file that is served, so how well it was quantised does not matter.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spsbench.base import FLOAT32

Array = NDArray[Any]

GGUF, ONNX = ("q8_0", "q4_k"), ("int8", "int4")
"""Formats of llama.cpp's files, and of ONNX Runtime's."""

_SUPER, _SUB, _NARROW = 256, 32, 32


def block_type(name: str, width: int, weights: str) -> str:
    """As llama.cpp chooses it for rows of this width, but the head has 8 bits."""
    if width % _NARROW:
        return "F32"
    if weights == "q8_0" or name == "token_embd.weight":
        return "Q8_0"
    return "Q4_K" if width % _SUPER == 0 else "Q5_0"


def blocks(array: Array, kind: str) -> Array:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    return q4_k(array) if kind == "Q4_K" else np.asarray(quantize(array, GGMLQuantizationType[kind]))


def q4_k(array: Array) -> Array:
    """Quantise in blocks of 256: eight pairs of a scale and a minimum in 6 bits, and 4 bits a weight.

    Scales and minima are those of the range; llama.cpp's own tool searches for better ones.
    """
    parts = array.astype(np.float32).reshape(-1, _SUPER // _SUB, _SUB)
    lowest = -np.minimum(parts.min(-1), 0)
    scales = (parts.max(-1) + lowest) / 15
    d, dmin = (x.max(-1, keepdims=True).astype(np.float16) / np.float16(63) for x in (scales, lowest))
    wide, low = (x.astype(np.float32) for x in (d, dmin))
    sc, mn = (
        np.rint(np.divide(x, unit, out=np.zeros_like(x), where=unit > 0)).clip(0, 63).astype(np.uint8)
        for x, unit in ((scales, wide), (lowest, low))
    )
    step, shift = (wide * sc)[..., None], (low * mn)[..., None]
    q = np.rint(np.divide(parts + shift, step, out=np.zeros_like(parts), where=step > 0)).clip(0, 15)
    q = q.astype(np.uint8).reshape(-1, _SUPER // _SUB // 2, 2, _SUB)
    first = [x[:, :4] | (x[:, 4:] >> 4) << 6 for x in (sc, mn)]
    packed = [d.view(np.uint8), dmin.view(np.uint8), *first, (sc[:, 4:] & 15) | (mn[:, 4:] & 15) << 4]
    whole = np.concatenate([*packed, (q[:, :, 0] | q[:, :, 1] << 4).reshape(len(q), -1)], axis=1)
    return whole.reshape(*array.shape[:-1], -1)


def kinds_of(file: Path) -> str:
    """The types of a GGUF file's tensors, e.g. ``Q8_0 57, F32 17``."""
    from gguf import GGUFReader

    counts = Counter(tensor.tensor_type.name for tensor in GGUFReader(file).tensors)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def write_float32(model: Path, served: Path, out: Path) -> None:
    """Write a Hugging Face folder of the model with the weights of a served file, as float32."""
    from safetensors.torch import load_file, save_file
    from torch import from_numpy

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    weights = dict(_of_gguf(served, config) if served.is_file() else _of_onnx(served, config))
    names = set(load_file(model / "model.safetensors")) | {"lm_head.weight"}
    if missing := sorted(names - set(weights)):
        raise ValueError(f"{served.name} has no {missing[0]}")
    state = {name: from_numpy(np.array(weights[name], dtype=np.float32, order="C")) for name in sorted(names)}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    for path in model.glob("*.json*"):
        shutil.copy(path, out)
    config |= {"tie_word_embeddings": False, "dtype": FLOAT32}
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _of_gguf(file: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
    from gguf.quants import dequantize

    read = {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(file).tensors}
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name in _names(config):
        array = read.get(names.get_name(name, try_suffixes=(".weight",)), read["token_embd.weight"])
        count = heads.get(name.split(".")[-2])
        yield name, array if count is None else _halves(array, count)


def _halves(array: Array, heads: int) -> Array:
    """Undo the order of a head's rows that GGUF has: 0, n/2, 1, n/2 + 1, ..."""
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, array.shape[1])
    return np.swapaxes(pairs, 1, 2).reshape(array.shape)


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    yield from ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    parts = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    for layer in range(config["num_hidden_layers"]):
        for part in (*parts, "input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{part}.weight"


def _of_onnx(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """There matrices end in ``.MatMul``, and queries, keys and values are one."""
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(str(folder / "model.onnx")).graph
    plain = {each.name: to_array(each) for each in graph.initializer}
    read = {_ours(name): array.T if ".MatMul." in name else array for name, array in plain.items()}
    for node in (each for each in graph.node if each.op_type == "MatMulNBits"):
        attributes = {each.name: each.i for each in node.attribute}
        name, _, bits = node.input[1].rpartition("_Q")
        if len(node.input) > 3 or int(bits) != attributes["bits"]:
            raise ValueError(f"{node.name} is quantised in a way that is not known here")
        array = unpacked(plain[node.input[1]], plain[node.input[2]], attributes["bits"])[:, : attributes["K"]]
        read[_ours(name)] = array
    head = read["lm_head.weight"]
    read.setdefault("model.embed_tokens.weight", head)  # one matrix for both
    read["model.norm.weight"] = read[
        f"model.layers.{config['num_hidden_layers']}.final_norm_layernorm.weight"
    ]
    heads, most = config["num_key_value_heads"], config["num_attention_heads"]
    for name in _names(config):
        weight = read.get(name)
        if weight is None:
            before, _, after = name.partition(".self_attn.")
            joint = read[f"{before}.self_attn.qkv_proj.weight"]
            width = len(joint) // (most + 2 * heads)
            weight = np.split(joint, [most * width, (most + heads) * width])["qkv".index(after[0])]
        yield name, weight


def _ours(name: str) -> str:
    return name.replace(".attn.", ".self_attn.").replace(".MatMul.", ".")


def unpacked(packed: Array, scales: Array, bits: int) -> Array:
    """[N, K] weights of ``MatMulNBits`` without zero points; the lower half of a byte comes first."""
    q = packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    array = (q.astype(np.float32) - (1 << bits - 1)) * scales.reshape(*q.shape[:2], 1)
    return np.asarray(array.reshape(len(q), -1))
