"""Where to test: contexts in the middle of real outputs at which target and draft disagree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spsbench.decode.sampling import draw, warp
from spsbench.decode.uniforms import UniformStream
from spsbench.verify.subject import Subject, steady

_LENGTH = 32


@torch.inference_mode()
def telling_contexts(subject: Subject, prompts: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Contexts whose next rows differ most between target and draft, one a prompt at most.

    Where both agree, or one token has all the mass, every sampler looks right. The outputs are
    written by the target alone, so the choice does not depend on the sampler under test.
    """
    found: list[tuple[float, tuple[int, ...]]] = []
    for index, prompt in enumerate(prompts):
        sequence = _written(subject, prompt, subject.seed + index)
        tokens = torch.tensor(sequence, device=subject.device)
        logits = subject.target.score_uncached(tokens)[len(prompt) - 1 : -1]
        q = warp(logits, subject.sampling)
        p = warp(subject.draft.score_uncached(tokens)[len(prompt) - 1 : -1], subject.sampling)
        overlap = torch.minimum(q, p).sum(-1)
        # Half accepted, half rejected, and more than one possible token: every branch is taken often.
        worth = (1 - (overlap - 0.5).abs() * 2) * (1 - q.max(-1).values)
        worth = torch.where(steady(logits, subject.sampling), worth, -1.0)
        best = int(worth.argmax())
        found.append((float(worth[best]), tuple(sequence[: len(prompt) + best])))
    found.sort(key=lambda pair: -pair[0])
    return [context for _, context in found[:count]]


def _written(subject: Subject, prompt: Sequence[int], seed: int) -> list[int]:
    """Prompt and some tokens of the target's own, by plain sampling."""
    uniforms = UniformStream(seed, subject.device)
    sequence = list(prompt)
    subject.target.rollback(0)
    pending = torch.tensor(prompt, device=subject.device)
    for _ in range(_LENGTH):
        pending = draw(warp(subject.target.score(pending, last=1), subject.sampling), uniforms(1))
        sequence.append(int(pending))
    return sequence
