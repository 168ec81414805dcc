"""The sampler under test: a pair, how it drafts and accepts, and the contexts it is tested at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from spsbench.base import FIXED, MODEL, MODIFIED_REJECTION, SamplingParams, Spec
from spsbench.decode import (
    DecodedLoop,
    Drafter,
    FakeClock,
    LanguageModel,
    Rule,
    Stopwatch,
    UniformStream,
    start,
    start_tree,
    warp,
    with_history,
)
from spsbench.drafters import (
    Context,
    ModelDrafter,
    Shape,
    build_drafter,
    build_policy,
    build_rule,
    rule_kind,
    shape_in,
)
from spsbench.law import TableTree
from spsbench.models import CausalLM, HiddenStates
from spsbench.parts.verify.controls import planted

PAPERS = Spec(MODEL), Spec(MODIFIED_REJECTION), Spec(FIXED)
"""Drafter, rule and policy of Chen et al. 2023."""


@dataclass(frozen=True, slots=True)
class SamplerUnderTest:
    target: CausalLM
    draft: CausalLM
    sampling: SamplingParams
    k: int
    device: torch.device
    control: str | None = None
    seed: int = 0
    drafter: Spec = PAPERS[0]
    rule: Spec = PAPERS[1]
    policy: Spec = PAPERS[2]
    corpus: tuple[tuple[int, ...], ...] = ()

    @property
    def shape(self) -> Shape | None:
        """The shape of drafts that are trees."""
        return shape_in(self.drafter)

    @property
    def is_lossless(self) -> bool:
        return rule_kind(self.rule.name).lossless

    def law(self, logits: Tensor, tokens: Sequence[int], prompt: int) -> Tensor:
        """[n, V] the sampled law of a model's logits; see ``with_history``."""
        return warp(with_history(logits, self.sampling.history, tokens, prompt), self.sampling)

    def build_rule(self) -> Rule | None:
        """Return the rule; None for modified rejection.

        The loops then take the rule from where a control is planted.
        """
        return None if self.rule.name == MODIFIED_REJECTION else build_rule(self.rule)

    def build_drafter(
        self, sampling: SamplingParams, draft: LanguageModel | None = None, hidden: HiddenStates | None = None
    ) -> Drafter:
        """Build the subject's drafter, by default over the pair's draft."""
        keeps = self.target.keeps_features
        context = Context(
            target=self.target,
            draft=draft or self.draft,
            sampling=sampling,
            device=self.device,
            vocab_size=self.target.vocab_size,
            corpus=lambda: self.corpus,
            policy=None if self.policy.name == FIXED else build_policy(self.policy),
            hidden=(hidden or self.target) if keeps else None,
            k=self.k,
            trees=None if draft is None else TableTree,  # one that remembers rows is read in line
        )
        return build_drafter(self.drafter, context)

    @contextmanager
    def loops(
        self, target: LanguageModel, drafter: Drafter, prompt: Sequence[int], seed: int
    ) -> Iterator[Callable[[], Iterator[DecodedLoop]]]:
        """Yield a function that begins the production loops after a prompt, again at each call.

        The control is planted while the block lasts. The target reads the prompt once; a further call
        rolls back to it, as a loop does after a rejection, and goes on in the same stream of numbers.
        A draft model's cache rolls back too; any other drafter is notified of a new sequence. Of trees each
        branch is read in line.
        """
        with planted(self.control, target):
            rule = self.build_rule()
            uniforms = UniformStream(seed, self.device)
            accept = None if rule is None else rule.accept
            if self.shape is not None:
                assert accept is not None
                nodes = self.shape.nodes
                tree_target = TableTree(target)
                loops = start_tree(tree_target, drafter, prompt, nodes, self.sampling, uniforms, accept)
            else:
                loops = start(target, drafter, prompt, self.k, self.sampling, uniforms, accept)

            def begin() -> Iterator[DecodedLoop]:
                target.rollback(len(prompt) - 1)
                if isinstance(drafter, ModelDrafter):
                    drafter.observe(prompt, 0)
                else:
                    drafter.begin(prompt)
                return loops(Stopwatch(FakeClock()))

            yield begin


def steady(logits: Tensor, sampling: SamplingParams, slack: float = 1e-3) -> Tensor:
    """[n] whether a row keeps its support when the nucleus or the best logit moves a little.

    At the edge of a nucleus, or between two equal logits, rounding decides; such a position cannot
    distinguish a wrong sampler from a right one.
    """
    if sampling.greedy:
        best = logits.float().topk(2, dim=-1).values
        return best[:, 0] - best[:, 1] > slack * best[:, 0].abs()
    if sampling.top_p >= 1.0:
        return torch.ones(len(logits), dtype=torch.bool, device=logits.device)

    def support(top_p: float) -> Tensor:
        moved = replace(sampling, top_p=min(top_p, 1.0))
        return warp(logits, moved) > 0

    return (support(sampling.top_p - slack) == support(sampling.top_p + slack)).all(-1)


_LENGTH = 32


@torch.inference_mode()
def telling_contexts(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], count: int
) -> list[tuple[int, ...]]:
    """Return contexts whose next rows differ most between target and draft, at most one a prompt.

    Where both agree, or one token has all the mass, every sampler looks right. The outputs are
    written by the target alone, so the choice does not depend on the sampler under test.
    """
    ranked: list[tuple[float, tuple[int, ...]]] = []
    for index, prompt in enumerate(prompts):
        sequence = written(subject, prompt, subject.seed + index)
        tokens = torch.tensor(sequence, device=subject.device)
        wanted = len(sequence) - len(prompt)
        logits = subject.target.score_uncached(tokens[:-1], last=wanted)
        q = subject.law(logits, sequence[:-1], len(prompt))
        drafts = subject.draft.score_uncached(tokens[:-1], last=wanted)
        p = subject.law(drafts, sequence[:-1], len(prompt))
        overlap = torch.minimum(q, p).sum(-1)
        # Half accepted, half rejected, and more than one possible token: every branch is taken often.
        worth = (1 - (overlap - 0.5).abs() * 2) * (1 - q.max(-1).values)
        worth = torch.where(steady(logits, subject.sampling), worth, -1.0)
        best = int(worth.argmax())
        ranked.append((float(worth[best]), tuple(sequence[: len(prompt) + best])))
    ranked.sort(key=lambda pair: -pair[0])
    return [context for _, context in ranked[:count]]


def written(subject: SamplerUnderTest, prompt: Sequence[int], seed: int) -> list[int]:
    """Return the prompt and tokens that the target writes after it, by plain sampling."""
    loops = start(subject.target, None, prompt, 0, subject.sampling, UniformStream(seed, subject.device))
    behind = islice(loops(Stopwatch(FakeClock())), _LENGTH)
    return [*prompt, *(loop.tokens[0] for loop in behind)]
