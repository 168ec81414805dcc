"""Which column of a cache is which node of a tree of tokens, and what each node sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.base.arrays import Bools, Ints
from spsbench.decode.beam import Node

Columns = Ints


@dataclass(frozen=True, slots=True)
class Branches:
    """The last n of a cache's columns, where they are not a chain.

    Attributes:
        positions: [m] of the last m columns, those of the n and others of the tree before them.
        sees: [n, m] which of them each of the n attends to; all of them attend to all columns before.
    """

    positions: Columns
    sees: Bools


class LiveTree:
    """The columns after a prefix that every node sees.

    The prefix is the prompt and the trunk: the nodes that all that is kept descends from. So the tree
    is as large as what is undecided, however long the text is.

    Args:
        prompt: columns before that of the root, whose depth is 0.
        trunk: columns of decided nodes after them.

    Attributes:
        prefix: number of columns before the tree.
    """

    def __init__(self, prompt: int, trunk: int = 0) -> None:
        self._root = prompt
        self.prefix = prompt + trunk
        self._columns: dict[Node, int] = {}
        self._depths = np.empty(0, np.int64)
        self._sees = np.empty((0, 0), np.bool_)

    def add(self, nodes: Sequence[Node]) -> list[Node]:
        """Give columns to nodes and to their ancestors without one; return all of those by depth."""
        fresh = {above: None for node in nodes for above in (node, *self._ancestors_off_trunk(node))}
        ordered = sorted((node for node in fresh if node not in self._columns), key=lambda node: node.depth)
        first = len(self._columns)
        count = len(self._columns) + len(ordered)
        sees = np.zeros((count, count), np.bool_)
        sees[:first, :first] = self._sees
        for column, node in enumerate(ordered, first):
            self._columns[node] = column
            if node.parent in self._columns:
                sees[column] = sees[self._columns[node.parent]]
            sees[column, column] = True
        self._sees = sees
        self._depths = np.append(self._depths, [node.depth for node in ordered]).astype(np.int64)
        return ordered

    def _ancestors_off_trunk(self, node: Node) -> Iterator[Node]:
        above = node.parent
        while above is not None and above.depth >= self.prefix - self._root:
            yield above
            above = above.parent

    def last(self, n: int) -> Branches:
        """Return what the n columns that were added last can see."""
        return Branches(self._root + self._depths, self._sees[len(self._sees) - n :])

    def keep(self, nodes: Sequence[Node]) -> tuple[int, Columns]:
        """Forget all but the ancestors of these nodes; return (first, columns): the columns [m] that move to
        ``first`` and after it, where the cache then ends.
        """
        wanted = Counter(above for node in nodes for above in self._ancestors_off_trunk(node))
        stay = [node for node in self._columns if node in wanted]
        kept_columns = np.array([self._columns[node] for node in stay], np.int64)
        moved = self.prefix + kept_columns
        still = int((kept_columns == np.arange(len(kept_columns))).cumprod().sum())
        first = self.prefix + still
        trunk = sum(wanted[node] == len(nodes) for node in stay)
        self._columns = {node: column for column, node in enumerate(stay[trunk:])}
        self.prefix += trunk
        rest = kept_columns[trunk:]
        self._depths, self._sees = self._depths[rest], self._sees[np.ix_(rest, rest)]
        return first, moved[still:]
