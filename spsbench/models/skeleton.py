"""A model without weights: names, shapes and classes of its modules, before anything is allocated."""

from __future__ import annotations

from typing import Any

import torch


def built(config: Any, dtype: torch.dtype | None) -> Any:
    """A model of a configuration, with the initial weights of its architecture on torch's default device."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return kind.from_config(config, dtype=dtype or getattr(config, "dtype", None) or torch.float32)


def skeleton(config: Any, dtype: torch.dtype | None = None) -> Any:
    """As ``built``, on the device ``meta``: nothing is allocated."""
    with torch.device("meta"):
        return built(config, dtype)
