"""Load a model's weights: complete, in the requested dtype, on the requested device."""

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
    """Load a model; a quantised checkpoint as its configuration says.

    Args:
        source: the model, as ``find`` returned it.
        dtype: ``auto`` for the checkpoint's own, or a name in ``DTYPES``.
        device: to load it onto.
        vocab_size: number of logits that target and draft share.
        flag: the command-line flag that named the model.

    Raises:
        UnavailableError: a file is damaged, or weights or a required package are missing.
    """
    from transformers import AutoModelForCausalLM

    # Quantised weights cannot be moved after loading: transformers places them, by means of accelerate.
    place = source.quantization is not None and device.type != "cpu"
    placed: dict[str, Any] = {"device_map": {"": device}} if place else {}
    with typed_errors(source.name, flag):
        model, report = AutoModelForCausalLM.from_pretrained(
            source.location,
            revision=source.commit,
            dtype=DTYPES.get(dtype, "auto"),
            trust_remote_code=False,
            output_loading_info=True,
            **placed,
        )
        _require_complete(report, source.name, flag)
        model = model if source.quantization else model.to(device)
    return CausalLM(model.eval(), vocab_size)


def _require_complete(report: dict[str, Any], name: str, flag: str) -> None:
    """Refuse a checkpoint with missing weights: transformers would initialise them at random."""
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise UnavailableError(
            f"{name} is incomplete: {len(missing)} of its weights are missing ({shown}).",
            flag=flag,
            remedy="Download the model again, or choose a checkpoint with a language-model head.",
        )
