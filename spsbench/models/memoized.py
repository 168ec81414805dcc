"""A model that computes the logits behind each context once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.models.language_model import LanguageModel


class _Node:
    """A context, as a place in the tree of all contexts that were asked for."""

    __slots__ = ("children", "row")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.row: Tensor | None = None

    def child(self, token: int) -> _Node:
        """The context that is one token longer."""
        node = self.children.get(token)
        if node is None:
            node = self.children[token] = _Node()
        return node


class MemoizedModel:
    """Answers from memory where it can, so that many draws over few contexts cost little.

    A context keeps the row that it was first given, whatever block it was scored in: the remembered
    rows are the exact law for whoever samples from them.

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
        self._path = [_Node()]
        self._read: list[int] = []

    @property
    def length(self) -> int:
        """How many tokens the memory holds."""
        return len(self._fed)

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """See ``LanguageModel.score``."""
        for token in tokens.tolist():
            self._fed.append(token)
            self._path.append(self._path[-1].child(token))
        nodes = self._path[-last:]
        missing = next((i for i, node in enumerate(nodes) if node.row is None), last)
        if missing < last:
            self._compute(nodes, missing)
        rows = [node.row for node in nodes if node.row is not None]
        return rows[0] if last == 1 else torch.cat(rows)

    def rollback(self, length: int) -> None:
        """See ``LanguageModel.rollback``."""
        del self._fed[length:]
        del self._path[length + 1 :]

    def row(self, context: Sequence[int]) -> Tensor:
        """Logits [1, V] behind a context; afterwards the memory holds it."""
        self.rollback(0)
        return self.score(torch.tensor(context), last=1)

    def _compute(self, nodes: list[_Node], missing: int) -> None:
        """Ask the model underneath for the rows of all nodes from the first missing one, in one forward."""
        wanted = len(nodes) - missing
        known = len(self._fed) - wanted
        shared = 0
        for ours, theirs in zip(self._read, self._fed[:known], strict=False):
            if ours != theirs:
                break
            shared += 1
        self._rollback(shared)
        self._read = list(self._fed)
        rows = self._score(torch.tensor(self._fed[shared:], device=self._device), last=wanted)
        for node, row in zip(nodes[missing:], torch.split(rows.clone(), 1), strict=True):
            if node.row is None:
                node.row = row
