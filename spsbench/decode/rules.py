"""Rules: how a loop decides which drafted tokens stand, and what it draws after them.

Their names and options are in ``drafters.registry``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.base.plugins import Options
from spsbench.decode import rejection, trees
from spsbench.decode.rejection import Accept, Draft, Verdict
from spsbench.decode.rows import Rows, takes_rows
from spsbench.decode.sampling import draw

Expected = Callable[[Tensor, Draft], Tensor]


def unknown_acceptance(q: Tensor, draft: Draft) -> Tensor:
    """[K] NaN: nobody says how probable acceptance is."""
    return torch.full((len(draft.tokens),), torch.nan, device=q.device)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its options settled.

    Attributes:
        accept: judges a draft by the target's rows and uniform numbers.
        expected: from target rows [>= K, V] and a draft, [K] the probability that a token drawn from the
            draft's row is accepted there if those before it were: what ``beta_sum`` adds up. Unknown unless
            given, and then so is ``alpha_beta``.
    """

    accept: Accept
    expected: Expected = unknown_acceptance


@takes_rows
def _modified_rejection(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    return rejection.judged(rejection.accept_draft, q, draft, u)


def expected_acceptance(q: Tensor, draft: Draft) -> Tensor:
    """Sum min(target(x), draft(x)) over x, [K]; of a point mass the target's probability of its token.

    Leviathan et al. 2022, Theorem 3.5.
    """
    k = len(draft.tokens)
    if draft.probs is None:
        return q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    return torch.minimum(q[:k], draft.probs).sum(-1)


def modified_rejection(options: Options) -> Rule:
    """Chen et al. 2023: accept with min(1, q/p), else draw from the residual."""
    return Rule(_modified_rejection, expected_acceptance)


def _match(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draw the target's token at every position; the draft stands as far as it says the same.

    What llama.cpp's draft and transformers' prompt lookup do. The first token that differs is the
    correction; after K equal ones the last draw is the bonus. Lossless for any drafter: every token of the
    output is the target's own draw. For point masses it accepts as often as modified rejection; for sampled
    drafts less often, since sum_x p(x) q(x) is at most sum_x min(p(x), q(x)).

    Args:
        q: [K+1, V] target probabilities at the K drafted positions and the one after them.
        draft: K tokens; their rows are not read.
        u: [K+1] uniform numbers in [0, 1), one a position.
    """
    own = draw(q, u)
    equal = own.narrow(0, 0, len(draft.tokens)) == draft.tokens
    accepted = equal.cumprod(0).sum()
    return Verdict(accepted, own.index_select(0, accepted.unsqueeze(0)).squeeze(0))


@takes_rows
def _compare(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    return rejection.judged(_match, q, draft, u) if draft.parents is None else trees.compare(q, draft, u)


def _expected_match(q: Tensor, draft: Draft) -> Tensor:
    """[K] sum over x of draft(x) target(x); of a point mass the target's probability of its token."""
    k = len(draft.tokens)
    if draft.probs is None:
        return q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    return (q[:k] * draft.probs).sum(-1)


def sample_and_compare(options: Options) -> Rule:
    """Draw the target's own token; see ``_match``, and ``trees.compare`` for a tree."""
    return Rule(_compare, _expected_match)


def block(options: Options) -> Rule:
    """The longest prefix whose test passes stands, and its own residual follows (Sun et al. 2024).

    A token that modified rejection would reject may stand before one that makes up for it: no lossless rule
    takes more of a chain (``law.optimum``). It is traversal of a chain: the longest prefix is tested first.
    """
    return Rule(trees.traversal, _expected_block)


def _expected_block(q: Tensor, draft: Draft) -> Tensor:
    """[K] sum over x of min(w target(x), draft(x)) / w, where w is the chance that those before it may stand.

    Sun et al. 2024, Lemma 3: that a prefix stands, or a longer one, has the probability w of its last token.
    """
    own, drawn = q[: len(draft.tokens)], draft.rows(q.shape[-1], q.dtype)
    chance, expected = q.new_ones(()), q.new_zeros(len(draft.tokens))
    for i, token in enumerate(draft.tokens):
        shared = torch.minimum(chance * own[i], drawn[i]).sum()
        expected[i] = torch.where(chance > 0, shared / chance, 0.0)
        chance = (chance * own[i, token] / drawn[i, token]).clamp(max=1.0)
    return expected


def recursive_rejection(options: Options) -> Rule:
    """Siblings one after the other; see ``trees.recursive_rejection``."""
    return Rule(trees.recursive_rejection, expected_acceptance)


def one_hot(options: Options) -> Rule:
    """Siblings as proposals of one token each; see ``trees.one_hot``."""
    return Rule(trees.one_hot, _expected_match)


def k_seq(options: Options) -> Rule:
    """Siblings by one test; see ``trees.k_seq``."""
    return Rule(trees.k_seq, expected_acceptance)


def lenience(options: Options) -> Rule:
    """Leviathan et al.'s appendix A.5: the draft's probability is scaled by l before it is compared. Lossy.

    What a rejected position is then drawn from, the appendix leaves open. Here the scaled draft takes the
    draft's place there too: max(q - l p, 0), normalised. The bound that they state holds with it: no token
    comes with more than 1/l times its probability under the target. l = 1 is modified rejection. Under
    greedy sampling l has no effect.
    """
    scale = float(options["l"])

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


def ensemble(options: Options) -> Rule:
    """Verify against a mixture of target and draft, w q + (1 - w) p. Lossy.

    transformers' ``assistant_ensemble_weight`` (arXiv 2604.07622). The law that it has: a token at a drafted
    place follows the mixture, at a total variation of (1 - w) TV(p, q) from the target's row, and the token
    after K that stand follows the target's. So which law a token follows depends on its place in the loop.
    Where rows are certain, the mixture is not: a greedy draft stands with 1 - w against another token.
    """
    w = float(options["w"])

    def mixture(q: Tensor, draft: Draft) -> Tensor:
        """[K, V] what the drafted places are verified against."""
        rows = q[: len(draft.tokens)]
        return w * rows + (1.0 - w) * draft.rows(q.shape[-1], q.dtype)

    def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """Modified rejection of the mixture; see ``rejection.accept_draft``."""
        k = len(draft.tokens)
        return rejection.accept_draft(torch.cat([mixture(q, draft), q.narrow(0, k, 1)]), draft, u)

    return Rule(accept, lambda q, draft: expected_acceptance(mixture(q, draft), draft))


def regret(options: Options) -> Rule:
    """Greedy decoding that gives way to the draft while a loop's regret stays within b nats. Lossy.

    The regret of a token is how far its logarithm lies below that of the row's best token (arXiv 2608.03447,
    proposed for transformers). Drafted tokens stand while their sum is at most b, and the row's best token
    follows: no number is used. The law that it has: the tokens of a loop lie together at most b nats below
    the best token at each place. b = 0 is greedy decoding. Rows are those of the sampling: at temperature 1
    without cuts the regret is the gap of logits that the proposal means; greedy rows give no way. The
    proposal's b is a request's, and it has further limits for a token; here b is a loop's.
    """
    b = float(options["b"])

    def regrets(rows: Tensor) -> Tensor:
        """[K, V] in nats."""
        logs = rows.log()
        return logs.amax(-1, keepdim=True) - logs

    def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """As ``rejection.accept_draft``; u is not used."""
        k = len(draft.tokens)
        spent = regrets(q.narrow(0, 0, k)).gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1).cumsum(0)
        accepted = (spent <= b).cumprod(0, dtype=torch.int64).sum()
        return Verdict(accepted, q.argmax(-1).index_select(0, accepted.unsqueeze(0)).squeeze(0))

    def expected(q: Tensor, draft: Draft) -> Tensor:
        """[K] the draft's mass on tokens within what is left of b behind those before them."""
        k = len(draft.tokens)
        all_ = regrets(q[:k])
        spent = all_.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1).cumsum(0)
        left = b - torch.cat([spent.new_zeros(1), spent[:-1]])[:k]
        stands = (all_ <= left.unsqueeze(-1)).to(q.dtype)
        return (stands * draft.rows(q.shape[-1], q.dtype)).sum(-1)

    return Rule(accept, expected)


def threshold(q: Tensor, epsilon: float, delta: float) -> Tensor:
    """[..., 1] the probability that a token must exceed, for rows q [..., V]."""
    entropy: Tensor = torch.special.entr(q).sum(-1, keepdim=True)
    return (delta * (-entropy).exp()).clamp(max=epsilon)


def typical_acceptance(options: Options) -> Rule:
    """Medusa's rule: a drafted token stands if the target finds it likely enough. Lossy.

    Cai et al. 2024: accept x if q(x) > min(epsilon, delta exp(-H(q))), H the entropy of the target's row in
    nats. The draft's probability plays no part and no test is random, so the law of the output depends on
    the drafter. The token after the accepted ones is drawn from the target's row, also after a rejection:
    the rejected token may come again. (Medusa takes the best of several greedy candidates; here there is
    one.) Medusa's own code has epsilon (``posterior_threshold``) 0.09 and delta (``posterior_alpha``) 0.3.
    With the defaults here, 0.3 and 0.09, the entropy alone decides, since exp(-H) is at most 1.
    """
    epsilon, delta = float(options["epsilon"]), float(options["delta"])

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
