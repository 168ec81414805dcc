"""The reference backend: Algorithms 1 and 2 over any ``LanguageModel``, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from spsbench.clock import Clock, Stopwatch
from spsbench.core.rejection import Accept
from spsbench.decoding import DecodedLoop, ars, sps
from spsbench.drafters.drafter import Drafter
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.looping import LoopingEngine
from spsbench.engines.uniforms import UniformStream
from spsbench.models.language_model import LanguageModel
from spsbench.records import Request
from spsbench.tasks.stopping import TextDecoder


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
        rule: Accept | None = None,
    ) -> None:
        super().__init__(decoder, device, clock)
        self._rule = rule
        self._target = target
        self._draft = draft
        self._k = k
        self._drafter: Drafter | None = None

    def prefill(self, request: Request) -> None:
        """See ``LoopingEngine.prefill``."""
        read = request.prompt_ids[:-1]
        self._target.rollback(0)
        if read:
            self._target.score(torch.tensor(read, device=self._device), last=1)
        if self._draft is not None:
            self._drafter = ModelDrafter(self._draft, request.sampling, self._device)
            self._drafter.begin(request.prompt_ids)

    def loops(self, request: Request, watch: Stopwatch) -> Iterator[DecodedLoop]:
        """See ``LoopingEngine.loops``."""
        uniforms = UniformStream(request.seed, self._device)
        if self._drafter is None:
            return ars(self._target, request.prompt_ids, request.sampling, uniforms, watch)
        prompt, sampling = request.prompt_ids, request.sampling
        return sps(self._target, self._drafter, prompt, self._k, sampling, uniforms, watch, self._rule)
