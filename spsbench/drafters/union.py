"""A union of drafters: the first that has something to propose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import Forced, ForcedText, Integers, forced
from spsbench.drafters.registry import DRAFT, Context
from spsbench.errors import UsageError
from spsbench.plugins import Options


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
        """The first proposal of at least one token; the last member's where all have none."""
        for member in self.members:
            proposal = member.draft(tokens, k, u)
            if len(proposal.tokens):
                self._proposer = member
                return proposal
        self._proposer = None
        return proposal

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """All hear what was decided; of the others' drafts nothing stands."""
        for member in self.members:
            member.observe(tokens, accepted if member is self._proposer else 0)

    def forced(self, text: ForcedText, k: int) -> Forced:
        """See ``forced.forced``: before every token the drafts of the first member that has one."""
        found = [forced(member, text, k, f"union of {type(member).__name__}") for member in self.members]
        return united(found)[0]


def united(members: Sequence[Forced]) -> tuple[Forced, Integers]:
    """What members that were read over one text propose together.

    Returns:
        before every token the drafts of the first that has one, and [n] its number, else the last one's.
    """
    ratios, drafted = np.zeros_like(members[0].ratios), np.zeros_like(members[0].drafted)
    proposers = np.full_like(drafted, len(members) - 1)
    for number, found in enumerate(members):
        free = (drafted == 0) & (found.drafted > 0)
        ratios[free], drafted[free], proposers[free] = found.ratios[free], found.drafted[free], number
    return Forced(ratios, drafted), proposers


def build(options: Options, context: Context) -> Drafter:
    from spsbench.drafters.registry import build_drafter, members

    for spec, kind in members(options):
        if DRAFT in kind.needs and context.draft is None:
            raise UsageError(
                f"union:of has {spec.name}, which needs a draft model, and the run has none.",
                flag="--drafter",
                remedy="Name a draft model with --draft, or take it out of the union.",
            )
    return UnionDrafter([build_drafter(spec, context) for spec, _ in members(options)])
