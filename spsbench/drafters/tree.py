"""A tree of drafts: several tokens a place, from a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spsbench.decode import rows
from spsbench.decode.beam import Node, TreeModel
from spsbench.decode.rejection import ROOT, Draft
from spsbench.decode.rows import HostRow, HostRows
from spsbench.records import SamplingParams

Siblings = Literal["without", "independent", "top"]
"""How the tokens of one place are chosen: drawn without replacement, drawn independently, or the most
probable ones (point masses)."""


class ModelTreeDrafter:
    """Draws a tree from a draft model, depth by depth, with the same warping as the target's.

    Args:
        model: the draft.
        sampling: of draft and target.
        branching: children of each node, by depth; fewer where the draft's row supports fewer.
        siblings: how they are chosen.
    """

    def __init__(
        self, model: TreeModel, sampling: SamplingParams, branching: Sequence[int], siblings: Siblings
    ) -> None:
        self.model, self.sampling = model, sampling
        self._branching, self._siblings = branching, siblings
        self._root = Node(0)

    def begin(self, prompt: Sequence[int]) -> None:
        """Read the prompt but its last token, the root."""
        self._root = Node(prompt[-1])
        self.model.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Draw at most k nodes; the number of each decides its draw."""
        numbers = u.tolist()
        drafted, parents, told = list[int](), list[int](), list[HostRow]()
        level, vocab_size = {ROOT: self._root}, 0
        for width in self._branching:
            if not level or len(drafted) == k:
                break
            distinct = list(dict.fromkeys(level.values()))
            logits = self.model.score(distinct)
            held = rows.on_host(rows.warped(logits, self.sampling))
            vocab_size = logits.shape[-1]
            place = {node: index for index, node in enumerate(distinct)}
            below: dict[int, Node] = {}
            for parent, node in level.items():
                row = held[place[node]]
                for _ in range(width):
                    if len(drafted) == k or not row.weights.any():
                        break
                    token = self._chosen(row, numbers[len(drafted)])
                    below[len(drafted)] = node.child(token)
                    drafted.append(token)
                    parents.append(parent)
                    told.append(row)
                    if self._siblings != "independent":
                        row = _without(row, token)
            level = below
        shown = None if self._siblings == "top" else HostRows(told, vocab_size)
        return Draft(torch.tensor(drafted, dtype=torch.int64, device=u.device), shown, parents)

    def _chosen(self, row: HostRow, u: float) -> int:
        if self._siblings != "top":
            return row.drawn(row.weights, u)
        place = int(row.weights.argmax())
        return place if row.ids is None else int(row.ids[place])

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Go to the node of the last token; what is not above it is forgotten."""
        for token in tokens[len(tokens) - accepted - 1 :]:
            self._root = self._root.child(token)
        self.model.keep([self._root])


def _without(row: HostRow, token: int) -> HostRow:
    """The row without a token, normalised; all 0 where nothing else is left."""
    weights = row.weights.copy()
    weights[token if row.ids is None else int(row.ids.searchsorted(token))] = 0.0
    mass = weights.sum()
    return HostRow(row.ids, weights / mass if mass > 0 else np.zeros_like(weights))
