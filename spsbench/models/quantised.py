"""Weights of 8 or 4 bits over torch: torchao's weight-only quantisation, through transformers.

Linear layers are quantised. The input embedding and the output head stay as they are, as transformers
leaves them, and so do the few modules that an architecture keeps in float32. Activations stay floats, so
that a row hardly depends on how many are computed with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError, first_line
from spsbench.config.models import Precision
from spsbench.models.causal_lm import skeleton

LIBRARY = "torchao"
_FLAG = "--dtype"
EXTRA = "spsbench[large]"
"""What installs torchao and accelerate."""

GROUP = 32
"""Neighbours in a row of a matrix that share a scale and an offset at 4 bits."""

_ROWS_OF_INT4 = 16  # torch's packing on a CPU takes matrices of whole blocks of so many rows
_SCHEMES = {"int8": "weight-only, one scale a row", "int4": f"weight-only, groups of {GROUP}"}
_MARK = "spsbench_quantised"
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Quantised:
    bits: str  # ``int8`` or ``int4``
    by: str
    scheme: str
    layers: int
    share: float


def described(quantise: str) -> str:
    """Return the quantisation as tables show it.

    An example: ``int8 by torchao 0.18.0 (weight-only, one scale a row)``.
    """
    return f"{quantise} by {_library()} ({_SCHEMES[quantise]})"


def quantised_of(model: Any) -> Quantised | None:
    quantised: Quantised | None = getattr(model, _MARK, None)
    return quantised


def stored_bytes(parameter: torch.Tensor) -> int:
    """Return the bytes that a weight takes: a quantised one its packed values, scales and offsets.

    Of one that is split over processes those of all of them.
    """
    if isinstance(parameter, DTensor) or not hasattr(type(parameter), "__tensor_flatten__"):
        return parameter.nbytes
    names, _ = parameter.__tensor_flatten__()  # type: ignore[attr-defined]
    return sum(stored_bytes(getattr(parameter, name)) for name in names)


def require_readable(config: Any, method: str | None, device: torch.device, name: str, flag: str) -> None:
    """Refuse a checkpoint whose quantisation transformers cannot compute here; nothing is loaded.

    Weights that it would turn back into bfloat16, without a word, are refused too: their times would be those
    of another model.
    """
    if method is None:
        return
    from transformers.quantizers import AutoHfQuantizer

    kind: type[SpsbenchError] = UsageError
    cause = None
    try:
        merged = AutoHfQuantizer.merge_quantization_configs(config.quantization_config, None)
        quantizer = AutoHfQuantizer.from_config(merged, pre_quantized=True)
        place = None if device.type == "cpu" else {"": device}
        quantizer.validate_environment(device_map=place, weights_only=True)
        undone = getattr(quantizer.quantization_config, "dequantize", False) or method in _UNPACKED
        if not undone and not (method in _ON_GPUS and device.type == "cpu"):
            return
        where = "CPU" if device.type == "cpu" else "device"
        why = f"transformers would turn its weights back into bfloat16 on this {where}"
    except Exception as error:  # each method has its own
        cause = error
        why = first_line(error).split(" - supported types")[0]
        kind = UnavailableError if isinstance(error, ImportError) else UsageError
    needs = _NEEDS.get(method, "Install what it needs")
    raise kind(
        f"{name} is quantised by {method}, which cannot run here: {why.rstrip('.')}.",
        flag=flag,
        remedy=f"{needs}; or choose the unquantised checkpoint (--dtype int8 rounds it); or serve this "
        "one and time it by --engine openai:URL --concurrency 1.",
    ) from cause


_UNPACKED = ("compressed-tensors",)
"""Their weights are unpacked before, or in, the first forward."""
_ON_GPUS = ("fp8",)
_NEEDS = {
    "fp8": "It takes a GPU of compute capability 8.9 or more and accelerate",
    "mxfp4": "It takes a GPU of compute capability 7.5 or more, and `pip install accelerate kernels triton`",
    "awq": "It takes a GPU and `pip install gptqmodel accelerate`",
    "gptq": "`pip install optimum gptqmodel`",
    "bitsandbytes": "`pip install bitsandbytes accelerate`",
    "compressed-tensors": "No package makes transformers compute with these weights",
}
"""What runs the methods in use, by their names in config.json."""


def require_quantisable(
    config: Any, prequantised: str | None, precision: Precision, device: torch.device, name: str
) -> None:
    """Refuse what torchao cannot quantise here; nothing is loaded."""
    if precision.quantise is None:
        return
    if prequantised is not None:
        remedy = "Leave it out, or choose a checkpoint that is not quantised."
        raise UsageError(f"{name} is quantised by {prequantised} already.", flag=_FLAG, remedy=remedy)
    needed = [LIBRARY] if device.type == "cpu" else [LIBRARY, "accelerate"]
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        why = f"{precision.quantise} over torch needs {' and '.join(missing)}, which is not installed."
        remedy = f"pip install '{EXTRA}', or on a CPU use a model that onnxruntime computes in float32."
        raise UnavailableError(why, flag=_FLAG, remedy=remedy)
    if device.type not in ("cpu", "cuda"):
        why = f"{precision.quantise} over torch runs on cpu and cuda, not on {device.type}."
        raise UsageError(why, flag=_FLAG, remedy="Leave it out, or use another --device.")
    dtype = getattr(torch, precision.dtype, None) or getattr(config, "dtype", None)
    if precision.quantise == "int4" and device.type == "cuda" and dtype is not torch.bfloat16:
        why = f"int4 over CUDA computes in bfloat16 alone, not in {str(dtype).removeprefix('torch.')}."
        raise UsageError(why, flag=_FLAG, remedy="Add --dtype bfloat16, or use int8.")
    if not _quantised_layers(skeleton(config), precision.quantise, device):
        raise UsageError(
            f"{name} ({config.model_type}) has no linear layer that torchao can quantise to "
            f"{precision.quantise}.",
            flag=_FLAG,
            remedy="Leave it out, or choose a model like Llama or Qwen.",
        )


def loading_settings(config: Any, precision: Precision, device: torch.device) -> dict[str, Any]:
    """Return arguments of ``from_pretrained`` by which each matrix is quantised as it is read."""
    assert precision.quantise is not None
    from transformers import TorchAoConfig

    model = skeleton(config)
    kept = _unquantised_modules(model)
    quantised = _quantised_layers(model, precision.quantise, device)
    others = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    left = [name for name in others if name not in quantised]
    config_of_quantiser = TorchAoConfig(
        _torchao_settings(precision.quantise, device), modules_to_not_convert=[*kept, *left]
    )
    placed = {} if device.type == "cpu" else {"device_map": {"": device}}
    return {"quantization_config": config_of_quantiser, **placed}


def quantise_built(model: Any, precision: Precision, device: torch.device) -> None:
    """Quantise a model that is built already, in place; the same values as ``loading_settings`` gives."""
    assert precision.quantise is not None
    from torchao.quantization import quantize_

    chosen = _quantised_layers(model, precision.quantise, device)
    with torch.no_grad():
        quantize_(
            model, _torchao_settings(precision.quantise, device), filter_fn=lambda part, name: name in chosen
        )
    mark(model, precision.quantise)


def mark(model: Any, quantise: str) -> None:
    packed = [part for part in model.parameters() if hasattr(type(part), "__tensor_flatten__")]
    if not packed:
        raise RuntimeError(f"torchao left every weight as it was, asked for {quantise}")
    share = sum(part.numel() for part in packed) / sum(part.numel() for part in model.parameters())
    quantised = Quantised(quantise, _library(), _SCHEMES[quantise], len(packed), round(share, 4))
    setattr(model, _MARK, quantised)


def packed_bytes(
    model: Any, precision: Precision, device: torch.device, width: int
) -> dict[str, tuple[int, int]]:
    """Return each quantised matrix's bytes by name: (before, with ``width`` bytes a weight; after)."""
    assert precision.quantise is not None
    bytes_of = {}
    for name, part in _quantised_layers(model, precision.quantise, device).items():
        rows, columns = part.weight.shape
        if precision.quantise == "int8":
            packed = rows * columns + rows * (_SCALE_BYTES + 1)  # a scale and an offset a row
        else:  # a scale and an offset a group
            packed = rows * columns // 2 + 2 * rows * (columns // GROUP) * width
        bytes_of[f"{name}.weight"] = (rows * columns * width, packed)
    return bytes_of


def _quantised_layers(model: Any, quantise: str, device: torch.device) -> Mapping[str, nn.Linear]:
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = _unquantised_modules(model)
    block = _ROWS_OF_INT4 if device.type == "cpu" else 1
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear)
        and should_convert_module(f"{name}.weight", kept)
        and (quantise == "int8" or (part.in_features % GROUP == 0 and part.out_features % block == 0))
    }


def _unquantised_modules(model: Any) -> list[str]:
    """By transformers: embedding, head, what must stay in float32."""
    from transformers.quantizers.base import HfQuantizer

    kept: list[str] = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    return kept


def _torchao_settings(quantise: str, device: torch.device) -> Any:
    """Without those for compilation, which hold for the whole process."""
    from torchao.quantization import Int8WeightOnlyConfig

    if quantise == "int8":
        return Int8WeightOnlyConfig(set_inductor_config=False)
    if device.type == "cpu":
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        return PrototypeInt4WeightOnlyConfig(group_size=GROUP, set_inductor_config=False)
    from torchao.quantization import Int4WeightOnlyConfig
    from torchao.quantization.quantize_.workflows import Int4PackingFormat

    packing = Int4PackingFormat.TILE_PACKED_TO_4D
    return Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format=packing, set_inductor_config=False)


def _library() -> str:
    return f"{LIBRARY} {metadata.version(LIBRARY)}"
