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
from spsbench.decode.sampling import warp
from spsbench.decode.uniforms import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.models.causal_lm import CausalLM
from spsbench.records import SamplingParams
from spsbench.verify.controls import planted


@dataclass(frozen=True, slots=True)
class Subject:
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
