"""Models with random weights from a configuration: timing a size needs no checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from spsbench.config.models import TORCH, Precision
from spsbench.errors import UnavailableError, UsageError
from spsbench.models.border import Border
from spsbench.models.causal_lm import CausalLM
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.hf_errors import typed_errors
from spsbench.models.memory import suitable_threads
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.onnx_seq2seq_lm import OnnxSeq2SeqLM
from spsbench.models.quantised import quantise_built
from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.skeleton import built, skeleton
from spsbench.models.source import decoder_start, require_generative
from spsbench.models.torch_lm import TorchLM
from spsbench.models.weights import DTYPES, available_bytes

_GIB = 1 << 30


def read_config(name: str, flag: str) -> Any:
    """The configuration of a model: a ``config.json``, a folder with one, or a hub id."""
    from transformers import AutoConfig

    if name.endswith(".json") and not Path(name).is_file():
        raise UnavailableError(f"{name} does not exist.", flag=flag, remedy="Give a config.json or a folder.")
    with typed_errors(name, flag):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    require_generative(config, name, flag)
    return config


def weights_bytes(config: Any, dtype: str) -> int:
    """Size in bytes of the weights of a configuration; nothing is allocated."""
    return sum(parameter.nbytes for parameter in skeleton(config, _dtype(dtype)).parameters())


def require_room(models: dict[str, Any], dtype: str, device: torch.device) -> None:
    """Refuse configurations whose weights do not fit on the device together.

    Args:
        dtype: see ``weights_bytes``.
    """
    needed = sum(weights_bytes(config, dtype) for config in models.values())
    available = available_bytes(device)
    if available is not None and needed > available:
        raise UsageError(
            f"the weights need {needed / _GIB:.3g} GiB, but {device.type} has "
            f"{available / _GIB:.3g} GiB free.",
            flag=next(iter(models)),
            remedy="Choose smaller models, --dtype bfloat16, or another --device.",
        )


def random_model(
    config: Any,
    dtype: str,
    device: torch.device,
    vocab_size: int,
    backend: str,
    threads: int | None = None,
    seed: int = 0,
) -> CausalLM:
    """A model of that configuration with the initial weights of its architecture.

    Args:
        dtype: see ``weights_bytes``.
        vocab_size: number of logits that target and draft share.
    """
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(seed)
        model = built(config, _dtype(dtype))
    precision = Precision.read(dtype)
    if backend == TORCH and precision.quantise is not None:
        quantise_built(model, precision, device)
    if config.is_encoder_decoder:
        end = config.eos_token_id
        start = decoder_start(config, None, config.model_type, "--target-config")
        border = Border((end if isinstance(end, int) else end[0],), start)
        over_torch: TorchLM = Seq2SeqLM(model.eval(), border, vocab_size)
    else:
        border, over_torch = None, TorchLM(model.eval(), vocab_size)
    if backend == TORCH:
        return over_torch
    stored, bits = LoadedWeights(model), precision.bits
    size = threads or suitable_threads(stored.parameters)
    if border is not None:
        return OnnxSeq2SeqLM(config, border, stored, vocab_size, size, lambda: over_torch, bits)
    return OnnxLM(config, stored, vocab_size, size, lambda: over_torch, bits=bits)


def _dtype(dtype: str) -> torch.dtype | None:
    """That the weights are made in; what is quantised is made in float32 unless a dtype is named."""
    asked = Precision.read(dtype)
    return DTYPES.get(asked.dtype) or (torch.float32 if asked.quantise is not None else None)
