"""The shape of target and draft: Llama blocks with tied embeddings, saved in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.tokenizer import VOCABULARY, WINDOW

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

HEAD_DIM = 64


@dataclass(frozen=True)
class Shape:
    """Depth and widths of a model; ``intermediate`` is about 2.75 times ``hidden``."""

    layers: int
    hidden: int
    head_dim: int = HEAD_DIM

    @property
    def intermediate(self) -> int:
        """Width of the gated feed-forward block, a multiple of 32."""
        return round(self.hidden * 2.75 / 32) * 32


TARGET = Shape(layers=8, hidden=256)
DRAFT = Shape(layers=2, hidden=64, head_dim=32)


def build(shape: Shape, *, attention: str = "sdpa") -> LlamaForCausalLM:
    """A model with random weights in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = shape.hidden // shape.head_dim
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=shape.head_dim,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config and bfloat16 weights; the model itself keeps its float32 masters."""
    import copy

    import torch

    folder.mkdir(parents=True, exist_ok=True)
    copied = copy.deepcopy(model).to(device="cpu", dtype=torch.bfloat16)
    copied.save_pretrained(folder)


def load(folder: Path, device: str) -> LlamaForCausalLM:
    """A saved model in float32, ready to be read."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(device).eval()
