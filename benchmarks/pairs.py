"""Pairs to measure speed with: the embedded one, and random weights at the size of real ones.

A draft of random weights would agree with its target by chance alone. So the draft is the target's
first layers, and what the target's later layers add is scaled down: the smaller, the more they agree.
A larger head makes rows as peaked as those of a trained model.
"""

from __future__ import annotations

from typing import Any

import torch

from spsbench.config import resolve
from spsbench.config.models import ONNXRUNTIME, TORCH
from spsbench.models.causal_lm import CausalLM
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.pair import find_pair, load_pair
from spsbench.models.torch_lm import TorchLM

_LLAMA = {"model_type": "llama", "max_position_embeddings": 4096, "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": _LLAMA
    | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    | {"draft_layers": 1, "later": 0.5},
    "110m": _LLAMA
    | {"vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "num_key_value_heads": 12, "draft_layers": 1, "later": 0.1},
    "1b": _LLAMA
    | {"vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "draft_layers": 1, "later": 0.03},
    "8b": _LLAMA
    | {"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}
    | {"draft_layers": 2, "later": 0.1},
}
"""Sizes after GPT-2, Llama-3.2-1B and Llama-3.1-8B, and one for a test.

The smallest has a head of its own: so narrow a model with tied embeddings repeats its last token.
"""

_PEAKED = 5.5  # of 32,000 rows drawn so, a few dozen make the nucleus, as with trained models


def build(name: str, dtype: torch.dtype, device: torch.device, seed: int = 0) -> tuple[TorchLM, TorchLM]:
    """(target, draft) over torch: ``mini``, or a key of ``SHAPES``.

    Args:
        name: which.
        dtype: of the weights.
        device: where to.
        seed: of random weights.
    """
    if name == "mini":
        kind = str(dtype).removeprefix("torch.")
        found = load_pair(find_pair(resolve({}).pair), (kind, kind), device, TORCH)
        return found.target.reference(), found.draft.reference()
    sizes = dict(SHAPES[name])
    kept, later = sizes.pop("draft_layers"), sizes.pop("later")
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(seed)
        target = _model(sizes, dtype)
        draft = _first_layers(target, sizes, kept, dtype)
    _soften(target, kept, later)
    return TorchLM(target.eval()), TorchLM(draft.eval())


def over_onnxruntime(name: str, models: tuple[TorchLM, TorchLM], threads: int) -> tuple[CausalLM, CausalLM]:
    """(target, draft) of ``build`` in float32 with ONNX Runtime's forward.

    The trained pair is read from its files, as in a run; of random weights torch's copy stays in memory.

    Args:
        name: that they were built by.
        models: target and draft.
        threads: of the CPU.
    """
    if name == "mini":
        source = find_pair(resolve({}).pair)
        found = load_pair(source, ("float32", "float32"), models[0].device, ONNXRUNTIME, threads)
        return found.target, found.draft
    target, draft = (
        OnnxLM(model.config, LoadedWeights(model.model), model.vocab_size, threads, model.reference)
        for model in models
    )
    return target, draft


def _model(sizes: dict[str, Any], dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes), dtype=dtype)
    with torch.no_grad():
        # The last norm's weight scales every logit, whether or not the head is the embedding.
        model.model.norm.weight.fill_(_PEAKED / _spread(sizes))
    return model


def _spread(sizes: dict[str, Any]) -> float:
    """Standard deviation of a logit: rows of the head are drawn with deviation 0.02."""
    return float(0.02 * sizes["hidden_size"] ** 0.5)


def _first_layers(target: Any, sizes: dict[str, Any], kept: int, dtype: torch.dtype) -> Any:
    draft = _model(sizes | {"num_hidden_layers": kept}, dtype)
    whole = target.state_dict()
    draft.load_state_dict({name: whole[name] for name in draft.state_dict()})
    return draft


@torch.no_grad()
def _soften(target: Any, kept: int, later: float) -> None:
    for layer in target.model.layers[kept:]:
        layer.self_attn.o_proj.weight.mul_(later)
        layer.mlp.down_proj.weight.mul_(later)
