"""The sampler under test: a pair, its sampling, K, and the contexts it is tested at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.decode import algorithms
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.protocols import LanguageModel
from spsbench.decode.sampling import draw, warp
from spsbench.decode.uniforms import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.models.causal_lm import CausalLM
from spsbench.records import SamplingParams
from spsbench.verify.controls import planted


@dataclass(frozen=True, slots=True)
class SamplerUnderTest:
    """What is tested.

    Attributes:
        target, draft: the models as the runs use them.
        sampling: of both.
        k: lookahead.
        device: where the models are.
        control: the wrong sampler that is planted while the sampler runs; None for the real one.
        seed: of everything random.
    """

    target: CausalLM
    draft: CausalLM
    sampling: SamplingParams
    k: int
    device: torch.device
    control: str | None = None
    seed: int = 0

    @contextmanager
    def loops(
        self, target: LanguageModel, draft: LanguageModel, prompt: Sequence[int], seed: int
    ) -> Iterator[Callable[[], Iterator[algorithms.DecodedLoop]]]:
        """A function that begins the production loops behind a prompt, again at each call.

        The control is planted while the block lasts. The prompt is read once; a further call rolls
        back to it, as a loop does after a rejection, and goes on in the same stream of numbers.
        """
        with planted(self.control, target):
            drafter = ModelDrafter(draft, self.sampling, self.device)
            uniforms = UniformStream(seed, self.device)
            watch = Stopwatch(FakeClock())
            read = prompt[:-1]
            target.rollback(0)
            if read:
                target.score(torch.tensor(read, device=self.device), last=1)
            drafter.begin(prompt)

            def begin() -> Iterator[algorithms.DecodedLoop]:
                target.rollback(len(read))
                drafter.observe(prompt, 0)
                return algorithms.sps(target, drafter, prompt, self.k, self.sampling, uniforms, watch)

            yield begin

    def true_rows(self, sequence: Sequence[int], start: int) -> tuple[Tensor, Tensor]:
        """Target rows by one uncached forward, and which of them rounding could not change.

        Args:
            sequence: all tokens.
            start: the first row wanted is the law of ``sequence[start]``; there is one row more than
                tokens from there, for the token behind the end.

        Returns:
            [n, V] warped rows, and [n] whether their support is the same just beside the parameters.
        """
        logits = self.target.score_uncached(torch.tensor(sequence, device=self.device))[start - 1 :]
        return warp(logits, self.sampling), steady(logits, self.sampling)


def steady(logits: Tensor, sampling: SamplingParams, slack: float = 1e-3) -> Tensor:
    """[n] whether a row keeps its support when the nucleus or the best logit moves a little.

    At the edge of a nucleus, or between two equal logits, rounding decides; such a position tells a
    wrong sampler from a right one no better than a coin.
    """
    if sampling.greedy:
        best = logits.float().topk(2, dim=-1).values
        return best[:, 0] - best[:, 1] > slack * best[:, 0].abs()
    if sampling.top_p >= 1.0:
        return torch.ones(len(logits), dtype=torch.bool, device=logits.device)

    def support(top_p: float) -> Tensor:
        moved = SamplingParams(sampling.temperature, sampling.top_k, min(top_p, 1.0))
        return warp(logits, moved) > 0

    return (support(sampling.top_p - slack) == support(sampling.top_p + slack)).all(-1)


_LENGTH = 32


@torch.inference_mode()
def telling_contexts(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], count: int
) -> list[tuple[int, ...]]:
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


def _written(subject: SamplerUnderTest, prompt: Sequence[int], seed: int) -> list[int]:
    """Prompt and some tokens of the target's own, by plain sampling."""
    uniforms = UniformStream(seed, subject.device)
    sequence = list(prompt)
    subject.target.rollback(0)
    pending = torch.tensor(prompt, device=subject.device)
    for _ in range(_LENGTH):
        pending = draw(warp(subject.target.score(pending, last=1), subject.sampling), uniforms(1))
        sequence.append(int(pending))
    return sequence
