"""An encoder-decoder over torch: T5, BART and similar models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.errors import UsageError
from spsbench.models.border import Border
from spsbench.models.causal_lm import decoder_layers
from spsbench.models.encoded import Encoded
from spsbench.models.quantised import stored_bytes
from spsbench.models.torch_lm import TorchLM

_CROSS = ("EncDecAttention", "encoder_attn")
_PRECOMPUTED = (".k.", ".v.", ".k_proj.", ".v_proj.")


class Seq2SeqLM(TorchLM):
    """Owns a model, what its encoder made of the source, and the caches of its decoder; batch size 1.

    ``begin`` runs the encoder, once a sequence, and computes the keys and values of the cross-attention; the
    decoder's own are rolled back as those of any other model.

    Args:
        vocab_size: number of logits used; the rest pads the embedding.
    """

    def __init__(self, model: Any, border: Border, vocab_size: int | None = None) -> None:
        super().__init__(model, vocab_size)
        self.border: Border = border
        self.layers = decoder_layers(model.config)
        self._encoded: Encoded | None = None
        self._read = 0

    @property
    def length(self) -> int:
        return self._read + self.cache.length

    def begin(self, prompt: Sequence[int]) -> Tensor:
        self.rollback(0)
        cut = self.border.source_length(prompt)
        tokens = torch.tensor(prompt, device=self.device)
        self._encoded, self._read = Encoded(self.model, prompt[:cut], self.cache), cut
        # The first forward computes the keys of the cross-attention: they are not part of decoding.
        self.score(tokens[cut : max(cut + 1, len(prompt) - 1)], last=1)
        self.cache.rollback(len(prompt) - 1 - cut)
        return tokens[-1:]

    def _scored(self, tokens: Tensor, last: int) -> Tensor:
        assert self._encoded is not None, "a sequence begins with begin()"
        return self._encoded.decode(tokens.unsqueeze(0))[-last:, : self.vocab_size]

    def rollback(self, length: int) -> None:
        if length == 0:
            self._encoded, self._read = None, 0
        assert length >= self._read, "the source is read as a whole"
        self.cache.rollback(length - self._read)

    def restore(self, length: int) -> None:
        raise ValueError("the source is read as a whole")

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        cut = self.border.source_length(tokens.tolist())
        source, written = tokens[:cut].unsqueeze(0), tokens[cut:].unsqueeze(0)
        output = self.model(input_ids=source, decoder_input_ids=written, use_cache=False)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def twin(self) -> Seq2SeqLM:
        other = Seq2SeqLM(self.model, self.border, self.vocab_size)
        other.attached = self.attached
        return other

    def room_behind(self, prompt: Sequence[int]) -> int:
        return self.context_window - self.border.written(prompt)

    def as_prompt(self, tokens: Tensor) -> Tensor:
        return self.border.prompt_of(tokens)

    def with_features(self, flag: str) -> Seq2SeqLM:
        raise decoders_only(flag)

    def truncated(self, layers: int, flag: str) -> Seq2SeqLM:
        raise decoders_only(flag)

    def forward_bytes(self, rows: int = 1) -> int:
        """Of the decoder and the head; not of the encoder, nor of what makes the cross-attention's keys."""
        head = self.model.get_output_embeddings().weight
        parts = {id(head): head.nbytes}
        table = id(self.model.get_input_embeddings().weight)
        for name, weights in self.model.get_decoder().named_parameters():
            kept = any(part in name for part in _CROSS) and any(part in name for part in _PRECOMPUTED)
            if not kept and id(weights) != table:
                parts[id(weights)] = stored_bytes(weights)
        return sum(parts.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Of a token of the source as of one of the output: each layer attends to both."""
        config = self.config
        heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
        width = getattr(config, "d_kv", None) or config.hidden_size // heads
        return int(2 * self.layers * heads * width * self.dtype.itemsize)


def decoders_only(flag: str) -> UsageError:
    """Operations of an encoder-decoder that a decoder alone can do."""
    return UsageError(
        "layers and states of an encoder-decoder cannot be used by a drafter.",
        flag=flag,
        remedy="Draft with a model, lookup, suffix or ngram.",
    )
