"""Which backend computes the forwards of a run, and why."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from spsbench.config.models import AUTO, ONNXRUNTIME, TORCH, Precision
from spsbench.errors import UsageError
from spsbench.models.blueprint import FAMILIES, NotCovered, blueprint_of
from spsbench.models.checkpoint import EMBEDDING, Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.onnx_seq2seq_lm import EMBEDDING as SHARED
from spsbench.models.source import ModelSource
from spsbench.models.t5_plan import t5_plan
from spsbench.models.weights import DTYPES

COVERED = f"onnxruntime computes {', '.join(FAMILIES)} and t5 in float32, int8 or int4 on a CPU"


def choose_backend(
    asked: str, reasons: Iterable[tuple[str, str | None]], device: torch.device
) -> tuple[str, str | None]:
    """(backend of all models, why it is torch on a CPU where nobody asked for torch).

    All or none: the thread pools of two backends would wait for each other.
    """
    first = next((f"{name}: {reason}" for name, reason in reasons if reason), None)
    if asked == TORCH:
        return TORCH, None
    if first is None:
        return ONNXRUNTIME, None
    if asked == ONNXRUNTIME:
        raise UsageError(
            f"{first}.", flag="--backend", remedy=f"{COVERED}. For anything else use --backend torch."
        )
    return TORCH, first if device.type == "cpu" else None


def model_not_covered(source: ModelSource, dtype: str, device: torch.device, flag: str) -> str | None:
    """Why ONNX Runtime cannot compute a model; None if it can."""
    if source.quantization is not None:
        return f"its weights are quantised by {source.quantization}"
    return config_not_covered(source.config, dtype, device) or _weights_missing(source, flag)


def config_not_covered(config: Any, dtype: str, device: torch.device) -> str | None:
    """As ``model_not_covered``, of a configuration without weights."""
    asked = Precision.read(dtype)
    # What is quantised without its own dtype is computed in float32 there, whatever the checkpoint's.
    named = torch.float32 if asked.quantise is not None else getattr(config, "dtype", None)
    own = named if asked.dtype == AUTO else DTYPES.get(asked.dtype, torch.float32)
    if device.type != "cpu":
        return f"the device is {device.type}"
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        return "the packages onnxruntime and onnx are not installed"
    if own not in (torch.float32, None):
        return f"it computes in {str(own).removeprefix('torch.')} (--dtype float32 runs over ONNX Runtime)"
    try:
        t5_plan(config) if config.is_encoder_decoder else blueprint_of(config)
    except NotCovered as reason:
        return str(reason)
    return None


def _weights_missing(source: ModelSource, flag: str) -> str | None:
    """What is wrong with a local model's files; those of a hub model are fetched first."""
    if not source.is_local or source.sharing is not None:
        return None  # a trained draft's were checked when it was read
    with typed_errors(source.name, flag):
        stored = Checkpoint(Path(source.location))
    embedding = SHARED if source.is_encoder_decoder else EMBEDDING
    return None if stored.is_plain and embedding in stored else "its weights are in no safetensors file"
