"""Small random models of every family that ONNX Runtime's forward covers."""

from __future__ import annotations

from typing import Any

import torch
from support.tiny_models import BOS, EOS, TOKENS, WINDOW, make
from torch import Tensor

from spsbench.models.torch_lm import TorchLM

RELATIVE = 5e-5
"""Largest difference to transformers' float32 rows, of the largest logit."""

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": TOKENS,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "initializer_range": 0.3,
}
_TWO_KINDS = ["sliding_attention", "full_attention"] * 2
_GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama 3 rope": ("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "yarn": ("LlamaConfig", {"rope_parameters": _YARN}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "ministral": ("MinistralConfig", {"sliding_window": WINDOW, "layer_types": _TWO_KINDS, "head_dim": 16}),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1, 0]}),
    "granite": ("GraniteConfig", _GRANITE),
    "olmo2": ("Olmo2Config", {}),
    "gemma": ("GemmaConfig", {"head_dim": 16}),
    "phi3": ("Phi3Config", {"sliding_window": WINDOW}),
    "arcee": ("ArceeConfig", {}),
    "seed_oss": ("SeedOssConfig", {"head_dim": 16, "attention_bias": True}),
    "cwm": ("CwmConfig", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": _TWO_KINDS}),
}


def variant(name: str) -> TorchLM:
    import transformers

    kind, changes = VARIANTS[name]
    model = make(getattr(transformers, kind)(**_SIZES | changes))
    for parameter in model.parameters():  # norms and biases of 1 and 0 would hide what is done with them
        if parameter.ndim == 1:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return TorchLM(model)


def tokens(n: int, vocab_size: int = TOKENS, seed: int = 0) -> Tensor:
    return torch.randint(vocab_size, (n,), generator=torch.Generator().manual_seed(seed))


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())
