"""A rule of one's own, in thirty lines: a draft token stands if the target finds it likely enough.

    spsbench run --rule modified-rejection,examples/likely_rule.py:KIND --k 4 --limit 5

It is lossy, says so, and every table calls it so. ``examples/likely_rule.py:KIND:share=0.9`` sets its option.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from spsbench import Draft, Rule, RuleKind, Verdict
from spsbench.decode.sampling import draw


def likely(options: Mapping[str, object]) -> Rule:
    """A token stands where its target probability is at least ``share`` of the row's largest one."""
    share = float(str(options["share"]))

    def enough(q: Tensor) -> Tensor:
        return q >= share * q.amax(-1, keepdim=True)

    def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """Target rows q [K+1, V], K draft tokens, uniform numbers u [K+1]: how many stand, and one more."""
        k = len(draft.tokens)
        stands = enough(q[:k]).gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
        accepted = stands.long().cumprod(0).sum()
        return Verdict(accepted, draw(q, u).index_select(0, accepted.unsqueeze(0)).squeeze(0))

    def expected(q: Tensor, draft: Draft) -> Tensor:
        """[K] the probability that a token drawn from the draft's row stands, if those before it do."""
        k, vocabulary = len(draft.tokens), q.shape[-1]
        return (draft.rows(vocabulary, q.dtype) * enough(q[:k])).sum(-1)

    return Rule(accept, expected)


KIND = RuleKind(
    name="likely",
    summary="Accept what has at least a share of the target's largest probability.",
    lossless=False,
    build=likely,
    options={"share": 0.5},
)
