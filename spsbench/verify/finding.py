"""What one test of the sampler found; whether rows depend on how many are scored at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spsbench.verify.subject import SamplerUnderTest, written


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one test, with what it rests on.

    Attributes:
        unjudged: why there is no judgement, ``SKIPPED`` or ``LOSSY``; empty where there is one.
    """

    test: str
    passed: bool
    found: str
    bounds: str
    numbers: dict[str, float | int | str | None] = field(default_factory=dict)
    unjudged: str = ""
    fault: str = ""

    @property
    def verdict(self) -> str:
        """In a word or three."""
        return self.unjudged or ("ok" if self.passed else "FAILED")


SKIPPED, LOSSY = "skipped", "lossy by design"


def skipped(test: str, reason: str) -> Finding:
    """A test that does not apply, and why."""
    return Finding(test, True, reason, "nothing", unjudged=SKIPPED)


_TOKENS = 24
_LIMIT = {torch.float32: 1e-3, torch.float64: 1e-9}
_COARSE_LIMIT = 1e-1


@torch.inference_mode()
def row_difference(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Largest difference between logits of the target's text scored one row and K+1 rows at a time.

    Kernels differ by row count, so it is not 0; twice this is how close two best logits must be for
    greedy SpS and greedy ArS to differ without a bug.
    """
    worst, scale = 0.0, 0.0
    for prompt in prompts:
        text = written(subject, prompt, subject.seed)
        singles = torch.cat(_scored(subject, text, 1))
        blocks = torch.cat(_scored(subject, text, subject.k + 1))
        worst = max(worst, float((singles.double() - blocks.double()).abs().max()))
        scale = max(scale, float(singles.abs().max()))
    limit = _LIMIT.get(subject.target.dtype, _COARSE_LIMIT)
    return Finding(
        "rows",
        worst <= limit * scale,
        f"logits differ by at most {worst:.1e} between 1 and {subject.k + 1} rows (largest {scale:.3g})",
        f"a difference above {limit:g} of the largest logit",
        {"difference": worst, "largest_logit": scale, "limit": limit},
    )


def _scored(subject: SamplerUnderTest, text: Sequence[int], rows: int) -> list[torch.Tensor]:
    """Logits after each of a text's last tokens, scored in blocks of ``rows``."""
    subject.target.begin(text[: 1 - _TOKENS])
    tail = torch.tensor(text[-_TOKENS:], device=subject.device)
    return [subject.target.score(block, last=len(block)).clone() for block in torch.split(tail, rows)]
