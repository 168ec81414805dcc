"""Engines that run the built-in loops: the clock, the stop rule, the records, and the eager one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch

from spsbench.axes import EAGER
from spsbench.decode import algorithms
from spsbench.decode.algorithms import Loops
from spsbench.decode.clock import Clock, Stopwatch, device_now
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.decode.rules import Rule, expected_acceptance
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stopping import StopRule, TextDecoder
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.buffer import LoopBuffer
from spsbench.engines.recording import TruncatedLoop
from spsbench.records import FinishReason, Generation, Request, SamplingParams


class LocalEngine(ABC):
    """Generates a sequence from an endless iterator of loops."""

    def __init__(
        self,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
        rule: Rule | None = None,
        *,
        keep_drafts: bool = False,
    ) -> None:
        self._rule = rule
        self._keep_drafts = keep_drafts
        self._decoder = decoder
        self._device = device
        self._clock = clock

    @abstractmethod
    def start(self, request: Request) -> Loops:
        """Forget the last sequence and begin the prompt with every model of the arm: see ``algorithms``.

        This is timed as prefill, and what the loops do as decoding.
        """

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``: prefill, then loops until the stop rule ends them.

        The last prompt token is left pending in every arm, so that no arm gets an uncharged token.
        """
        stop = StopRule.of(request, self._decoder)
        phases = self._device.type == "cpu"  # elsewhere work is asynchronous
        expected = expected_acceptance if self._rule is None else self._rule.expected
        ledger = LoopBuffer(
            phases=phases,
            trace=request.trace,
            seed=request.seed,
            expected=expected,
            keep_drafts=self._keep_drafts,
        )
        with torch.inference_mode():
            started = device_now(self._device, self._clock)
            loops = self.start(request)
            prefilled = device_now(self._device, self._clock)
            reason, paused_s = self._decode(loops, stop, ledger)
            ended = device_now(self._device, self._clock)
            ledger.flush()
        return ledger.generation(stop.text, reason, prefilled - started, ended - prefilled - paused_s)

    def _decode(self, loops: Loops, stop: StopRule, ledger: LoopBuffer) -> tuple[FinishReason, float]:
        """Loops until the output ends; (why it ended, seconds that the clock stood still).

        The clock stands while a full buffer is flushed: that is not part of decoding.
        """
        watch = Stopwatch(self._clock)
        paused_s = 0.0
        for decoded in loops(watch):
            kept, reason = stop.cut(ledger.tokens, decoded.tokens)
            watch.lap("other")
            ledger.add(TruncatedLoop(decoded, kept, reason, watch.take()))
            if reason is not None:
                return reason, paused_s
            if ledger.is_full:
                watch.lap("other")
                ledger.flush()
                paused_s += watch.skip()
        raise AssertionError("loops do not end by themselves")


MakeDrafter = Callable[[SamplingParams], Drafter]


class EagerEngine(LocalEngine):
    """Generates with ArS (no draft model) or SpS (a draft model and K)."""

    name = EAGER

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
        *,
        keep_drafts: bool = False,
    ) -> None:
        super().__init__(decoder, device, clock, rule, keep_drafts=keep_drafts)
        self._target = target
        self._k = k
        if make_drafter is None and draft is not None:
            make_drafter = partial(ModelDrafter, draft, device=device)
        self._make_drafter = make_drafter
        self._drafters: dict[SamplingParams, Drafter] = {}

    def start(self, request: Request) -> Loops:
        prompt, sampling = request.prompt_ids, request.sampling
        drafter, uniforms = self._drafter(sampling), UniformStream(request.seed, self._device)
        accept = None if self._rule is None else self._rule.accept
        return algorithms.start(self._target, drafter, prompt, self._k, sampling, uniforms, accept)

    def _drafter(self, sampling: SamplingParams) -> Drafter | None:
        if self._make_drafter is None:
            return None
        if sampling not in self._drafters:
            self._drafters[sampling] = self._make_drafter(sampling)
        return self._drafters[sampling]
