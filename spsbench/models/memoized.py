"""A model that computes the logits after each context once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.decode.protocols import LanguageModel


class _Node:
    """A context: a node in the trie of all contexts scored so far."""

    __slots__ = ("children", "row")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.row: Tensor | None = None

    def child(self, token: int) -> _Node:
        """The context extended by one token."""
        node = self.children.get(token)
        if node is None:
            node = self.children[token] = _Node()
        return node


class MemoizedModel:
    """Memoizes logits by context, so that many draws over few contexts are cheap.

    A context keeps its first row, whatever block it was scored in: samples from memoized rows follow
    exactly the distribution of these rows.

    Args:
        model: computes the rows that are missing.
        device: of the model.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self.vocab_size = model.vocab_size
        self.context_window = model.context_window
        # Bound now: a fault injected into the model later must not change the reference.
        self._score, self._rollback = model.score, model.rollback
        self._device = device
        self._fed: list[int] = []
        self._path = [_Node()]
        self._read: list[int] = []

    @property
    def length(self) -> int:
        """Number of tokens in the current context."""
        return len(self._fed)

    def score(self, tokens: Tensor, last: int) -> Tensor:
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
        del self._fed[length:]
        del self._path[length + 1 :]

    def row(self, context: Sequence[int]) -> Tensor:
        """Logits [1, V] after a context, which becomes the current one."""
        self.rollback(0)
        return self.score(torch.tensor(context), last=1)

    def _compute(self, nodes: list[_Node], missing: int) -> None:
        """Compute the rows from the first missing one on, in one forward of the wrapped model."""
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
