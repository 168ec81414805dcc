"""The source of an encoder-decoder, once its encoder has read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutput


class Encoded:
    """A source that was read, and a decoder that attends to it.

    The keys and values of the cross-attention are computed by the decoder's first forward and kept; those of
    the decoder itself are the given cache's.
    """

    def __init__(self, model: Any, source: Sequence[int], cache: Cache) -> None:
        ids = torch.tensor([list(source)], device=model.device)
        states = model.get_encoder()(input_ids=ids, return_dict=True).last_hidden_state
        self._model = model
        self._states = BaseModelOutput(last_hidden_state=states)
        self._caches = EncoderDecoderCache(cache, DynamicCache())

    def decode(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read tokens of the output.

        Args:
            ids: [1, n] of them.
            mask: [1, 1, n, m] that is added to the scores of the decoder's own attention, over its m columns;
                None for tokens in line.

        Returns:
            [n, V] logits of the token after each.
        """
        output = self._model(
            encoder_outputs=self._states,
            decoder_input_ids=ids,
            decoder_attention_mask=mask,
            past_key_values=self._caches,
            use_cache=True,
        )
        logits: Tensor = output.logits[0]
        return logits
