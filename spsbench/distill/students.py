"""What is trained: a small model, an EAGLE-style head, Medusa-style heads.

Every student predicts features, the hidden states that the target's head reads; the head's rows make them
probabilities. ``predict`` gives, depth by depth, the states at all positions of a batch of whole sequences
and how far ahead each depth looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.distill.teacher import Teacher


@dataclass(frozen=True, slots=True)
class Depth:
    """One prediction at every position.

    Attributes:
        states: [b, n, hidden] predicted features; position t stands for the token t + ahead.
    """

    states: Tensor
    ahead: int


class Student(Protocol):
    """A module that predicts features."""

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        """Predictions of a batch.

        Args:
            tokens: [b, n+1] of whole sequences; padding at the end is ignored.
            features: [b, n, hidden] the target's, after each token but the last.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """What is saved, by name."""
        ...


class SmallModel(nn.Module):
    """A few of the target's layers under its own embedding and head: reads tokens alone."""

    def __init__(self, teacher: Teacher, layers: int) -> None:
        super().__init__()
        self._embedding = [teacher.embedding]  # in a list: shared with the target, and not trained
        self.numbers, self.model = teacher.layers_of(layers)

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        embedded = self._embedding[0](tokens[:, :-1]).to(features.dtype)
        yield Depth(self.model(inputs_embeds=embedded, use_cache=False).last_hidden_state, 1)

    def weights(self) -> dict[str, Tensor]:
        return _decoder_weights(self.model)


class EagleHead(nn.Module):
    """One layer over the next token's embedding and the feature after the token before (Li et al. 2024).

    The first depth reads the target's features. The next ones read the head's own, each after what was
    true before: as it drafts, so it is trained (Li et al. 2025, EAGLE-3).
    """

    def __init__(self, teacher: Teacher, depths: int) -> None:
        super().__init__()
        self._embedding = [teacher.embedding]
        self.depths = depths
        self.numbers, self.model = teacher.layers_of(1)
        width = teacher.hidden
        self.fc = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.eye(width), torch.eye(width)], 1))

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        from transformers import DynamicCache

        embedded = self._embedding[0](tokens[:, 1:]).to(features.dtype)
        cache, read = DynamicCache(), features
        count = tokens.shape[1] - 1
        positions = torch.arange(count, device=tokens.device)
        for depth in range(self.depths):
            states = self.model(
                inputs_embeds=self.fc(torch.cat([embedded, read], -1)),
                position_ids=positions.unsqueeze(0),
                past_key_values=cache,
                attention_mask=_mask(count, depth, embedded),
                use_cache=True,
            ).last_hidden_state
            yield Depth(states, 2)
            read = torch.cat([features[:, :1], states[:, :-1]], 1)

    def weights(self) -> dict[str, Tensor]:
        return {"fc.weight": self.fc.weight} | _decoder_weights(self.model)


def _mask(count: int, depth: int, like: Tensor) -> Tensor:
    """[1, 1, count, (depth + 1) count] what each entry of a depth may see.

    Entry t of depth d drafts after d own tokens: it sees what was true up to t - d, and of each depth
    between the one entry that led to it.
    """
    rows, columns = torch.arange(count).unsqueeze(1), torch.arange(count).unsqueeze(0)
    blocks = [columns <= rows - depth] + [columns == rows - depth + i for i in range(1, depth + 1)]
    seen = torch.cat(blocks, 1)
    # The first entries of a depth have no such past; they see themselves alone, and are not learnt from.
    return torch.where(seen, 0.0, torch.finfo(like.dtype).min).to(like)[None, None]


class MedusaHeads(nn.Module):
    """One residual block a token ahead, all over the same feature (Stern et al. 2018, Cai et al. 2024)."""

    def __init__(self, teacher: Teacher, heads: int) -> None:
        super().__init__()
        blank = [nn.Linear(teacher.hidden, teacher.hidden) for _ in range(heads)]
        for head in blank:  # the next token's feature is a better guess than noise
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.heads = nn.ModuleList(blank)

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        for number, head in enumerate(self.heads):
            yield Depth(features + F.silu(head(features)), 2 + number)

    def weights(self) -> dict[str, Tensor]:
        return {f"heads.{name}": value for name, value in self.heads.state_dict().items()}


def _decoder_weights(decoder: Any) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in decoder.state_dict().items()}
