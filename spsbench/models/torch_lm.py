"""Any Hugging Face causal language model over torch: the reference, and the path of GPUs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spsbench.config.models import TORCH
from spsbench.models.cache import RewindCache
from spsbench.models.causal_lm import CausalLM, text_config
from spsbench.models.memory import forward_bytes, kv_bytes_per_token
from spsbench.models.twin import truncated


class TorchLM(CausalLM):
    """Owns a model and its KV cache; batch size 1.

    Only ids, cache and ``logits_to_keep`` are passed to the model: masks and positions follow from
    the cache's length, and models silently ignore arguments that they do not support.

    Args:
        model: a ``PreTrainedModel`` with a language-model head, in eval mode.
        vocab_size: number of logits used; the rest pads the embedding.
    """

    backend = TORCH

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        size = vocab_size or text_config(model.config).vocab_size
        super().__init__(model.config, size, model.device, model.dtype)
        self.model = model
        self.layers = text_config(model.config).num_hidden_layers
        self.cache = RewindCache()

    @property
    def weights(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def length(self) -> int:
        return self.cache.length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        output = self.model(
            input_ids=tokens.unsqueeze(0), past_key_values=self.cache, use_cache=True, logits_to_keep=last
        )
        # Some models ignore logits_to_keep and return a row for every token.
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        output = self.model(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=last)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def forward_bytes(self, rows: int = 1) -> int:
        return forward_bytes(self.model, rows)

    @property
    def kv_bytes_per_token(self) -> int | None:
        return kv_bytes_per_token(self.model)

    def reference(self) -> TorchLM:
        return self

    def truncated(self, layers: int, flag: str) -> TorchLM:
        self._require_layers(layers, flag)
        return TorchLM(truncated(self.model, layers, flag), self.vocab_size)
