"""Any Hugging Face causal language model as a ``LanguageModel``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from spsbench.models.cache import RewindCache
from spsbench.models.llama_forward import LlamaForward
from spsbench.models.packed_linear import KernelMode, PackedLinear


class CausalLM:
    """Owns a model and its KV cache; batch size 1.

    Only ids, cache and ``logits_to_keep`` are passed to the model: masks and positions follow from
    the cache's length, and models silently ignore arguments that they do not support.

    Args:
        model: a ``PreTrainedModel`` with a language-model head, in eval mode.
        vocab_size: number of logits used; the rest pads the embedding.

    Attributes:
        mode: whether packed weights are used.
        linears: the matrix products of ``LlamaForward``; None if transformers' forward is used.
    """

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        self.model = model
        self.vocab_size = vocab_size or text_config(model.config).vocab_size
        self.context_window = context_window(model.config)
        self.device = model.device
        self.cache = RewindCache()
        self.mode = KernelMode()
        self._llama = LlamaForward(model, self.mode) if LlamaForward.applies_to(model) else None
        self.linears: list[PackedLinear] | None = None if self._llama is None else self._llama.linears

    def twin(self, model: Any, forward: Callable[[LlamaForward], LlamaForward]) -> CausalLM:
        """Another model over the same window and vocabulary, with a cache of its own.

        Args:
            model: what it is to ``score_uncached``, and to ``score`` where the forward is the model's own.
            forward: makes its direct forward of this one's, where there is one; of the same function.
        """
        other = copy.copy(self)
        other.model, other.cache = model, RewindCache()
        if self._llama is not None:
            other._llama = forward(self._llama)
            other.linears = other._llama.linears
        return other

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return self.cache.length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        if self._llama is not None:
            rows = self._llama(tokens, self.cache, last)
            return rows if rows.shape[-1] == self.vocab_size else rows[:, : self.vocab_size]
        output = self.model(
            input_ids=tokens.unsqueeze(0), past_key_values=self.cache, use_cache=True, logits_to_keep=last
        )
        # Some models ignore logits_to_keep and return a row for every token.
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        """Logits [n, V] of all n tokens in one forward without a cache: an independent reference.

        Args:
            tokens: [n].
            last: return the last rows only, [last, V]; 0 for all.
        """
        output = self.model(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=last)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits


def text_config(config: Any) -> Any:
    """The language-model part of a configuration; of a text-only model, the configuration itself."""
    return config.get_text_config()


def context_window(config: Any) -> int:
    """Longest sequence the model supports, in tokens; 2^30 if its configuration states no limit.

    LongRoPE switches all positions to other frequencies once a sequence exceeds its original length.
    Cached keys would keep the old frequencies, and a block that crosses the limit would be scored
    differently from its tokens one by one. So the window ends there.
    """
    text = text_config(config)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings"):
        return int(rope["original_max_position_embeddings"])
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 1 << 30


def attention_window(config: Any) -> int | None:
    """Window of the narrowest sliding or chunked layer, in tokens; None if all attention is full."""
    text = text_config(config)
    if getattr(text, "use_sliding_window", True) is False:
        return None
    names = ("sliding_window", "attention_chunk_size", "window_size")
    sizes = [getattr(text, name, None) for name in names]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=None)
