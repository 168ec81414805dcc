"""Trees of drafts: several tokens a place, from a draft model or from texts that go on differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.beam import Node, TreeModel
from spsbench.decode.rejection import ROOT, Draft
from spsbench.decode.rows import HostRow, HostRows
from spsbench.drafters.shape import Shape

Siblings = Literal["without", "independent", "top"]
"""How the tokens of one place are chosen: drawn without replacement, drawn independently, or the most
probable ones (point masses)."""


class _Candidate(NamedTuple):
    """A node that a dynamic tree may take.

    Attributes:
        parent: its index among the candidates; ``ROOT`` below the pending token.
        chance: the draft's probability of the tokens from the pending one to it.
    """

    node: Node
    parent: int
    chance: float


class ModelTreeDrafter:
    """Drafts a tree by a model, depth by depth.

    Siblings that are drawn are drawn with the same warping as the target's. Which tokens are the most
    probable is asked before truncation, so that under greedy sampling too there are several.

    A dynamic tree (Li et al. 2024, EAGLE-2) has the N paths that the draft holds most probable: at each
    depth the best nodes are expanded, each into its most probable tokens, and of all nodes the N best stay.

    Args:
        model: the draft.
        sampling: of draft and target.
        shape: how it branches.
        siblings: how they are chosen; in a dynamic tree the most probable, whatever is given.
        k: the depth of a dynamic tree.
    """

    def __init__(
        self, model: TreeModel, sampling: SamplingParams, shape: Shape, siblings: Siblings, k: int = 0
    ) -> None:
        self.model = model
        ranks = siblings == "top" or shape.dynamic > 0
        self._sampling = untruncated(sampling) if ranks else sampling
        self._shape, self._widths, self._siblings = shape, shape.widths(k), siblings
        self._root = Node(0)
        self._vocab_size = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Read the prompt but its last token, the root."""
        self._root = Node(prompt[-1])
        self.model.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Draft at most k nodes, fewer where the draft's rows support fewer; each node's number draws it."""
        return self._most_probable(k, u) if self._shape.dynamic else self._branching(k, u)

    def _branching(self, k: int, u: Tensor) -> Draft:
        """Draft a static tree: so many siblings at each depth."""
        numbers = u.tolist()
        drafted = list[int]()
        parents = list[int]()
        own_rows = list[HostRow]()
        level = {ROOT: self._root}
        for width in self._widths:
            if not level or len(drafted) == k:
                break
            behind = self._rows_after(level.values())
            below = dict[int, Node]()
            for parent, node in level.items():
                for token, row in self._choice(behind[node], width, numbers[len(drafted) :]):
                    below[len(drafted)] = node.child(token)
                    drafted.append(token)
                    parents.append(parent)
                    own_rows.append(row)
            level = below
        shown = None if self._siblings == "top" else HostRows(own_rows, self._vocab_size)
        return Draft(torch.tensor(drafted, dtype=torch.int64, device=u.device), shown, parents)

    def _choice(self, row: HostRow, width: int, numbers: Sequence[float]) -> Iterator[tuple[int, HostRow]]:
        """At most ``width`` siblings, each with the row that it was chosen from."""
        if self._siblings == "top":
            for token, _ in _likeliest(row, min(width, len(numbers))):
                yield token, row
            return
        for u in numbers[:width]:
            if not row.weights.any():
                return
            token = row.drawn(row.weights, u)
            yield token, row
            if self._siblings == "without":
                row = _row_without(row, token)

    def _most_probable(self, k: int, u: Tensor) -> Draft:
        """Draft a dynamic tree: the nodes most probable under the draft."""
        candidates = list[_Candidate]()
        level = [_Candidate(self._root, ROOT, 1.0)]
        places = {self._root: ROOT}
        for width in self._widths:
            behind = self._rows_after(one.node for one in level)
            grown = [
                _Candidate(one.node.child(token), places[one.node], one.chance * min(probability, 1.0))
                for one in level
                for token, probability in _likeliest(behind[one.node], width)
            ]
            places |= {one.node: len(candidates) + index for index, one in enumerate(grown)}
            candidates += grown
            level = sorted(grown, key=lambda one: -one.chance)[:width]
            if not level:
                break
        # A node comes after its parent, which is no less probable: what stays is a tree.
        order = sorted(range(len(candidates)), key=lambda index: -candidates[index].chance)[:k]
        new = {ROOT: ROOT} | {index: place for place, index in enumerate(order)}
        tokens = torch.tensor(
            [candidates[index].node.token for index in order], dtype=torch.int64, device=u.device
        )
        return Draft(tokens, None, [new[candidates[index].parent] for index in order])

    def _rows_after(self, nodes: Iterable[Node]) -> dict[Node, HostRow]:
        """Of the draft; equal nodes are read once."""
        distinct = list(dict.fromkeys(nodes))
        logits = self.model.score(distinct)
        self._vocab_size = logits.shape[-1]
        row_of = rows.on_host(rows.warped(logits, self._sampling))
        return {node: row_of[index] for index, node in enumerate(distinct)}

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Move to the node of the last token; nodes that are not its ancestors are forgotten."""
        for token in tokens[len(tokens) - accepted - 1 :]:
            self._root = self._root.child(token)
        self.model.keep([self._root])


def untruncated(sampling: SamplingParams) -> SamplingParams:
    """Return the sampling under which a row's most probable tokens are taken."""
    return SamplingParams(temperature=sampling.temperature)


def _likeliest(row: HostRow, width: int) -> list[tuple[int, float]]:
    """With their probabilities, best first, ties by the smaller id."""
    weights = row.weights
    if 0 < width < len(weights):
        least = np.partition(weights, len(weights) - width)[len(weights) - width]
        places = (weights >= max(least, np.finfo(weights.dtype).tiny)).nonzero()[0]
    else:
        places = weights.nonzero()[0]
    order = places[np.argsort(-weights[places], kind="stable")][:width]
    ids = order if row.ids is None else row.ids[order]
    return list(zip(ids.tolist(), weights[order].tolist(), strict=True))


def _row_without(row: HostRow, token: int) -> HostRow:
    """Normalised; all zeros where nothing remains."""
    weights = row.weights.copy()
    weights[token if row.ids is None else int(row.ids.searchsorted(token))] = 0.0
    mass = weights.sum()
    return HostRow(row.ids, weights / mass if mass > 0 else np.zeros_like(weights))


def merged(paths: Iterable[Sequence[int]], shape: Shape, k: int, u: Tensor) -> Draft:
    """Merge several continuations into one tree, the preferred one first, as point masses.

    Args:
        paths: tokens after the pending one; consumed until the tree is full.
        shape: a static one limits the siblings of each depth, a dynamic one the nodes alone.
        k: the most nodes.
        u: its device is the draft's.
    """
    below = dict[tuple[int, int], int]()
    tokens = list[int]()
    parents = list[int]()
    siblings: dict[int, int] = {}
    for path in paths:
        node = ROOT
        for depth, token in enumerate(path if shape.dynamic else path[: len(shape.branching)]):
            if (node, token) not in below:
                full = not shape.dynamic and siblings.get(node, 0) == shape.branching[depth]
                if full or len(tokens) == k:
                    break
                siblings[node] = siblings.get(node, 0) + 1
                below[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = below[node, token]
        if len(tokens) == k:
            break
    return Draft(torch.tensor(tokens, dtype=torch.int64, device=u.device), None, parents)
