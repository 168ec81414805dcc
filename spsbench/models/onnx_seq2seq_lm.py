"""An encoder-decoder over ONNX Runtime's forwards on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spsbench.models.border import Border
from spsbench.models.checkpoint import Floats, StoredWeights
from spsbench.models.onnx_forward import OnnxForward
from spsbench.models.onnx_lm import session_of
from spsbench.models.onnx_model import OnnxModel
from spsbench.models.onnx_t5 import crossed_names, decoder_graph, encoder_graph
from spsbench.models.seq2seq_lm import decoders_only
from spsbench.models.t5_plan import t5_plan

if TYPE_CHECKING:
    from spsbench.models.torch_lm import TorchLM

EMBEDDING = "shared.weight"


class OnnxSeq2SeqLM(OnnxModel):
    """Owns a session of the encoder, one of the decoder, and a KV cache; batch size 1.

    Args:
        vocab_size: number of logits used; the rest pads the embedding.
    """

    embedding = EMBEDDING

    def __init__(
        self,
        config: Any,
        border: Border,
        stored: StoredWeights,
        vocab_size: int,
        threads: int,
        reference: Callable[[], TorchLM],
        bits: int | None = None,
    ) -> None:
        super().__init__(config, stored, vocab_size, reference, bits)
        self.border: Border = border
        self._plan = t5_plan(config)
        self.layers = self._plan.decoder.layers
        self._encoder, _ = session_of(encoder_graph(self._plan, stored, bits), threads)
        self._session, self._weight_bytes = session_of(decoder_graph(self._plan, stored, bits), threads)
        self._forward = OnnxForward(self._session, self._plan.decoder)
        self._read = self._written = 0

    @property
    def length(self) -> int:
        return self._read + self._written

    def begin(self, prompt: Sequence[int]) -> Tensor:
        self.rollback(0)
        tokens = torch.tensor(prompt)
        cut = self.border.source_length(prompt)
        self._attend(self._forward, tokens[:cut])
        self._read = cut
        if len(prompt) - 1 > cut:
            self.score(tokens[cut:-1], last=1)
        return tokens[-1:]

    def score(self, tokens: Tensor, last: int) -> Tensor:
        assert self._read, "a sequence begins with begin()"
        n, start = tokens.shape[0], self._written
        logits = self._forward(lambda out: self._embed(tokens, out), start, n, last)
        self._written = start + n
        return logits[:, : self.vocab_size]

    def rollback(self, length: int) -> None:
        if length == 0:
            self._read = self._written = 0
        assert length >= self._read, "the source is read as a whole"
        self._written = min(self._written, length - self._read)

    def restore(self, length: int) -> None:
        raise ValueError("the source is read as a whole")

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        cut = self.border.source_length(tokens.tolist())
        source, written = tokens[:cut], tokens[cut:]
        fresh = OnnxForward(self._session, self._plan.decoder)
        self._attend(fresh, source)
        n = len(written)
        logits = fresh(lambda out: self._embed(written, out), 0, n, last or n)
        return logits[:, : self.vocab_size]

    def room_behind(self, prompt: Sequence[int]) -> int:
        return self.context_window - self.border.written(prompt)

    def as_prompt(self, tokens: Tensor) -> Tensor:
        return self.border.prompt_of(tokens)

    def twin(self) -> OnnxSeq2SeqLM:
        other = copy.copy(self)
        other._forward = OnnxForward(other._session, other._plan.decoder)
        other._read = other._written = 0
        return other

    def with_features(self, flag: str) -> OnnxSeq2SeqLM:
        raise decoders_only(flag)

    def truncated(self, layers: int, flag: str) -> OnnxSeq2SeqLM:
        raise decoders_only(flag)

    def embedding_fingerprint(self) -> str:
        return self.reference().embedding_fingerprint()

    @property
    def kv_bytes_per_token(self) -> int:
        """Of a token of the source as of one of the output: each layer attends to both."""
        return self._plan.decoder.kv_bytes_per_token

    def _attend(self, forward: OnnxForward, source: Tensor) -> None:
        """Run the encoder, and let a forward read what it gives."""
        hidden = np.zeros((1, len(source), self._plan.encoder.hidden), np.float32)
        self._embed(source, hidden[0])
        names = crossed_names(self.layers)
        binding = self._encoder.io_binding()
        binding.bind_cpu_input("hidden", hidden)
        for name in names:
            binding.bind_output(name)
        self._encoder.run_with_iobinding(binding)
        forward.attend(dict(zip(names, binding.get_outputs(), strict=True)))

    def _embed(self, tokens: Tensor, out: Floats) -> None:
        self._stored.rows(self.embedding, tokens.numpy(), out)
