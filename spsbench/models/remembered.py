"""A model that computes the logits behind each context once."""

from __future__ import annotations

import torch
from torch import Tensor

from spsbench.models.language_model import LanguageModel


class RememberedModel:
    """Answers from memory where it can, so that many draws over few contexts cost little.

    Everything is asked of the model underneath one row at a time: the rows do not depend on how a
    context was cut into forwards, and so they are the exact law for whoever samples from them.

    Args:
        model: computes what is not remembered.
        device: where the model is.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self.vocab_size = model.vocab_size
        self.context_window = model.context_window
        # The verbs as they are now: a control planted into the model later must not bend the truth.
        self._score, self._rollback = model.score, model.rollback
        self._device = device
        self._fed: list[int] = []
        self._read: list[int] = []
        self._rows: dict[tuple[int, ...], Tensor] = {}

    @property
    def length(self) -> int:
        """How many tokens the memory holds."""
        return len(self._fed)

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """See ``LanguageModel.score``."""
        self._fed += tokens.tolist()
        end = len(self._fed)
        return torch.cat([self.row(tuple(self._fed[:i])) for i in range(end - last + 1, end + 1)])

    def rollback(self, length: int) -> None:
        """See ``LanguageModel.rollback``."""
        del self._fed[length:]

    def row(self, context: tuple[int, ...]) -> Tensor:
        """Logits [1, V] behind a context."""
        row = self._rows.get(context)
        if row is None:
            row = self._rows[context] = self._compute(context)
        return row

    def _compute(self, context: tuple[int, ...]) -> Tensor:
        shared = 0
        for ours, theirs in zip(self._read, context[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        self._rollback(shared)
        self._read = list(context)
        return self._score(torch.tensor(context[shared:], device=self._device), last=1).clone()
