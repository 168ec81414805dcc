"""Rules: how a loop decides which drafted tokens stand, and what it draws after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spsbench.decode import rejection
from spsbench.decode.rejection import Accept, Draft, Verdict
from spsbench.decode.rows import Rows, takes_rows
from spsbench.decode.sampling import draw
from spsbench.errors import UsageError
from spsbench.plugins import Options, find, settled
from spsbench.records import OptionValue, Spec

Expected = Callable[[Tensor, Draft], Tensor]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its options settled.

    Attributes:
        accept: judges a draft by the target's rows and uniform numbers.
        expected: from target rows [>= K, V] and a draft, [K] the probability that a token drawn from the
            draft's row is accepted there if those before it were: what ``beta_sum`` adds up.
    """

    accept: Accept
    expected: Expected


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A rule by name.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, with its source.
        lossless: whether the output keeps the target's law. A lossy rule is called so wherever it shows.
        build: makes one from all options.
        options: their names and defaults.
    """

    name: str
    summary: str
    lossless: bool
    build: Callable[[Options], Rule]
    options: Options = field(default_factory=dict)

    def settled(self, spec: Spec, flag: str = "--rule") -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``plugins.settled``."""
        return settled(self.name, self.options, spec, flag)


def _share(options: Options, name: str, rule: str) -> float:
    """A rule's option that is above 0 and at most 1.

    Args:
        options: all of the rule's options.
        name: the option's.
        rule: the rule's name, for the sentence.

    Raises:
        UsageError: it is not.
    """
    value = float(options[name])
    if 0.0 < value <= 1.0:
        return value
    raise UsageError(
        f"{rule}:{name}={options[name]} is not valid.",
        flag="--rule",
        remedy=f"Give {name} above 0 and at most 1.",
    )


@takes_rows
def _modified_rejection(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    return rejection.judged(rejection.accept_draft, q, draft, u)


def expected_acceptance(q: Tensor, draft: Draft) -> Tensor:
    """[K] sum over x of min(target(x), draft(x)); of a point mass the target's probability of its token.

    Leviathan et al. 2022, Theorem 3.5.
    """
    k = len(draft.tokens)
    if draft.probs is None:
        return q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    return torch.minimum(q[:k], draft.probs).sum(-1)


MODIFIED_REJECTION = RuleKind(
    name="modified-rejection",
    summary="Accept with probability min(1, target/draft), else draw from the residual (Chen et al. 2023).",
    lossless=True,
    build=lambda options: Rule(_modified_rejection, expected_acceptance),
)


def _match(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draw the target's token at every position; the draft stands as far as it says the same.

    What llama.cpp's draft and transformers' prompt lookup do. The first token that differs is the
    correction; after K equal ones the last draw is the bonus. Lossless for any drafter: every token of the
    output is the target's own draw. For point masses it accepts as often as modified rejection; for sampled
    drafts less often, since sum_x p(x) q(x) is at most sum_x min(p(x), q(x)).

    Args:
        q: [K+1, V] target probabilities at the K drafted positions and the one behind them.
        draft: K tokens; their rows are not looked at.
        u: [K+1] uniform numbers in [0, 1), one a position.
    """
    own = draw(q, u)
    equal = own.narrow(0, 0, len(draft.tokens)) == draft.tokens
    accepted = equal.cumprod(0).sum()
    return Verdict(accepted, own.index_select(0, accepted.unsqueeze(0)).squeeze(0))


def _expected_match(q: Tensor, draft: Draft) -> Tensor:
    """[K] sum over x of draft(x) target(x); of a point mass the target's probability of its token."""
    k = len(draft.tokens)
    if draft.probs is None:
        return q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    return (q[:k] * draft.probs).sum(-1)


SAMPLE_AND_COMPARE = RuleKind(
    name="sample-and-compare",
    summary="Draw the target's own token; the draft's stands if it is the same (llama.cpp, prompt lookup).",
    lossless=True,
    build=lambda options: Rule(_match, _expected_match),
)


_LENIENCE = "lenience"


def _lenience(options: Options) -> Rule:
    """Leviathan et al.'s appendix A.5: the draft's probability is scaled by l before it is compared. Lossy.

    What a rejected position is then drawn from, the appendix leaves open. Here the scaled draft takes the
    draft's place there too: max(q - l p, 0), normalised. The bound that they state holds with it: no token
    comes with more than 1/l times its probability under the target. l = 1 is modified rejection. Under
    greedy sampling l has no effect.
    """
    scale = _share(options, "l", _LENIENCE)

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


LENIENCE = RuleKind(
    name=_LENIENCE,
    summary="Accept with probability min(1, target/(l draft)): faster, not the target's law "
    "(Leviathan et al. 2022, A.5).",
    lossless=False,
    build=_lenience,
    options={"l": 0.9},
)


_TYPICAL = "typical-acceptance"


def threshold(q: Tensor, epsilon: float, delta: float) -> Tensor:
    """[..., 1] the probability that a token must exceed, for rows q [..., V]."""
    entropy: Tensor = torch.special.entr(q).sum(-1, keepdim=True)
    return (delta * (-entropy).exp()).clamp(max=epsilon)


def _typical_acceptance(options: Options) -> Rule:
    """Medusa's rule: a drafted token stands if the target finds it likely enough. Lossy.

    Cai et al. 2024: accept x if q(x) > min(epsilon, delta exp(-H(q))), H the entropy of the target's row in
    nats. The draft's probability plays no part and no test is random, so the law of the output depends on
    the drafter. The token after the accepted ones is drawn from the target's row, also after a rejection:
    the rejected token may come again. (Medusa takes the best of several greedy candidates; here there is
    one.) Medusa's own code has epsilon (``posterior_threshold``) 0.09 and delta (``posterior_alpha``) 0.3.
    With the defaults here, 0.3 and 0.09, the entropy alone decides, since exp(-H) is at most 1.
    """
    epsilon, delta = _share(options, "epsilon", _TYPICAL), _share(options, "delta", _TYPICAL)

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


TYPICAL_ACCEPTANCE = RuleKind(
    name=_TYPICAL,
    summary="Accept what the target finds likely enough for its entropy: not the target's law "
    "(Medusa, Cai et al. 2024).",
    lossless=False,
    build=_typical_acceptance,
    options={"epsilon": 0.3, "delta": 0.09},
)


GROUP = "spsbench.rules"
"""Entry points under this name bring rules of other packages."""

RULES: dict[str, RuleKind] = {
    kind.name: kind for kind in (MODIFIED_REJECTION, SAMPLE_AND_COMPARE, LENIENCE, TYPICAL_ACCEPTANCE)
}


def rule_kind(name: str, flag: str = "--rule") -> RuleKind:
    """The rule of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, RULES, GROUP, RuleKind, flag)


def build_rule(spec: Spec) -> Rule:
    """A rule as its spec says."""
    kind = rule_kind(spec.name)
    return kind.build(kind.settled(spec))
