"""Leviathan et al.'s lenience: the draft's probability is scaled by l before it is compared. Lossy.

Their appendix A.5 multiplies the draft's probability by l in the test. What a rejected position is then
drawn from it leaves open. Here the scaled draft takes the draft's place there too: max(q - l p, 0),
normalised. The bound that they state holds with it: no token comes with more than 1/l times its
probability under the target. l = 1 is modified rejection. Under greedy sampling l has no effect.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spsbench.core import rejection
from spsbench.core.limits import share
from spsbench.core.rejection import Draft, Verdict
from spsbench.core.rule import Rule, RuleKind
from spsbench.plugins import Options

NAME = "lenience"


def _build(options: Options) -> Rule:
    scale = share(options, "l", NAME)

    def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """Accept with min(1, q/(l p)); see ``rejection.accept_draft``."""
        if draft.probs is not None:
            return rejection.accept_draft(q, Draft(draft.tokens, scale * draft.probs), u)
        # u < q/l without rows: l u < q. A point mass is rejected only where q < l, so that max(q - l, 0)
        # is 0 at its token and the residual is the one of modified rejection.
        k = len(draft.tokens)
        return rejection.accept_draft(q, draft, torch.cat([scale * u.narrow(0, 0, k), u.narrow(0, k, 1)]))

    def expected(q: Tensor, draft: Draft) -> Tensor:
        """[K] sum over x of min(draft(x), target(x)/l)."""
        k = len(draft.tokens)
        if draft.probs is None:
            own = q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
            return (own / scale).clamp(max=1.0)
        return torch.minimum(q[:k] / scale, draft.probs).sum(-1)

    return Rule(accept, expected)


KIND = RuleKind(
    name=NAME,
    summary="Accept with probability min(1, target/(l draft)): faster, not the target's law "
    "(Leviathan et al. 2022, A.5).",
    lossless=False,
    build=_build,
    options={"l": 0.9},
)
