"""The shape of a draft: a chain, a tree that branches by depth, or a dynamic tree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from spsbench.base.axes import CHAIN
from spsbench.base.errors import UsageError

_DYNAMIC = "dynamic"

MOST_NODES = 64
"""Of a tree: with the pending token, the rows of one forward that are kept bound."""


@dataclass(frozen=True)
class Shape:
    """How a tree of drafts branches.

    Attributes:
        branching: children of every node, by depth; empty where the draft's probabilities decide.
        dynamic: nodes of a dynamic tree (Li et al. 2024, EAGLE-2), whose depth is K; 0 of a static one.
    """

    branching: tuple[int, ...] = ()
    dynamic: int = 0

    def __str__(self) -> str:
        """As an option of a drafter has it: its text may hold no comma and no colon."""
        return f"{_DYNAMIC}-{self.dynamic}" if self.dynamic else "-".join(map(str, self.branching))

    @cached_property
    def nodes(self) -> int:
        """The most tokens of one draft."""
        return self.dynamic or sum(accumulate(self.branching, mul))

    def depth(self, k: int) -> int:
        """Return the most tokens of one draft that can stand: K, or the depth of a static tree."""
        return k if self.dynamic else len(self.branching)

    def require_branches(self, count: int, k: int) -> None:
        """Refuse a tree without room for so many branches of its whole depth.

        Raises:
            UsageError: it has fewer nodes.
        """
        needed = count * self.depth(k)
        if needed > self.nodes:
            why = f"{count} drafters of {self.depth(k)} tokens do not fit into a tree of {self.nodes} nodes."
            remedy = f"Begin with {count} siblings, or give {_DYNAMIC}:{needed}."
            raise UsageError(why, flag="--tree", remedy=remedy)

    def widths(self, k: int) -> tuple[int, ...]:
        """Children of each node that is expanded, by depth; of a dynamic tree also how many are expanded."""
        return (-(-self.dynamic // k),) * k if self.dynamic else self.branching


def shape_of(text: str, flag: str) -> Shape | None:
    """Read ``4,2,1`` or ``dynamic:24``, or what ``Shape`` writes; None for a chain.

    Raises:
        UsageError: it is none of them, or has more than ``MOST_NODES`` nodes.
    """
    plain = text.strip().replace(" ", "").replace(",", "-").replace(":", "-")
    if plain == CHAIN:
        return None
    match = re.fullmatch(rf"({_DYNAMIC}-)?([1-9]\d{{0,3}}(?:-[1-9]\d{{0,3}})*)", plain)
    numbers = tuple(map(int, match[2].split("-"))) if match else ()
    if match is None or (match[1] and len(numbers) > 1):
        remedy = f"Give siblings by depth (4,2,1), {_DYNAMIC}:N for the N most probable, or {CHAIN}."
        raise UsageError(f"{text or 'an empty text'} is not the shape of a draft.", flag=flag, remedy=remedy)
    shape = Shape(dynamic=numbers[0]) if match[1] else Shape(numbers)
    if shape.nodes > MOST_NODES:
        why = f"{text} has {shape.nodes} nodes; one forward takes {MOST_NODES}."
        raise UsageError(why, flag=flag, remedy="Give fewer siblings or less depth.")
    return shape
