"""Medusa's typical acceptance: a drafted token stands if the target finds it likely enough. Lossy.

Cai et al. 2024: accept x if q(x) > min(epsilon, delta exp(-H(q))), H the entropy of the target's row in
nats. The draft's probability plays no part, and no test is random; so the law of the output depends on the
drafter. The token behind the accepted ones is drawn from the target's row, also behind a rejection: the
rejected token may come again. (Medusa takes the best of several greedy candidates; here there is one.)

Medusa's own code has epsilon (``posterior_threshold``) 0.09 and delta (``posterior_alpha``) 0.3. With the
defaults here, 0.3 and 0.09, the entropy alone decides, since exp(-H) is at most 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spsbench.core.limits import share
from spsbench.core.rejection import Draft, Verdict
from spsbench.core.rule import Rule, RuleKind
from spsbench.core.sampling import draw
from spsbench.plugins import Options

NAME = "typical-acceptance"


def threshold(q: Tensor, epsilon: float, delta: float) -> Tensor:
    """[..., 1] the probability that a token must exceed, for rows q [..., V]."""
    entropy: Tensor = torch.special.entr(q).sum(-1, keepdim=True)
    return (delta * (-entropy).exp()).clamp(max=epsilon)


def _build(options: Options) -> Rule:
    epsilon, delta = share(options, "epsilon", NAME), share(options, "delta", NAME)

    def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """As ``rejection.accept_draft``; only the last of u is used."""
        k = len(draft.tokens)
        rows = q.narrow(0, 0, k)
        stands = rows.gather(-1, draft.tokens.unsqueeze(-1)) > threshold(rows, epsilon, delta)
        accepted = stands.squeeze(-1).cumprod(0).sum()
        row = q.index_select(0, accepted.unsqueeze(0))
        return Verdict(accepted, draw(row, u.narrow(0, k, 1)).squeeze(0))

    def expected(q: Tensor, draft: Draft) -> Tensor:
        """[K] the draft's mass on tokens above the threshold; of a point mass 1 or 0."""
        rows = q[: len(draft.tokens)]
        stands = (rows > threshold(rows, epsilon, delta)).to(q.dtype)
        if draft.probs is None:
            return stands.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
        return (stands * draft.probs).sum(-1)

    return Rule(accept, expected)


KIND = RuleKind(
    name=NAME,
    summary="Accept what the target finds likely enough for its entropy: not the target's law "
    "(Medusa, Cai et al. 2024).",
    lossless=False,
    build=_build,
    options={"epsilon": 0.3, "delta": 0.09},
)
