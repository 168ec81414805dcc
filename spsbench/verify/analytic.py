"""Tier 0 at real positions: the law of each emitted token, computed and not sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from spsbench.core import rejection
from spsbench.core import sampling as law
from spsbench.decoding import DecodedLoop
from spsbench.verify.finding import Finding
from spsbench.verify.subject import Subject

TOKENS = 40
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_COARSE_TOLERANCE = 2e-2


@torch.inference_mode()
def analytic(subject: Subject, prompts: Sequence[Sequence[int]]) -> Finding:
    """Is accepted mass plus residual mass the target's row, over the whole vocabulary?

    Acceptance and residual come from the production functions with the rows that verification used;
    the drafted mass comes from the row that the draft token was really drawn from; the row that all
    this must add up to comes from one forward without a cache. So a wrong formula is found as well
    as a wrong row, a stale cache, a wrong position, or a draft that draws from another row than it
    tells. What the uniform numbers decide is left to the sampling tests.
    """
    errors, skipped = [], 0
    for index, prompt in enumerate(prompts):
        laws, sequence = _laws(subject, prompt, subject.seed + index)
        rows, steady = subject.true_rows(sequence, len(prompt))
        distance = (laws - rows[: len(laws)]).abs().sum(-1) / 2
        errors.append(distance[steady[: len(laws)]])
        skipped += int((~steady[: len(laws)]).sum())
    error = torch.cat(errors)
    mean, worst = (float(error.mean()), float(error.max())) if len(error) else (0.0, 0.0)
    tolerance = _TOLERANCE.get(subject.target.model.dtype, _COARSE_TOLERANCE)
    return Finding(
        "analytic",
        len(error) > 0 and mean <= tolerance,
        f"mean total variation {mean:.1e}, worst {worst:.1e}, over {len(error)} positions",
        f"a mean total variation above {tolerance:g} at the positions visited",
        {
            "positions": len(error),
            "skipped_at_an_edge": skipped,
            "mean": mean,
            "worst": worst,
            "limit": tolerance,
        },
    )


def _laws(subject: Subject, prompt: Sequence[int], seed: int) -> tuple[Tensor, list[int]]:
    """[n, V] law of each emitted token as the sampler implies it, and prompt with output."""
    sequence, laws = list(prompt), []
    with observed() as drawn, subject.loops(subject.target, subject.draft, prompt, seed) as begin:
        for loop in begin():
            laws.append(_loop_laws(loop, torch.cat(drawn)))
            drawn.clear()
            sequence += loop.tokens
            if len(sequence) >= len(prompt) + TOKENS:
                break
    return torch.cat(laws), sequence


def _loop_laws(loop: DecodedLoop, drawn: Tensor) -> Tensor:
    """[accepted + 1, V] laws of a loop's tokens; ``drawn`` [K, V] is what the draft drew from."""
    assert loop.draft is not None
    q, p = loop.target_probs, loop.draft.probs
    n = min(loop.accepted + 1, len(p))
    accepted = drawn[:n] * rejection.acceptance_probability(q[:n], p[:n]).nan_to_num(0.0)
    rest = rejection.residual(q[:n], p[:n])
    missing = (1 - accepted.sum(-1, keepdim=True)).clamp(min=0)
    laws = accepted + missing * rest / rest.sum(-1, keepdim=True)
    return torch.cat([laws, q[-1:]]) if loop.accepted == len(p) else laws


@contextmanager
def observed() -> Iterator[list[Tensor]]:
    """Collect the rows that the drafter really draws from."""
    rows: list[Tensor] = []
    draw = law.draw

    def noted(probs: Tensor, u: Tensor) -> Tensor:
        rows.append(probs)
        return draw(probs, u)

    with patch.object(law, "draw", noted):
        yield rows
