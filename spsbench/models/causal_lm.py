"""Any Hugging Face causal language model as a ``LanguageModel``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from spsbench.models.cache import RewindCache
from spsbench.models.direct import DirectForward
from spsbench.models.product import Modes, Product


class CausalLM:
    """Owns a model and its KV cache; batch size 1.

    Only ids, cache and ``logits_to_keep`` are passed to the model: masks and positions follow from
    the cache's length, and what a model does not understand it would swallow in silence.

    Args:
        model: a ``PreTrainedModel`` with a language-model head, in eval mode.
        vocab_size: how many of its logits are used; the rest is padding of the embedding.

    Attributes:
        modes: whether it multiplies with packed weights.
        products: the matrix products of a forward, where it is ours; None where it is the model's own.
    """

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        self.model = model
        self.vocab_size = vocab_size or text_config(model.config).vocab_size
        self.context_window = context_window(model.config)
        self.device = model.device
        self.cache = RewindCache()
        self.modes = Modes()
        self._direct = DirectForward(model, self.modes) if DirectForward.applies_to(model) else None
        self.products: list[Product] | None = None if self._direct is None else self._direct.products

    def twin(self, model: Any, forward: Callable[[DirectForward], DirectForward]) -> CausalLM:
        """Another model over the same window and vocabulary, with a cache of its own.

        Args:
            model: what it is to ``score_uncached``, and to ``score`` where the forward is the model's own.
            forward: makes its direct forward of this one's, where there is one; of the same function.
        """
        other = copy.copy(self)
        other.model, other.cache = model, RewindCache()
        if self._direct is not None:
            other._direct = forward(self._direct)
            other.products = other._direct.products
        return other

    @property
    def length(self) -> int:
        """How many tokens the cache holds."""
        return self.cache.length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """See ``LanguageModel.score``."""
        if self._direct is not None:
            direct = self._direct(tokens, self.cache, last)
            return direct if direct.shape[-1] == self.vocab_size else direct[:, : self.vocab_size]
        output = self.model(
            input_ids=tokens.unsqueeze(0), past_key_values=self.cache, use_cache=True, logits_to_keep=last
        )
        # Some models ignore logits_to_keep and return a row for every token.
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def rollback(self, length: int) -> None:
        """See ``LanguageModel.rollback``."""
        self.cache.rollback(length)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        """Logits [n, V] of all n tokens in one forward without any cache: an independent witness.

        Args:
            tokens: [n].
            last: of so many tokens alone, [last, V]; 0 for all.
        """
        output = self.model(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=last)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model (itself for plain models)."""
    return config.get_text_config()


def context_window(config: Any) -> int:
    """Longest sequence the model is made for, in tokens; without a stated limit, a very large one.

    LongRoPE turns all positions over to other frequencies once a sequence passes its original
    length. Cached keys would keep the old ones and the block that crosses would be scored unlike
    its single tokens, so the window ends there.
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
    """Tokens that the narrowest windowed (sliding or chunked) layer sees; None if all layers see all."""
    text = text_config(config)
    if getattr(text, "use_sliding_window", True) is False:
        return None
    names = ("sliding_window", "attention_chunk_size", "window_size")
    sizes = [getattr(text, name, None) for name in names]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=None)
