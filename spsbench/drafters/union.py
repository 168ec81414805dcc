"""A union of drafters: the first that has something to propose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import Ints
from spsbench.base.errors import UsageError
from spsbench.base.plugins import Options
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import ForcedDrafts, ForcedText, forced_drafts
from spsbench.drafters.registry import DRAFT, Context
from spsbench.drafters.shape import Shape
from spsbench.drafters.tree import merged


class UnionDrafter:
    """Asks its drafters in turn and takes the first proposal that is not empty.

    Each member must fulfil the contract of a drafter: one that proposes nothing has drawn nothing, so that
    who proposes depends on decided tokens alone and the law is the target's. A member that was not asked
    for some loops finds several new tokens at its next draft.

    Args:
        members: at least one, in the order in which they are asked.
    """

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = members
        self._proposer: Drafter | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        """Every member reads the prompt: any may be asked in the first loop."""
        self._proposer = None
        for member in self.members:
            member.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Return the first proposal with at least one token; the last member's where none has one."""
        for member in self.members:
            proposal = member.draft(tokens, k, u)
            if len(proposal.tokens):
                self._proposer = member
                return proposal
        self._proposer = None
        return proposal

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Report what was decided to every member; only the one that proposed had tokens accepted."""
        for member in self.members:
            member.observe(tokens, accepted if member is self._proposer else 0)

    def forced(self, text: ForcedText, k: int) -> ForcedDrafts:
        """See ``forced_drafts``: before every token the drafts of the first member that has one."""
        forced_of_members = [
            forced_drafts(member, text, k, f"union of {type(member).__name__}") for member in self.members
        ]
        return united(forced_of_members)[0]


class UnionTreeDrafter:
    """Gives every drafter a branch of one tree; what they begin with in common is one branch as long.

    Each drafted token is a proposal of its own, whatever row a member drew it from (point masses).

    Args:
        members: at least one, the preferred first.
        shape: of the tree.
        depth: how many tokens each member drafts.
    """

    def __init__(self, members: Sequence[Drafter], shape: Shape, depth: int) -> None:
        self.members = members
        self._shape, self._depth = shape, depth
        self._paths: list[list[int]] = []
        self._begun = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Every member reads the prompt."""
        self._paths = []
        for member in self.members:
            member.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Each member drafts a chain by numbers of its own."""
        numbers_of = torch.split(u, self._depth)
        proposals = [
            member.draft(tokens, self._depth, numbers)
            for member, numbers in zip(self.members, numbers_of, strict=False)
        ]
        self._begun, self._paths = len(tokens), [proposal.tokens.tolist() for proposal in proposals]
        return merged(self._paths, self._shape, k, u)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Tell each member how much of its own draft agrees with the decided tokens."""
        stood = tokens[self._begun : self._begun + accepted]
        for member, path in zip(self.members, self._paths, strict=True):
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(path, stood, strict=False))
            member.observe(tokens, len(list(shared)))


def united(members: Sequence[ForcedDrafts]) -> tuple[ForcedDrafts, Ints]:
    """Return what members that were read over one text propose together.

    Returns:
        before every token the drafts of the first that has one, and [n] its number, else the last one's.
    """
    ratios, drafted = np.zeros_like(members[0].ratios), np.zeros_like(members[0].drafted)
    proposers = np.full_like(drafted, len(members) - 1)
    for number, drafts in enumerate(members):
        free = (drafted == 0) & (drafts.drafted > 0)
        ratios[free] = drafts.ratios[free]
        drafted[free] = drafts.drafted[free]
        proposers[free] = number
    return ForcedDrafts(ratios, drafted), proposers


def build(options: Options, context: Context) -> Drafter:
    from spsbench.drafters.registry import TREE, build_drafter, members
    from spsbench.drafters.shape import shape_of

    for spec, kind in members(options):
        if DRAFT in kind.needs and context.draft is None:
            why = f"union:of has {spec.name}, which needs a draft model, and the run has none."
            remedy = "Name a draft model with --draft, or take it out of the union."
            raise UsageError(why, flag="--drafter", remedy=remedy)
    drafters = [build_drafter(spec, context) for spec, _ in members(options)]
    shape = shape_of(str(options[TREE]), "--tree")
    if shape is None:
        return UnionDrafter(drafters)
    shape.require_branches(len(drafters), context.k)
    return UnionTreeDrafter(drafters, shape, shape.depth(context.k))
