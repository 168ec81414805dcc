"""The reference backend: Algorithms 1 and 2 over any ``LanguageModel``, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from spsbench.decode.algorithms import DecodedLoop, ars, sps
from spsbench.decode.clock import Clock, Stopwatch
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.decode.rules import Rule
from spsbench.decode.stopping import TextDecoder
from spsbench.decode.uniforms import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.looping import LoopingEngine
from spsbench.records import Request, SamplingParams

MakeDrafter = Callable[[SamplingParams], Drafter]


class EagerEngine(LoopingEngine):
    """Generates with ArS (no draft model) or SpS (a draft model and K).

    Args:
        target: writes the output's distribution; the draft itself for the draft-only arm.
        draft: proposes tokens; None for ArS.
        k: lookahead; without effect for ArS.
        decoder: turns token ids into text, for stop strings and the output.
        device: where the models are.
        clock: read at the edges of phases.
        rule: judges drafts; modified rejection unless given.
        make_drafter: makes what proposes tokens, given the sampling; the draft model unless given. It is
            asked once for each sampling, so that a drafter may outlive a request.
    """

    name = "eager"

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        k: int,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
        rule: Rule | None = None,
        make_drafter: MakeDrafter | None = None,
    ) -> None:
        super().__init__(decoder, device, clock, rule)
        self._target = target
        self._k = k
        if make_drafter is None and draft is not None:
            make_drafter = partial(ModelDrafter, draft, device=device)
        self._make_drafter = make_drafter
        self._drafters: dict[SamplingParams, Drafter] = {}

    def prefill(self, request: Request) -> None:
        """See ``LoopingEngine.prefill``."""
        read = request.prompt_ids[:-1]
        self._target.rollback(0)
        if read:
            self._target.score(torch.tensor(read, device=self._device), last=1)
        if drafter := self._drafter(request.sampling):
            drafter.begin(request.prompt_ids)

    def loops(self, request: Request, watch: Stopwatch) -> Iterator[DecodedLoop]:
        """See ``LoopingEngine.loops``."""
        uniforms = UniformStream(request.seed, self._device)
        prompt, sampling = request.prompt_ids, request.sampling
        drafter = self._drafter(sampling)
        if drafter is None:
            return ars(self._target, prompt, sampling, uniforms, watch)
        accept = None if self._rule is None else self._rule.accept
        return sps(self._target, drafter, prompt, self._k, sampling, uniforms, watch, accept)

    def _drafter(self, sampling: SamplingParams) -> Drafter | None:
        if self._make_drafter is None:
            return None
        if sampling not in self._drafters:
            self._drafters[sampling] = self._make_drafter(sampling)
        return self._drafters[sampling]
