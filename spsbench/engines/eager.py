"""The reference backend: Algorithms 1 and 2 over any ``LanguageModel``, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from spsbench.clock import Clock, Stopwatch
from spsbench.decoding import DecodedLoop, ars, sps
from spsbench.drafters.drafter import Drafter
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.ledger import Ledger
from spsbench.engines.recording import Finished
from spsbench.engines.uniforms import UniformStream
from spsbench.models.language_model import LanguageModel
from spsbench.records import FinishReason, Generation, Request
from spsbench.tasks.stopping import StopRule, TextDecoder


class EagerEngine:
    """Generates with ArS (no draft model) or SpS (a draft model and K).

    Args:
        target: writes the output's distribution; the draft itself for the draft-only arm.
        draft: proposes tokens; None for ArS.
        k: lookahead; without effect for ArS.
        decoder: turns token ids into text, for stop strings and the output.
        device: where the models are.
        clock: read at the edges of phases.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        k: int,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._target = target
        self._draft = draft
        self._k = k
        self._decoder = decoder
        self._device = device
        self._clock = clock

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``: prefill, then loops until the stop rule ends them.

        The last prompt token is left pending in both arms, so that neither gets a token for free.
        """
        drafter = None if self._draft is None else ModelDrafter(self._draft, request.sampling, self._device)
        stop = StopRule.of(request, self._decoder)
        phases = self._device.type == "cpu"
        ledger = Ledger(phases=phases, trace=request.trace, seed=request.seed)
        with torch.inference_mode():
            started = self._now()
            self._prefill(request, drafter)
            prefilled = self._now()
            reason, paused_s = self._decode(request, drafter, stop, ledger)
            ended = self._now()
            ledger.settle()
        return Generation(
            tokens=ledger.tokens,
            text=stop.text(ledger.tokens),
            loops=ledger.records,
            prefill_s=prefilled - started,
            decode_s=ended - prefilled - paused_s,
            finish_reason=reason,
            trace=ledger.trace,
            losslessness=ledger.losslessness,
        )

    def _prefill(self, request: Request, drafter: Drafter | None) -> None:
        """Read prompt[:-1] with every model of the arm."""
        read = request.prompt_ids[:-1]
        self._target.rollback(0)
        if read:
            self._target.score(torch.tensor(read, device=self._device), last=1)
        if drafter is not None:
            drafter.prefill(read)

    def _loops(self, request: Request, drafter: Drafter | None, watch: Stopwatch) -> Iterator[DecodedLoop]:
        uniforms = UniformStream(request.seed, self._device)
        if drafter is None:
            return ars(self._target, request.prompt_ids, request.sampling, uniforms, watch)
        return sps(self._target, drafter, request.prompt_ids, self._k, request.sampling, uniforms, watch)

    def _decode(
        self, request: Request, drafter: Drafter | None, stop: StopRule, ledger: Ledger
    ) -> tuple[FinishReason, float]:
        """Loops until the output ends; (why it ended, seconds that the clock stood still).

        The clock stands while a full ledger is settled: that is no part of decoding.
        """
        watch = Stopwatch(self._clock)
        paused_s = 0.0
        for decoded in self._loops(request, drafter, watch):
            kept, reason = stop.cut(ledger.tokens, decoded.tokens)
            watch.lap("other")
            ledger.add(Finished(decoded, kept, reason, watch.take()))
            if reason is not None:
                return reason, paused_s
            if ledger.is_full:
                watch.lap("other")
                ledger.settle()
                paused_s += watch.skip()
        raise AssertionError("loops do not end by themselves")

    def _now(self) -> float:
        """Seconds, once the device has done all that it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock.now()
