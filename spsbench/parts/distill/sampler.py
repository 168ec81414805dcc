"""Many sequences at once, written or read by one model: text to learn from, not text to measure.

Sequences of a batch stand at the same position throughout. A longer prompt is forced, token by token,
while the shorter ones are already continued: nothing is padded and no mask is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spsbench.base import SamplingParams
from spsbench.models import RewindCache

# A nucleus is looked for among so many tokens: what lies after them is not text to learn from.
_HEAD = 256
# Rows that have ended are dropped from the batch once they are this share of it; the last few are cut.
_ENDED, _LAST = 0.2, 0.12


@dataclass(frozen=True, slots=True)
class Sampled:
    """A prompt and its continuation.

    Attributes:
        tokens: [n] prompt and continuation.
        features: [n-1, hidden] the last hidden state after each token but the last, as the head reads it.
        log_masses: [n-start] log of the sum over V of exp(logit / temperature), for each drawn token.
    """

    tokens: Tensor
    start: int
    features: Tensor
    log_masses: Tensor


@dataclass(frozen=True)
class Writer:
    """A model that writes and reads text.

    Attributes:
        model: a ``PreTrainedModel`` with a head; its decoder's output is what the head reads.
    """

    model: Any
    eos_ids: Sequence[int]
    vocab_size: int

    @torch.inference_mode()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        limit: int,
        sampling: SamplingParams,
        generator: torch.Generator,
    ) -> list[Sampled]:
        """Continue prompts until EOS or ``limit`` tokens; the last few of a batch may be cut earlier."""
        batch = _Batch(self, prompts, limit, sampling, generator)
        while not batch.ended:
            batch.advance()
        return list(batch.sequences())

    @torch.inference_mode()
    def read(self, sequences: Sequence[tuple[Sequence[int], int]], temperature: float) -> list[Sampled]:
        """What the model would have written in place of the given text."""
        longest = max(len(ids) for ids, _ in sequences)
        padded = torch.zeros(len(sequences), longest, dtype=torch.int64)
        for row, (ids, _) in enumerate(sequences):
            padded[row, : len(ids)] = torch.tensor(ids)
        decoder = self.model.get_decoder()
        states = decoder(input_ids=padded.to(self.model.device), use_cache=False).last_hidden_state
        samples = []
        for row, (ids, start) in enumerate(sequences):
            features = states[row, : len(ids) - 1]
            masses = self.logits(features[start - 1 :], temperature).logsumexp(-1)
            samples.append(Sampled(padded[row, : len(ids)], start, features.cpu(), masses.cpu()))
        return samples

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        """[n, V] logits after states [n, hidden], in float32, divided by the temperature."""
        head = self.model.get_output_embeddings()
        rows: Tensor = head(states)[:, : self.vocab_size].float() / temperature
        return rows


class _Batch:
    def __init__(
        self,
        writer: Writer,
        prompts: Sequence[Sequence[int]],
        limit: int,
        sampling: SamplingParams,
        generator: torch.Generator,
    ) -> None:
        model = writer.model
        device, count = model.device, len(prompts)
        self._writer, self._decoder = writer, model.get_decoder()
        self._sampling, self._generator = sampling, generator
        self._eos = torch.tensor(list(writer.eos_ids), device=device)
        self._starts = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._ends = self._starts + limit
        width = int(self._ends.max())
        self._tokens = torch.full((count, width), -1, device=device)
        for row, prompt in enumerate(prompts):
            self._tokens[row, : len(prompt)] = torch.tensor(prompt, device=device)
        hidden = model.get_output_embeddings().weight.shape[1]
        self._features = torch.empty(count, width, hidden, dtype=model.dtype, device=device)
        self._log_masses = torch.zeros(count, width, device=device)
        self._lengths = self._starts.clone()
        self._cache = RewindCache()
        self._position = int(self._starts.min())
        self._pending = self._tokens[:, : self._position]
        self._rows = torch.arange(count, device=device)  # which sequences the batch still holds
        self._alive = torch.ones(count, dtype=torch.bool, device=device)

    @property
    def ended(self) -> bool:
        return int(self._alive.sum()) <= _LAST * len(self._starts)

    def advance(self) -> None:
        """Run one forward and draw a token for every sequence that has not ended."""
        past = self._cache.length
        states = self._decoder(
            input_ids=self._pending, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        self._features[self._rows, past : self._position] = states
        logits = self._writer.logits(states[:, -1], self._sampling.temperature)
        self._log_masses[self._rows, self._position] = logits.logsumexp(-1)
        forced = self._tokens[self._rows, self._position]
        token = torch.where(forced >= 0, forced, draw(logits, self._sampling.top_p, self._generator))
        self._tokens[self._rows, self._position] = token
        self._position += 1
        self._lengths[self._rows[self._alive]] = self._position
        continued = self._position > self._starts[self._rows]
        over = torch.isin(token, self._eos) & continued | (self._position >= self._ends[self._rows])
        self._alive = self._alive & ~over
        self._pending = token.unsqueeze(1)
        if int((~self._alive).sum()) > _ENDED * len(self._alive):
            kept = self._alive.nonzero().squeeze(1)
            self._cache.select(kept)
            self._rows = self._rows[kept]
            self._pending = self._pending[kept]
            self._alive = self._alive[kept]

    def sequences(self) -> Iterator[Sampled]:
        for row, (start, end) in enumerate(zip(self._starts.tolist(), self._lengths.tolist(), strict=True)):
            # A prompt that was still being forced when the batch was cut has no continuation.
            if end > start:
                tokens, features = self._tokens[row, :end], self._features[row, : end - 1]
                yield Sampled(tokens.cpu(), start, features.cpu(), self._log_masses[row, start:end].cpu())


def draw(logits: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    """[n] one token a row of logits [n, V]; a nucleus is cut from the most probable tokens."""
    probs = torch.softmax(logits, -1)
    ids = None
    if top_p < 1:
        probs, ids = probs.topk(min(_HEAD, probs.shape[-1]))
        probs = probs * (probs.cumsum(-1) - probs < top_p)
    sums = probs.cumsum(-1)
    u = torch.rand(len(sums), 1, device=sums.device, generator=generator) * sums[:, -1:]
    picks = torch.searchsorted(sums, u, right=True).clamp_(max=sums.shape[-1] - 1)
    return (picks if ids is None else ids.gather(-1, picks)).squeeze(-1)
