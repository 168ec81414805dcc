"""What tests of other people's drafters and rules import.

>>> from spsbench.testing import assert_lossless
>>> from mydrafter import KIND
>>> assert_lossless(KIND)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from spsbench.decode.clock import FakeClock
from spsbench.decode.enumeration import Difference, Law, Scene, law_of_loop, worst_difference
from spsbench.decode.protocols import Drafter
from spsbench.decode.rules import RuleKind, rule_kind
from spsbench.decode.table import TableModel, random_rows
from spsbench.drafters.kind import Context, DrafterKind
from spsbench.records import SamplingParams, Spec

__all__ = [
    "EXACT",
    "Difference",
    "FakeClock",
    "Law",
    "Scene",
    "TableModel",
    "assert_lossless",
    "law_of_loop",
    "random_rows",
    "worst_difference",
]

EXACT = 1e-12
"""Probabilities in float64 that differ by less are the same."""

SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.8), SamplingParams(greedy=True))

Factory = Callable[[Context], Drafter]

_SHARPNESS = 1.5
# A prompt and how many loops come before the one that is looked at. Lookups find something where it repeats.
_SITUATIONS: tuple[tuple[tuple[int, ...], int], ...] = (((0,), 0), ((1, 2, 1, 2, 1), 0), ((2, 0, 1, 2, 0), 1))


def assert_lossless(
    drafter: DrafterKind | Factory,
    *,
    rule: str | RuleKind = "modified-rejection",
    vocab_size: int = 4,
    ks: Sequence[int] = (1, 2, 3),
    samplings: Sequence[SamplingParams] = SAMPLINGS,
) -> None:
    """Prove by enumeration that a loop with this drafter and rule keeps the target's law.

    Target and draft are tables of random rows. Each loop is the production one; see ``enumeration``. Also
    looked at are a loop that comes behind another one, and a prompt that repeats itself.

    Args:
        drafter: a kind with its default options, or what builds a drafter from a context.
        rule: one by name, with options if need be (``lenience:l=0.5``), or a kind.
        vocab_size: V; at 4 and K = 3 there are 64 drafts.
        ks: every lookahead to prove.
        samplings: of target and draft.

    Raises:
        AssertionError: a probability is off by ``EXACT`` or more, with the worst one and where it was met.
        UsageError: the rule is unknown or an option of it is wrong.
    """
    for scene in _scenes(drafter, rule, vocab_size, ks, samplings):
        worst = worst_difference(scene)
        if not worst.size < EXACT:
            raise AssertionError(_told(worst, scene))


def _scenes(
    drafter: DrafterKind | Factory,
    rule: str | RuleKind,
    vocab_size: int,
    ks: Sequence[int],
    samplings: Sequence[SamplingParams],
) -> Iterator[Scene]:
    spec = Spec.parse(rule) if isinstance(rule, str) else Spec(rule.name)
    kind = rule_kind(spec.name) if isinstance(rule, str) else rule
    accept = kind.build(kind.settled(spec)).accept
    build = _builder(drafter)
    for sampling in samplings:
        context = _context(vocab_size, sampling)
        target = TableModel(random_rows(vocab_size, seed=1, sharpness=_SHARPNESS), vocab_size)
        for prompt, earlier in _SITUATIONS:
            told = tuple(token % vocab_size for token in prompt)
            for k in ks:
                yield Scene(target, partial(build, context), accept, told, k, sampling, earlier)


def _builder(drafter: DrafterKind | Factory) -> Factory:
    if not isinstance(drafter, DrafterKind):
        return drafter
    options = drafter.settled(Spec(drafter.name))
    return partial(drafter.build, options)


def _context(vocab_size: int, sampling: SamplingParams) -> Context:
    """What a drafter may be built from: tables, and a corpus in which some tokens follow others often."""
    corpus = tuple(tuple((i * step) % vocab_size for i in range(12)) for step in (1, 2, 3))
    return Context(
        target=TableModel(random_rows(vocab_size, seed=1, sharpness=_SHARPNESS), vocab_size),
        draft=TableModel(random_rows(vocab_size, seed=2, sharpness=_SHARPNESS), vocab_size),
        sampling=sampling,
        device=torch.device("cpu"),
        vocab_size=vocab_size,
        corpus=lambda: corpus,
    )


def _told(worst: Difference, scene: Scene) -> str:
    return (
        f"Behind {worst.context} the loop emits {worst.tokens} with probability {worst.law:.15g}, the target "
        f"with {worst.target:.15g}: a difference of {worst.size:.3g} (K = {scene.k}, {scene.sampling})."
    )
