"""Weights into memory: whole, in the right dtype, on the right device."""

from __future__ import annotations

from typing import Any

import torch

from spsbench.errors import UnavailableError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.hf_errors import typed_errors
from spsbench.models.source import ModelSource
from spsbench.models.weights import DTYPES

_SHOWN = 3


def load(source: ModelSource, dtype: str, device: torch.device, vocab_size: int, flag: str) -> CausalLM:
    """Load a model; a quantised one as its configuration says.

    Args:
        source: the model that was found.
        dtype: ``auto`` for the checkpoint's own, or a name in ``DTYPES``.
        device: where to.
        vocab_size: logits that target and draft share.
        flag: the command-line flag that named the model.

    Raises:
        UnavailableError: a file is damaged, weights are missing, or a package that it needs is.
    """
    from transformers import AutoModelForCausalLM

    # Quantised weights cannot be moved afterwards; transformers places them, with the package accelerate.
    direct = source.quantization is not None and device.type != "cpu"
    placed: dict[str, Any] = {"device_map": {"": device}} if direct else {}
    with typed_errors(source.name, flag):
        model, report = AutoModelForCausalLM.from_pretrained(
            source.location,
            revision=source.commit,
            dtype=DTYPES.get(dtype, "auto"),
            trust_remote_code=False,
            output_loading_info=True,
            **placed,
        )
        _require_whole(report, source.name, flag)
        model = model if source.quantization else model.to(device)
    return CausalLM(model.eval(), vocab_size)


def _require_whole(report: dict[str, Any], name: str, flag: str) -> None:
    """Refuse a checkpoint without some of its weights: transformers would fill them at random."""
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise UnavailableError(
            f"{name} is incomplete: {len(missing)} of its weights are missing ({shown}).",
            flag=flag,
            remedy="Fetch the model again, or choose a checkpoint with its language-model head.",
        )
