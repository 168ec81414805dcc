"""Batches of whole sequences from a corpus."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from spsbench.distill.prompts import SAMPLINGS
from spsbench.distill.sampler import Sampled

# Sequences whose lengths differ by less share batches, a different one in every epoch.
_SIMILAR = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one kind, padded at the end.

    Attributes:
        tokens: [b, n+1].
        features: [b, n, hidden] the target's.
        continued: [b, n+1] whether a token was drawn by the target.
        log_masses: [b, n+1] of each drawn token, see ``Sampled``.
    """

    tokens: Tensor
    features: Tensor
    continued: Tensor
    log_masses: Tensor
    temperature: float

    @property
    def learnt(self) -> int:
        """Number of drawn tokens."""
        return int(self.continued.sum())

    def at(self, states: Tensor, ahead: int) -> Tensor:
        """[m, hidden] those of states [b, n, hidden] that stand for a drawn token."""
        count = states.shape[1] + 1 - ahead
        return states[:, :count][self.continued[:, ahead:]]

    def wanted(self, ahead: int, head: Tensor) -> Tensor:
        """[m, |vocabulary|] the target's log-probabilities where ``at`` has states.

        Args:
            head: [|vocabulary|, hidden] rows of the target's head.
        """
        logits = F.linear(self.at_target(ahead).to(head.dtype), head).float()
        return logits / self.temperature - self.log_masses[:, ahead:][self.continued[:, ahead:]].unsqueeze(-1)

    def at_target(self, ahead: int) -> Tensor:
        """[m, hidden] the target's features that ``at``'s states predict."""
        return self.features[:, ahead - 1 :][self.continued[:, ahead:]]


def batch_of(kind: str, sequences: Sequence[Sampled], device: torch.device, dtype: torch.dtype) -> Batch:
    """A batch of sequences of one kind."""
    longest = _rounded(max(len(sequence.tokens) for sequence in sequences))
    hidden = sequences[0].features.shape[1]
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    features = torch.zeros(len(sequences), longest - 1, hidden, dtype=dtype)
    continued = torch.zeros(len(sequences), longest, dtype=torch.bool)
    log_masses = torch.zeros(len(sequences), longest)
    for row, sequence in enumerate(sequences):
        count = len(sequence.tokens)
        tokens[row, :count] = sequence.tokens
        features[row, : count - 1] = sequence.features
        continued[row, sequence.start : count] = True
        log_masses[row, sequence.start : count] = sequence.log_masses
    return Batch(
        tokens.to(device),
        features.to(device),
        continued.to(device),
        log_masses.to(device),
        SAMPLINGS[kind].temperature,
    )


def _rounded(length: int) -> int:
    """Few different shapes: kernels are kept by shape, with their own memory."""
    return -(-(length - 1) // _SIMILAR) * _SIMILAR + 1


def batches_of(
    lessons: Mapping[str, Sequence[Sampled]], tokens: int, seed: int, device: torch.device, dtype: torch.dtype
) -> Iterator[Batch]:
    """Batches of up to so many tokens, padding included, in an order shuffled by seed."""
    shuffler = random.Random(seed)
    groups: list[tuple[str, list[Sampled]]] = []
    for kind, sequences in sorted(lessons.items()):
        mixed = shuffler.sample(list(sequences), len(sequences))
        mixed.sort(key=lambda sequence: len(sequence.tokens) // _SIMILAR)  # stable: mixed among similar ones
        for sequence in mixed:
            last = groups[-1][1] if groups and groups[-1][0] == kind else None
            if last is not None and max(len(s.tokens) for s in (*last, sequence)) * (len(last) + 1) <= tokens:
                last.append(sequence)
            else:
                groups.append((kind, [sequence]))
    shuffler.shuffle(groups)
    for kind, group in groups:
        yield batch_of(kind, group, device, dtype)
