"""What an arm's loops decided, derived again from their rows, and the rows kept for a second look.

The rows are at hand when a sequence is flushed, after its clock has stopped. Deriving decisions from them
needs no forward, and no dtype's rounding plays a part; whether they were the target's own is for an
independent forward of the finished text to say (``law.apart``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.base.axes import MODEL, MODIFIED_REJECTION
from spsbench.base.records import Loop, Spec
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.rows import Rows, on_host
from spsbench.drafters.policy import lookaheads
from spsbench.drafters.registry import Policy, build_policy, is_derivable, is_ours, shape_in
from spsbench.law.evidence import DECIDED, Sums, added
from spsbench.law.rederive import decisions_of, lengths_rederived, rederive, uniform_numbers
from spsbench.law.rules_again import RuledLoop, derived


class KeptRows:
    """Rows of a sequence's loops at the positions of its output, until these are read again.

    Where they take too much memory every second loop's are let go, then every second of the rest.

    Args:
        most_bytes: what they may take.

    Attributes:
        target: per loop the target's rows; None where they were let go.
        draft: per loop the rows that drafted tokens were drawn from, as far as their places are in the
            output; None of one whose tokens were certain.
        every: of so many loops one was kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self.target: list[Rows | None] = []
        self.draft: list[Rows | None] = []
        self.every = 1
        self._most_bytes, self._bytes = most_bytes, 0

    def keep(self, target: Rows, draft: Rows | None) -> None:
        """Keep the rows of the next loop, on the host."""
        whole = len(self.target) % self.every == 0
        self.target.append(on_host(target) if whole else None)
        self.draft.append(on_host(draft) if whole and draft is not None else None)
        self._bytes += sum(rows.nbytes for rows in (self.target[-1], self.draft[-1]) if rows is not None)
        while self._bytes > self._most_bytes and self.every < len(self.target):
            self._thin()

    def _thin(self) -> None:
        self.every *= 2
        for rows in (self.target, self.draft):
            rows[:] = [one if number % self.every == 0 else None for number, one in enumerate(rows)]
        self._bytes = sum(row.nbytes for rows in (self.target, self.draft) for row in rows if row is not None)


@dataclass(frozen=True, slots=True)
class Derivation:
    """How the decisions of an arm's loops are derived again.

    Attributes:
        rule: its name; modified rejection, also of ArS, or one of ``law.rules_again.RULES``.
        k: lookahead, of trees the most nodes: a loop has 2k + 1 uniform numbers.
        own_way: the drafter may make tokens of its numbers in a way of its own: what does not follow is open.
        policy: of a draft model, how many tokens a loop drafts; None if always K.
    """

    rule: str = MODIFIED_REJECTION
    k: int = 0
    own_way: bool = False
    policy: Policy | None = None

    def of_rule(self, loops: Sequence[DecodedLoop], first: int, seed: int) -> Sums:
        """Derive the decisions of loops under a rule other than modified rejection.

        ``first`` loops came before.
        """
        sums: Sums = {}
        if self.rule == MODIFIED_REJECTION:
            return sums
        numbers = uniform_numbers(seed, first + len(loops), 2 * self.k + 1)[first:].tolist()
        for loop, loop_numbers in zip(loops, numbers, strict=True):
            sums = added(sums, derived(self.rule, _ruled_loop(loop, loop_numbers), own_way=self.own_way))
        return sums

    def of_text(
        self,
        tokens: Sequence[int],
        records: Sequence[Loop],
        proposed: Sequence[Sequence[int]],
        first: int,
        target: Sequence[Tensor],
        draft: Sequence[Rows | None],
        seed: int,
    ) -> Sums:
        """Derive the decisions of modified rejection at consecutive positions of the output.

        Args:
            tokens: emitted there.
            records: of all loops of the sequence so far.
            proposed: their drafted ids.
            first: the loop that emitted the first of the tokens.
            target: per loop from there on [n, V] the target's rows at its positions.
            draft: of each the rows that drafted tokens were drawn from, as far as they have a place there.
        """
        if self.rule != MODIFIED_REJECTION or not tokens:
            return {}
        allowed = None
        if self.policy is not None and self.k:
            allowed = lookaheads(self.policy, self.k, _verdicts(records, proposed))[first:]
        decided = decisions_of(tokens, records[first:], proposed[first:], self.k, seed, allowed, first)
        drawn_from = (
            None if all(own is None for own in draft) else torch.cat(_padded_draft_rows(target, draft))
        )
        margin = None if self.policy is None else self.policy.margin
        return rederive(decided, torch.cat(list(target)), drawn_from, margin=margin, own_way=self.own_way)

    def of_lengths(self, records: Sequence[Loop], proposed: Sequence[Sequence[int]]) -> Sums:
        """Check that drafts were as long as the policy allows; a foreign drafter's word is taken for it."""
        if self.k == 0:
            return {}
        if self.policy is not None:
            allowed = lookaheads(self.policy, self.k, _verdicts(records, proposed))
            return lengths_rederived(proposed, allowed, early=self.policy.margin is not None)
        if not self.own_way:
            return {}
        # Drafts that were drawn and withdrawn are not recorded.
        short = float(sum(len(ids) != self.k for ids in proposed))
        return {DECIDED: short, f"{DECIDED}_open": short}


def derivation_of(k: int, drafter: Spec, rule: Spec, policy: Spec) -> Derivation | None:
    """Return how the decisions of a way of drafting and accepting are derived again.

    None under a rule whose decisions are not: one that is lossy, or not ours.
    """
    if not is_derivable(rule.name):
        return None
    shape = shape_in(drafter)
    # Trees and other drafters may draft any length.
    adaptive = shape is None and drafter.name == MODEL
    return Derivation(
        rule.name,
        k if shape is None else shape.nodes,
        own_way=not is_ours(drafter),
        policy=build_policy(policy) if adaptive else None,
    )


def _verdicts(records: Sequence[Loop], proposed: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [(len(ids), loop.accepted) for ids, loop in zip(proposed, records, strict=True)]


def _ruled_loop(loop: DecodedLoop, numbers: Sequence[float]) -> RuledLoop:
    draft = loop.draft
    target = loop.target_rows.dense().cpu().numpy()
    if draft is None:
        return RuledLoop((), (), target, None, (), loop.tokens[-1], numbers)
    path = tuple(range(loop.accepted)) if loop.path is None else loop.path
    probs = None if draft.probs is None else draft.probs.cpu().numpy()
    return RuledLoop(draft.tokens.tolist(), draft.above, target, probs, path, loop.tokens[-1], numbers)


def _padded_draft_rows(target: Sequence[Tensor], draft: Sequence[Rows | None]) -> list[Tensor]:
    """Of each loop [n, V] the draft's rows beside the target's, zeros where there are none."""
    padded = [torch.zeros_like(rows) for rows in target]
    for rows, draft_rows in zip(padded, draft, strict=True):
        if draft_rows is not None:
            rows[: len(draft_rows)] = draft_rows.dense()
    return padded
