"""What is read of a configuration whose layers differ is what its layers really keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.tiny_types import WINDOW, tiny_config
from spsbench.models.causal_lm import attention_window, built, text_config
from spsbench.models.layers import by_layer
from spsbench.models.memory import cache_bytes_per_token, forward_bytes_per_token
from spsbench.models.torch_lm import TorchLM

TYPES = ("llama", "gemma4_text", "gemma3n_text", "deepseek_v3", "gpt_oss", "qwen3_vl", "gemma4")


def held_bytes(config: Any) -> int:
    """Bytes of keys and values that a cached token takes, by a forward of a model that is built."""
    lm = TorchLM(built(config, torch.float32).eval(), 258)
    with torch.inference_mode():
        lm.score(torch.arange(7), last=1)
    layers = [layer for layer in lm.cache.layers if layer.used]
    return sum(part.numel() * part.itemsize for layer in layers for part in (layer.keys, layer.values)) // 7


@pytest.mark.parametrize("kind", TYPES)
def test_bytes_of_a_cached_token_are_those_that_the_cache_holds(kind: str) -> None:
    config = tiny_config(kind)
    assert cache_bytes_per_token(config, 4) == held_bytes(config)
    assert forward_bytes_per_token(config, 4) > 0


def test_layers_that_differ_are_asked_one_by_one() -> None:
    text = text_config(tiny_config("gemma4_text"))
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        _ = text.head_dim
    assert len(set(by_layer(text, "head_dim"))) == 2
    assert attention_window(text) == WINDOW
