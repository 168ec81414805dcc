"""Does a drafter keep its contract, and does a loop with it keep the target's law?

Both apply to any drafter and any rule: to its proposals after real prompts, and to every outcome of a
loop on small tables of probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import torch
from torch import Tensor

from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.decode.rules import build_rule
from spsbench.drafters.checked import CheckedDrafter, DrafterFault
from spsbench.errors import UsageError
from spsbench.law.enumeration import EXACT, Difference, NotAFunction, Scene, worst_difference
from spsbench.records import SamplingParams
from spsbench.testing import described, scenes
from spsbench.verify.effort import Sizes
from spsbench.verify.finding import Finding, skipped
from spsbench.verify.subject import SamplerUnderTest

LOOPS = 16

_ENUMERATION = "enumeration"
_PLAIN, _CUT, _GREEDY = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.8),
    SamplingParams(greedy=True),
)


@dataclass
class _Noting:
    """Passes proposals on and keeps them."""

    drafter: Drafter
    drafts: list[list[int]] = field(default_factory=list)

    def begin(self, prompt: Sequence[int]) -> None:
        self.drafter.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = self.drafter.draft(tokens, k, u)
        self.drafts.append(draft.tokens.tolist())
        return draft

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        self.drafter.observe(tokens, accepted)


@torch.inference_mode()
def kept_contract(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Look at every proposal of some loops, and at those of a second drafter under the same numbers."""
    once, again = (_proposals(subject, prompts) for _ in range(2))
    differs = next((pair for pair in zip(once, again, strict=False) if pair[0] != pair[1]), None)
    if differs is not None:
        raise DrafterFault(
            f"the drafter {subject.drafter} proposed {differs[0]} and, built again and given the same "
            f"numbers, {differs[1]}"
        )
    lengths = sorted(map(len, once))
    return Finding(
        "contract",
        True,
        f"{len(once)} drafts of {_span(lengths)} tokens, twice the same",
        "in those loops, anything but a draft of up to K tokens, and the drafter's own random numbers",
        {"drafts": len(once), "shortest": lengths[0], "longest": lengths[-1]},
    )


def _proposals(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    drafter = subject.build_drafter(subject.sampling)
    checked = CheckedDrafter(drafter, str(subject.drafter), subject.target.vocab_size)
    noting = _Noting(drafter if isinstance(drafter, CheckedDrafter) else checked)
    for index, prompt in enumerate(prompts):
        with subject.loops(subject.target, noting, prompt, subject.seed + index) as begin:
            for _ in islice(begin(), LOOPS):
                pass
    return noting.drafts


@torch.inference_mode()
def enumerated(subject: SamplerUnderTest, sizes: Sizes, wide: Sizes) -> Finding:
    """The exact law of a loop with this drafter and rule on tables, against the target's."""
    try:
        drafter = next(_scenes(subject, sizes[:1], _PLAIN)).make()
    except (UsageError, DrafterFault) as error:
        return skipped(_ENUMERATION, f"it cannot be built on a table of probabilities: {error}")
    del drafter
    if subject.sampling.greedy:
        every = _scenes(subject, sizes + wide, _GREEDY)
    else:
        every = chain(_scenes(subject, sizes, _PLAIN), _scenes(subject, wide, _CUT))
    try:
        return _of_all([(worst_difference(scene), scene) for scene in every])
    except NotAFunction as error:
        return Finding(_ENUMERATION, False, f"{error}", "nothing")


def _scenes(subject: SamplerUnderTest, sizes: Sizes, sampling: SamplingParams) -> Iterator[Scene]:
    accept = build_rule(subject.rule).accept
    for vocab_size, k in sizes:
        yield from scenes(
            str(subject.drafter), accept, vocab_size, (k,), (sampling,), policy=str(subject.policy)
        )


def _of_all(compared: list[tuple[Difference, Scene]]) -> Finding:
    worst, scene = max(compared, key=lambda pair: (not pair[0].is_none, pair[0].size))
    lengths = sorted(set[int]().union(*(difference.drafted for difference, _ in compared)))
    vocab_size, k = (max(sizes) for sizes in zip(*(_size(scene) for _, scene in compared), strict=True))
    found = f"probabilities off by at most {worst.size:.0e} in {len(compared)} situations"
    return Finding(
        _ENUMERATION,
        worst.is_none,
        f"{found}, drafts of {_span(lengths)} tokens" if worst.is_none else described(worst, scene),
        f"a difference of {worst.limit:g} in any probability of K+1 tokens, V to {vocab_size}, K to {k}; "
        "on tables",
        {
            "situations": len(compared),
            "worst": worst.size,
            "limit": worst.limit,
            "exact": int(worst.limit == EXACT),
            "vocab_size": vocab_size,
            "k": k,
            "shortest": lengths[0],
            "longest": lengths[-1],
        },
    )


def _size(scene: Scene) -> tuple[int, int]:
    return scene.target.vocab_size, scene.k


def _span(lengths: Sequence[int]) -> str:
    return f"{lengths[0]} to {lengths[-1]}" if lengths[0] < lengths[-1] else f"{lengths[0]}"
