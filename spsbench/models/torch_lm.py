"""Any Hugging Face causal language model over torch: the reference, and the path of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from spsbench.config.models import TORCH
from spsbench.errors import UsageError
from spsbench.models.cache import RewindCache
from spsbench.models.causal_lm import CausalLM, text_config
from spsbench.models.features import FeatureRows
from spsbench.models.memory import forward_bytes, kv_bytes_per_token
from spsbench.models.quantised import quantised_of
from spsbench.models.trained import table_fingerprint
from spsbench.models.twin import truncated


class TorchLM(CausalLM):
    """Owns a model and its KV cache; batch size 1.

    Only ids, cache and ``logits_to_keep`` are passed to the model: masks and positions follow from
    the cache's length, and models silently ignore arguments that they do not support.

    Args:
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
        quantised = quantised_of(self.model)
        return str(self.dtype).removeprefix("torch.") if quantised is None else quantised.bits

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def length(self) -> int:
        return self.cache.length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        if self._features is None:
            return self._scored(tokens, last)
        start = self.length
        with _states(self.model) as heard:
            logits = self._scored(tokens, last)
        self._features.write(start, heard[0][0])
        return logits

    def _scored(self, tokens: Tensor, last: int) -> Tensor:
        output = self.model(
            input_ids=tokens.unsqueeze(0), past_key_values=self.cache, use_cache=True, logits_to_keep=last
        )
        # Some models ignore logits_to_keep and return a row for every token.
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    def restore(self, length: int) -> None:
        self.cache.restore(length)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        output = self.model(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=last)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def twin(self) -> TorchLM:
        other = type(self)(self.model, self.vocab_size)
        other.attached = self.attached
        return other

    def with_features(self, flag: str) -> TorchLM:
        other = self.twin()
        other._features = FeatureRows()
        _require_states(self.model, flag)
        return other

    def embedding_fingerprint(self) -> str:
        return table_fingerprint(self.model.get_input_embeddings().weight)

    @property
    def embedding_shape(self) -> tuple[int, int]:
        rows, width = self.model.get_input_embeddings().weight.shape
        return rows, width

    def forward_bytes(self, rows: int = 1) -> int:
        return forward_bytes(self.model, rows)

    @property
    def kv_bytes_per_token(self) -> int | None:
        return kv_bytes_per_token(self.model)

    def reference(self) -> TorchLM:
        return self

    def truncated(self, layers: int, flag: str) -> TorchLM:
        self._require_layers(layers, flag)
        return type(self)(truncated(self.model, layers, flag), self.vocab_size)


@contextmanager
def _states(model: Any) -> Iterator[list[Tensor]]:
    """What the body of a model hands to its head while the block lasts, [1, n, hidden] a forward.

    All n tokens' states: the head itself sees the rows of ``logits_to_keep`` alone.
    """
    heard: list[Tensor] = []
    hook = model.get_decoder().register_forward_hook(lambda body, args, output: heard.append(output[0]))
    try:
        yield heard
    finally:
        hook.remove()


def _require_states(model: Any, flag: str) -> None:
    """Refuse a model whose body does not hand over what its head multiplies."""
    head, seen = model.get_output_embeddings(), list[Tensor]()
    if head is not None and model.get_decoder() is not model:
        hook = head.register_forward_pre_hook(lambda part, args: seen.append(args[0]))
        try:
            with torch.inference_mode(), _states(model) as heard:
                model(input_ids=torch.arange(3, device=model.device).unsqueeze(0), use_cache=False)
        finally:
            hook.remove()
        if len(seen) == len(heard) == 1 and torch.equal(seen[0], heard[0]):
            return
    raise UsageError(
        f"the input of the head of {type(model).__name__} is not accessible.",
        flag=flag,
        remedy="Choose another drafter.",
    )
