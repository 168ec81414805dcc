"""The rule of greedy drafting: the target draws its own tokens, and a draft that guessed them saves time.

What llama.cpp's draft and transformers' prompt lookup do with drafts that are certain of their tokens.
Lossless for any drafter, whatever rows it tells: every token of the output is the target's own draw. For
point masses it accepts as often as modified rejection; for sampled drafts less often, since
sum_x p(x) q(x) is at most sum_x min(p(x), q(x)).
"""

from __future__ import annotations

from torch import Tensor

from spsbench.core.rejection import Draft, Verdict
from spsbench.core.rule import Rule, RuleKind
from spsbench.core.sampling import draw


def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draw the target's token at every position; the draft stands as far as it says the same.

    The first token that differs is the correction; behind K equal ones the last draw is the bonus.

    Args:
        q: [K+1, V] target probabilities at the K drafted positions and the one behind them.
        draft: K tokens; their rows are not looked at.
        u: [K+1] uniform numbers in [0, 1), one a position.
    """
    own = draw(q, u)
    equal = own.narrow(0, 0, len(draft.tokens)) == draft.tokens
    accepted = equal.cumprod(0).sum()
    return Verdict(accepted, own.index_select(0, accepted.unsqueeze(0)).squeeze(0))


def expected_acceptance(q: Tensor, draft: Draft) -> Tensor:
    """[K] sum over x of draft(x) target(x); of a point mass the target's probability of its token."""
    k = len(draft.tokens)
    if draft.probs is None:
        return q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    return (q[:k] * draft.probs).sum(-1)


KIND = RuleKind(
    name="sample-and-compare",
    summary="Draw the target's own token; the draft's stands if it is the same (llama.cpp, prompt lookup).",
    lossless=True,
    build=lambda options: Rule(accept, expected_acceptance),
)
