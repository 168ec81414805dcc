"""What a student shares with its target: embedding, head, layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.models.causal_lm import text_config


@dataclass(frozen=True)
class Teacher:
    """A target, as torch computes it.

    Attributes:
        model: a ``PreTrainedModel`` with a head.
        vocabulary: [m] ids of the tokens that the student proposes, ascending.
    """

    model: Any
    vocabulary: Tensor

    @property
    def config(self) -> Any:
        """The target's configuration."""
        return text_config(self.model.config)

    @property
    def hidden(self) -> int:
        """Width of its hidden states."""
        return int(self.config.hidden_size)

    @property
    def embedding(self) -> nn.Module:
        """Its embedding, with whatever factor it applies."""
        found: nn.Module = self.model.get_input_embeddings()
        return found

    def head_rows(self, dtype: torch.dtype) -> Tensor:
        """[m, hidden] the rows of its head for the vocabulary."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight.detach()[self.vocabulary].to(dtype)

    def layers_of(self, count: int) -> tuple[list[int], nn.Module]:
        """(which of its layers a shorter one begins with, a decoder of those in float32).

        The first and the last are always among them: they read embeddings and write what the head reads.
        """
        from transformers import AutoModelForCausalLM

        total = self.config.num_hidden_layers
        numbers = spread(count, total)
        config = type(self.config)(**shortened(self.config.to_dict(), numbers))
        shorter = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        decoder: Any = shorter.get_decoder()
        own = self.model.get_decoder()
        for number, layer in zip(numbers, decoder.layers, strict=True):
            layer.load_state_dict(own.layers[number].state_dict())
        decoder.norm.load_state_dict(own.norm.state_dict())
        decoder.set_input_embeddings(nn.Identity())
        return numbers, decoder


def spread(count: int, total: int) -> list[int]:
    """``count`` of ``total`` layers, evenly spread from the first to the last; one is the last."""
    if count == 1:
        return [total - 1]
    return [round(i * (total - 1) / (count - 1)) for i in range(count)]


def shortened(config: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    """A configuration of some of the layers."""
    told = dict(config, num_hidden_layers=len(numbers), use_cache=False)
    for name in ("layer_types", "no_rope_layers"):
        if told.get(name):
            told[name] = [told[name][number] for number in numbers]
    return told


def log_probs(states: Tensor, head: Tensor, temperature: float) -> Tensor:
    """[n, m] log-probabilities of the student's tokens."""
    return (F.linear(states, head).float() / temperature).log_softmax(-1)
