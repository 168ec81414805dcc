"""Heads that were trained for the target and read its last hidden states: EAGLE and Medusa."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.beam import Node
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import by_chain, by_proposals, chain_rows
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.tree import ModelTreeDrafter
from spsbench.models.causal_lm import CausalLM, HiddenStates, OverTarget
from spsbench.models.heads import HeadChain, Heads, PEagleChain
from spsbench.models.live_tree import Branches, LiveTree


class EagleModel(OverTarget):
    """An EAGLE head (Li et al. 2024) over its target, as a language model that drafts.

    Where the target has read a token its feature is the target's own; after that it is what the head
    predicted, one token at a time. To roll back is to forget every entry of the second kind: the tokens that
    stood are read again from the target's features. The first token of a sequence has no entry, since there
    is no feature before it.

    Args:
        chain: the head.
    """

    def __init__(self, chain: HeadChain, target: CausalLM, hidden: HiddenStates) -> None:
        super().__init__(target, hidden)
        self._chain = chain
        self._read = 0
        self._true = 0  # how many of the chain's entries use the target's features
        self._nothing = torch.zeros(1, self.vocab_size, device=self.device)
        self._dtype = torch.float32
        self._predicted = torch.empty(0)

    @property
    def length(self) -> int:
        return self._read

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """The first token's row is all zeros."""
        assert last == 1
        new = tokens if self._read else tokens[1:]
        self._read += len(tokens)
        if not len(new):
            return self._nothing
        start = self._chain.length
        end = self._chain.length + len(new)
        is_predicted = self._hidden.length < end
        assert not is_predicted or len(new) == 1, "several tokens that the target has not read"
        if is_predicted:
            features = self._predicted
        else:
            read = self._hidden.features(start, end, self._chain.reads)
            features = self._chain.combined(read)
            self._true, self._dtype = end, read.dtype
        logits, self._predicted = self._chain.extend(new, features)
        return logits.to(self._dtype)

    def rollback(self, length: int) -> None:
        """Keep at most the first ``length`` tokens, and no entry over the head's own feature."""
        self._read = min(self._read, length, self._true + 1)
        self._true = max(0, min(self._true, self._read - 1))
        self._chain.rollback(self._true)

    def forward_bytes(self) -> int:
        return self._chain.forward_bytes()

    def predicted(self) -> Tensor:
        """[1, hidden] a copy of the feature that the last entry predicted."""
        return self._predicted.clone()

    def branch(self, nodes: Sequence[Node], features: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        """See ``HeadChain.branch``: entries over the head's own features, until it is rolled back."""
        tokens = torch.tensor([node.token for node in nodes], device=self.device)
        logits, predicted = self._chain.branch(tokens, features, branches)
        return logits.to(self._dtype), predicted.clone()


class EagleTree:
    """An EAGLE head as a ``TreeModel``: what it has not read of its target, a node's parent predicts.

    Args:
        head: reads the pending token, the tree's root, with the target's features.
    """

    def __init__(self, head: EagleModel) -> None:
        self._head = head
        self._text: list[int] = []
        self._prompt = 0
        self._root: Node | None = None
        self._tree = LiveTree(0)
        self._predicted: dict[Node, Tensor] = {}

    def begin(self, prompt: Sequence[int]) -> None:
        self._text, self._prompt, self._root = list(prompt), len(prompt), None
        self._predicted = {}
        self._head.begin(prompt)

    def score(self, nodes: Sequence[Node]) -> Tensor:
        if not self._predicted:
            (self._root,) = nodes
            pending = torch.tensor(self._text[self._head.length :], device=self._head.device)
            logits = self._head.score(pending, last=1)
            self._predicted[self._root] = self._head.predicted()
            # An entry stands for the token after it: the first token has none.
            self._tree = LiveTree(self._prompt - 2, self._root.depth + 1)
            return logits
        fresh = self._tree.add(nodes)
        assert fresh == sorted(nodes, key=lambda node: node.depth), "a parent is scored before its children"
        above = torch.cat([self._predicted[node.parent] for node in fresh if node.parent is not None])
        logits, predicted = self._head.branch(fresh, above, self._tree.last(len(fresh)))
        self._predicted |= zip(fresh, torch.split(predicted, 1), strict=True)
        place = {node: index for index, node in enumerate(fresh)}
        return logits[[place[node] for node in nodes]]

    def keep(self, nodes: Sequence[Node]) -> None:
        (node,) = nodes
        self._text += _tokens_below(self._root, node)
        self._root, self._predicted = node, {}
        self._head.rollback(len(self._text) - 1)


def _tokens_below(root: Node | None, node: Node) -> list[int]:
    """Of a node and of its ancestors below the root, first to last."""
    tokens: list[int] = []
    above: Node | None = node
    while above is not root and above is not None and above.parent is not None:
        tokens.append(above.token)
        above = above.parent
    return tokens[::-1]


class Ahead(Protocol):
    """What gives the rows of several places after a text at once: none depends on what another draws."""

    @property
    def count(self) -> int:
        """How many places at most; 0 for any number."""

    def begin(self) -> None:
        """Forget the last text."""
        ...

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        """[places, V] logits of the places from ids[start] on; of the ids those before it are read."""
        ...

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads, of however many places."""
        ...


class MedusaAhead:
    """Blockwise heads (Stern et al. 2018, Medusa, Cai et al. 2024) on the feature of the last token read."""

    def __init__(self, heads: Heads, hidden: HiddenStates) -> None:
        self._heads, self._hidden, self.count = heads, hidden, heads.count

    def begin(self) -> None:
        """Do nothing: the heads keep nothing from one loop to the next."""

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        feature = self._hidden.features(start - 2, start - 1)
        return self._heads(feature, places).to(feature.dtype)

    def forward_bytes(self) -> int:
        return self._heads.forward_bytes()


class PEagleAhead:
    """A P-EAGLE head: entries of all tokens that the target has read, and places after them."""

    count = 0

    def __init__(self, chain: PEagleChain, hidden: HiddenStates, device: torch.device) -> None:
        self._chain, self._hidden, self._device = chain, hidden, device

    def begin(self) -> None:
        self._chain.rollback(0)

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        # The last entry is read again where it is there: its row is wanted.
        self._chain.rollback(start - 2)
        first = self._chain.length
        new = torch.as_tensor(ids[first + 1 : start], device=self._device)
        features = self._hidden.features(first, start - 1, self._chain.reads)
        kept = self._chain.ahead(new, self._chain.combined(features), places)
        return kept.to(features.dtype)

    def forward_bytes(self) -> int:
        return self._chain.forward_bytes()


class AheadTree:
    """Places at once as a ``TreeModel``: all nodes of a depth have one row."""

    def __init__(self, ahead: Ahead, depth: int) -> None:
        self._ahead, self._depth = ahead, depth
        self._text: list[int] = []
        self._rows = torch.empty(0)
        self._root: Node | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        self._ahead.begin()
        self._text, self._root = list(prompt), None

    def score(self, nodes: Sequence[Node]) -> Tensor:
        if self._root is None:
            (self._root,) = nodes
            depth = min(self._depth, self._ahead.count or self._depth)
            self._rows = self._ahead.rows(self._text, len(self._text), depth).clone()
        return self._rows[[node.depth - self._root.depth for node in nodes]]

    def keep(self, nodes: Sequence[Node]) -> None:
        (node,) = nodes
        self._text += _tokens_below(self._root, node)
        self._root = None


class HeadTreeDrafter(ModelTreeDrafter):
    """Drafts a tree from heads; none after a single token."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return super().draft(tokens, k, u) if len(tokens) > 1 else _nothing(u)


class EagleDrafter(ModelDrafter):
    """Samples K tokens from an EAGLE head, one after the other; none after a single token."""

    model: OverTarget

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return super().draft(tokens, k, u) if len(tokens) > 1 else _nothing(u)

    forced = by_chain

    def along(self, ids: Tensor, start: int, count: int) -> Tensor:
        """Yield [count, V] logits before tokens of a text, of a draft that began before ids[start]."""
        return torch.cat([row.clone() for row in chain_rows(self.model, ids, start, count)])

    def forward_bytes(self) -> int:
        """Bytes of weights that one forward for one token reads; a draft of K tokens takes K forwards."""
        return self.model.forward_bytes()


class AheadDrafter:
    """Samples up to K tokens at once, each from the row of its place and independent of the others.

    None after a single token, and no more than there are places.

    Args:
        ahead: gives the rows.
        sampling: of draft and target.
    """

    def __init__(self, ahead: Ahead, sampling: SamplingParams) -> None:
        self._ahead, self._sampling = ahead, sampling

    def begin(self, prompt: Sequence[int]) -> None:
        self._ahead.begin()

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Draft one token a place, each from its own row."""
        if len(tokens) < 2:
            return _nothing(u)
        places = min(k, self._ahead.count or k)
        own_rows = rows.warped(self._ahead.rows(tokens, len(tokens), places), self._sampling)
        return Draft(own_rows.draw(u[:places]), own_rows)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Do nothing: what is kept is of decided tokens alone."""

    forced = by_proposals

    def along(self, ids: Tensor, start: int, count: int) -> Tensor:
        """See ``EagleDrafter.along``; the ids from ``start`` on are not read."""
        return self._ahead.rows(ids, start, count)

    def forward_bytes(self) -> int:
        """Bytes of weights that a draft reads, of however many tokens."""
        return self._ahead.forward_bytes()


def _nothing(u: Tensor) -> Draft:
    return Draft(torch.empty(0, dtype=torch.int64, device=u.device), None)
