"""Folders with random heads, or a random small model, for a target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from spsbench.models.causal_lm import CausalLM

SMALL = 0.02
"""A head whose weights are this small follows the feature, and is often right."""

VOCABULARY = torch.arange(0, 256, 2)
TOKENS = torch.randint(258, (1, 12), generator=torch.Generator().manual_seed(3))


def stirred(student: nn.Module) -> Any:
    """With weights that bfloat16 holds exactly and no training would give."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            parameter.copy_(parameter.bfloat16().float())
    return student.eval()


def save_head(
    folder: Path,
    target: CausalLM,
    kind: str = "eagle",
    *,
    vocabulary: Sequence[int] | None = None,
    heads: int = 3,
    scale: float = 0.3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    told: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a head with random weights.

    Args:
        folder: made.
        target: that it is for.
        kind: ``eagle``, ``medusa`` or ``model``.
        vocabulary: what it can propose.
        heads: of medusa.
        scale: of its weights.
        seed: of its weights.
        dtype: that they are stored in.
        told: in place of what ``draft.json`` would say.
        config: in place of the layer's sizes.
    """
    count, hidden = target.embedding_shape
    layer = layer_config(hidden, **(config or {}))
    made = {
        "name": "tiny",
        "hidden": hidden,
        "vocab_size": count,
        "embedding": target.embedding_fingerprint(),
    }
    description = {
        "format": 1,
        "kind": kind,
        "target": made,
        "config": layer.to_dict() if kind != "medusa" else None,
        "heads": heads if kind == "medusa" else None,
    }
    folder.mkdir(parents=True)
    (folder / "draft.json").write_text(json.dumps(description | (told or {})))
    tensors = {name: weight.to(dtype) for name, weight in _weights(kind, layer, heads, scale, seed).items()}
    if vocabulary is not None:
        tensors["vocabulary"] = torch.tensor(vocabulary, dtype=torch.int32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def layer_config(hidden: int, **changes: Any) -> LlamaConfig:
    """Of one decoder layer that ONNX Runtime covers."""
    sizes = {"hidden_size": hidden, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8}
    return LlamaConfig(**sizes | {"bos_token_id": None, "eos_token_id": None} | changes)


def save_small(
    folder: Path,
    target: CausalLM,
    model: Any,
    layers: int = 2,
    vocabulary: Sequence[int] | None = None,
    **changes: Any,
) -> Path:
    """Write the first layers of a model and its norm as a trained draft; ``changes`` go to ``save_head``."""
    config = {**model.config.to_dict(), "num_hidden_layers": layers}
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    changes = {"told": {"config": config}} | changes
    save_head(folder, target, "model", vocabulary=vocabulary, **changes)
    kept = tuple(f"model.layers.{number}." for number in range(layers))
    state = model.state_dict()
    tensors = {name: part for name, part in state.items() if name.startswith((*kept, "model.norm."))}
    if vocabulary is not None:
        tensors["vocabulary"] = torch.tensor(vocabulary, dtype=torch.int32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def _weights(kind: str, layer: LlamaConfig, heads: int, scale: float, seed: int) -> dict[str, Tensor]:
    hidden, generator = layer.hidden_size, torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    if kind == "medusa":
        parts = [(number, part) for number in range(heads) for part in ("weight", "bias")]
        return {
            f"heads.{number}.{part}": noise(*([hidden] * (2 if part == "weight" else 1)))
            for number, part in parts
        }
    body = LlamaModel(layer)
    named = {
        f"model.{name}": 1 + noise(*part.shape) if "norm" in name else noise(*part.shape)
        for name, part in body.named_parameters()
        if not name.startswith("embed_tokens")
    }
    if kind == "model":
        return named
    # The feature comes through the product as it is, with some noise.
    through = torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], dim=1)
    return named | {"fc.weight": through + noise(hidden, 2 * hidden)}
