"""Models in the formats of other engines: made once of a Hugging Face folder, and kept in the cache.

converted/HASH-FORM/           by the content of the model, and whole: made beside it and renamed
converted/HASH-FORM.lock       held while it is made
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spsbench.base import FLOAT32, UnavailableError, UsageError
from spsbench.models import cache_dir, locked, megabytes, require_disk, watcher, written_whole
from spsbench.parts.external.install import Environment, clean_environment, run
from spsbench.parts.external.launch import LAUNCH
from spsbench.parts.external.quantised import block_type, blocks, write_float32
from spsbench.parts.external.recurrent_gguf import RECURRENT
from spsbench.parts.external.workers.onnxruntime_genai import HALF_LOGITS

if TYPE_CHECKING:
    from torch import Tensor


WEIGHTS = "model.safetensors"
_GGUF, _EXACT = "model.gguf", "exact.npz"
_LOGITS = "logits"
_HASHED = ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)
_VERSION = "v2"
"""Of the way models are converted: another one makes new folders."""

_SAVE_OPENVINO = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""
_BUILD_ONNX = """
import runpy, sys
site = sys.argv.pop(1)
sys.path.append(site)  # after our own: torch, transformers and onnx are ours, onnx_ir is the engine's
sys.path.insert(0, site + "/onnxruntime_genai/models")
runpy.run_path(site + "/onnxruntime_genai/models/builder.py", run_name="__main__")
"""


def gguf(model: Path, dtype: str = "float32") -> Path:
    """A GGUF file of the model, its matrices in ``float32``, ``float16``, ``q8_0`` or ``q4_k``."""
    if read_config(model, RECURRENT)["model_type"] in RECURRENT and dtype != FLOAT32:
        why = f"{model} has a recurrent state, and its weights are written in float32 alone."
        raise UsageError(why, flag="--weights", remedy="Leave --weights out.")
    return _converted_once(model, f"gguf-{dtype}", lambda out: write_gguf(model, out / _GGUF, dtype)) / _GGUF


def onnx(model: Path, environment: Environment, weights: str = FLOAT32) -> Path:
    """A folder of ONNX Runtime GenAI's builder in float32, ``int8`` or ``int4``.

    The builder is that of the engine's environment and runs on our interpreter, which has torch. Beside a
    prediction module the target's graph comes a second time, see ``HALF_LOGITS``.
    """

    def build(out: Path) -> None:
        site = environment.packages
        scratch = out / "scratch"
        precision = "fp32" if weights == FLOAT32 else weights
        flags: list[str | Path] = ["-i", model, "-o", out, "-p", precision, "-e", "cpu", "-c", scratch]
        _call([sys.executable, "-c", _BUILD_ONNX, site, *flags])
        shutil.rmtree(scratch, ignore_errors=True)
        if (out / "mtp.onnx").is_file():
            _halve_logits(out / "model.onnx", out / HALF_LOGITS)

    form = "" if weights == FLOAT32 else f"-{weights}"
    return _converted_once(model, f"onnx-{_converter_release(environment)}{form}", build)


def _halve_logits(graph_file: Path, out: Path) -> None:
    """Of a graph that is written again; its weights stay where they are."""
    import onnx

    model = onnx.load(str(graph_file), load_external_data=False)
    unrounded, half = f"{_LOGITS}_float32", onnx.TensorProto.FLOAT16
    for node in model.graph.node:
        node.output[:] = [unrounded if name == _LOGITS else name for name in node.output]
    model.graph.node.append(onnx.helper.make_node("Cast", [unrounded], [_LOGITS], to=half))
    next(each for each in model.graph.output if each.name == _LOGITS).type.tensor_type.elem_type = half
    onnx.save(model, str(out))


def read_back(model: Path, served: Path) -> Path:
    """A Hugging Face folder with a served file's weights in float32, whose law is the engine's."""
    form = (served.parent if served.is_file() else served).name.partition("-")[2]
    return _converted_once(model, f"{form}-read", lambda out: write_float32(model, served, out))


def openvino(model: Path, environment: Environment) -> Path:
    """In float32, by way of a GGUF file in float16, the only form that OpenVINO reads."""
    read_config(model)

    def build(out: Path) -> None:
        write_gguf(model, out / _GGUF, "float16")
        _call([environment.python, "-c", _SAVE_OPENVINO, out / _GGUF])
        np.savez(out / _EXACT, **_exact_arrays(model))
        _call([environment.python, LAUNCH, "spsbench.parts.external.workers.openvino", out, out / _EXACT])
        for name in (_GGUF, _EXACT):
            (out / name).unlink()

    return _converted_once(model, f"openvino-{_converter_release(environment)}", build)


def _exact_arrays(model: Path) -> dict[str, Any]:
    """Every weight, and the rotation's frequencies as transformers computes them."""
    import torch
    from safetensors.torch import load_file

    config = read_config(model)
    width = head_width(config)
    powers = torch.arange(0, width, 2, dtype=torch.float32) / width
    frequencies = 1.0 / config["rope_parameters"]["rope_theta"] ** powers
    state = load_file(model / WEIGHTS) | {"inverse frequencies": frequencies}
    return {name: tensor.float().numpy() for name, tensor in state.items()}


def _converted_once(model: Path, form: str, build: Callable[[Path], None]) -> Path:
    """The folder of a model in a form, made if it is missing; a second process waits for the first."""
    folder = cache_dir() / "converted" / f"{_content_sha256(model)[:16]}-{form}-{_VERSION}"
    if folder.is_dir():
        return folder
    with locked(folder, f"{model.name} as {form}"):
        if not folder.is_dir():  # another process may have made it meanwhile
            size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
            # bfloat16 to float32, and what is made on the way.
            require_disk(6 * size, f"{model.name} as {form}")
            watcher().said(f"Converting {model.name} ({megabytes(size)}) to {form}, once")
            with written_whole(folder) as partial:
                build(partial)
    return folder


def _content_sha256(model: Path) -> str:
    """Of the model's files, so that other weights of the same name are converted again."""
    digest = hashlib.sha256()
    files = [model / name for name in _HASHED] + sorted(model.glob("model-*.safetensors*"))
    if not (model / "config.json").is_file():
        raise UnavailableError(f"{model} has no config.json.", remedy="Give a Hugging Face folder.")
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _converter_release(environment: Environment) -> str:
    """Of an environment's converting packages; another release converts again."""
    names = ("openvino_genai", "onnxruntime_genai", "onnxruntime_genai_cuda")
    folders = [path for name in names for path in environment.packages.glob(f"{name}-*.dist-info")]
    return folders[0].name.removesuffix(".dist-info").partition("-")[2] if folders else "unknown"


def _call(command: list[str | Path]) -> None:
    run(command, cache_dir() / "converted" / "log.txt", clean_environment())


_DTYPES = {"float32": np.float32, "float16": np.float16}


def _inconvertible(why: str) -> UsageError:
    return UsageError(
        why,
        remedy="Only Llama models in one safetensors file, without biases and scaled rotation, can be "
        "converted; for llama.cpp Mamba and LFM2 too.",
    )


def write_gguf(folder: Path, out: Path, dtype: str) -> None:
    """Convert a model; matrices in ``dtype`` (see ``gguf``), norms in float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
    from safetensors.torch import load_file

    config = read_config(folder, RECURRENT)
    state = load_file(folder / WEIGHTS)
    recurrent = RECURRENT.get(config["model_type"])
    writer = GGUFWriter(out, "llama" if recurrent is None else recurrent.architecture)
    try:
        kinds = {"float32": LlamaFileType.ALL_F32, "float16": LlamaFileType.MOSTLY_F16}
        kinds |= {"q8_0": LlamaFileType.MOSTLY_Q8_0, "q4_k": LlamaFileType.MOSTLY_Q4_K_M}
        writer.add_file_type(kinds[dtype])
        _add_common_fields(writer, config)
        if recurrent is None:
            _add_llama(writer, config)
        else:
            recurrent.describe(writer, config, state)
        _add_vocabulary(writer, folder, config)
        for name, array in _gguf_tensors(state, config, dtype):
            kind = "F32" if dtype in _DTYPES or array.ndim == 1 else block_type(name, array.shape[1], dtype)
            if kind == "F32":
                writer.add_tensor(name, array)
            else:
                writer.add_tensor(name, blocks(array, kind), raw_dtype=GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def read_config(folder: Path, others: Collection[str] = ()) -> dict[str, Any]:
    """A model's configuration that can be written, with the rotation under ``rope_parameters``.

    ``others`` are the types beside Llama that can be.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    scaled = config.get("rope_scaling") or rope.get("rope_type", "default") != "default"
    if config["model_type"] not in ("llama", *others) or scaled:
        raise _inconvertible(f"{folder} is of another architecture.")
    if not (folder / WEIGHTS).is_file():
        raise _inconvertible(f"{folder} has no {WEIGHTS}.")
    return config | {"rope_parameters": rope}


def head_width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _add_common_fields(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_name("model")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_vocab_size(config["vocab_size"])


def _add_llama(writer: Any, config: Mapping[str, Any]) -> None:
    width = head_width(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config["rope_parameters"]["rope_theta"]))


def _add_vocabulary(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    """Write byte-level BPE. Prompts come as ids, so the pre-tokenizer's name only has to be a known one.

    llama.cpp ends a text at every control token whose name it knows from some model, such as
    ``<|endoftext|>``; those that do not end this one are given another name.
    """
    from gguf import TokenType

    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = dict(tokenizer["model"]["vocab"]) | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    names = {number: name for name, number in ids.items()}
    merges = tokenizer["model"]["merges"] or ["a b"]  # without one the file is refused
    ends = config["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    end = ends[0]
    control = {number for number, name in names.items() if name in special}
    names |= {number: f"[{names[number]}]" for number in control - {*ends}}
    numbers = range(config["vocab_size"])
    tokens = [names.get(number, f"[unused{number}]") for number in numbers]
    kinds = [TokenType.CONTROL if number in control else TokenType.NORMAL for number in numbers]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_bos_token_id(end)  # there must be one; it is never added
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end if config.get("pad_token_id") is None else config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _gguf_tensors(
    state: Mapping[str, Tensor], config: Mapping[str, Any], dtype: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    from gguf import MODEL_ARCH, get_tensor_name_map

    recurrent = RECURRENT.get(config["model_type"])
    names = get_tensor_name_map(MODEL_ARCH[config["model_type"].upper()], config["num_hidden_layers"])
    heads = {}
    if recurrent is None:
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias") if recurrent else (".weight",))
        if gguf_name is None:
            raise _inconvertible(f"tensor {name} has no place in a GGUF file of type {config['model_type']}.")
        if recurrent is not None:
            tensor = recurrent.changed(name, tensor)
        kind = gguf_name.split(".")[-2]
        if kind in heads:
            tensor = _interleaved_halves(tensor, heads[kind])
        dtype_of_file = np.float32 if tensor.ndim == 1 else _DTYPES.get(dtype, np.float32)
        yield gguf_name, np.ascontiguousarray(tensor.float().numpy().astype(dtype_of_file))


def _interleaved_halves(tensor: Tensor, heads: int) -> Tensor:
    """Of each head's rows: (0, 1, .. | n/2, ..) become 0, n/2, 1, n/2 + 1, ..."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)
