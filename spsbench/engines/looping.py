"""What engines of our own loops have in common: the clock, the stop rule and the records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.clock import Clock, Stopwatch
from spsbench.decode.rules import Rule, expected_acceptance
from spsbench.decode.stopping import StopRule, TextDecoder
from spsbench.engines.ledger import Ledger
from spsbench.engines.recording import Finished
from spsbench.records import FinishReason, Generation, Request


class LoopingEngine(ABC):
    """Generates a sequence from a prefill and an endless iterator of loops.

    Args:
        decoder: turns token ids into text, for stop strings and the output.
        device: where the models are.
        clock: read at the edges of phases.
        rule: judges drafts; modified rejection unless given.
    """

    def __init__(
        self, decoder: TextDecoder, device: torch.device, clock: Clock, rule: Rule | None = None
    ) -> None:
        self._rule = rule
        self._decoder = decoder
        self._device = device
        self._clock = clock

    @abstractmethod
    def prefill(self, request: Request) -> None:
        """Forget the last sequence and read prompt[:-1] with every model of the arm."""

    @abstractmethod
    def loops(self, request: Request, watch: Stopwatch) -> Iterator[DecodedLoop]:
        """Loops behind the prefilled prompt, without end; ``watch`` is told of every phase's end."""

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``: prefill, then loops until the stop rule ends them.

        The last prompt token is left pending in every arm, so that none gets a token for free.
        """
        stop = StopRule.of(request, self._decoder)
        phases = self._device.type == "cpu"  # elsewhere work is asynchronous
        expected = expected_acceptance if self._rule is None else self._rule.expected
        ledger = Ledger(phases=phases, trace=request.trace, seed=request.seed, expected=expected)
        with torch.inference_mode():
            started = self._now()
            self.prefill(request)
            prefilled = self._now()
            reason, paused_s = self._decode(request, stop, ledger)
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
            proposed=ledger.proposed,
        )

    def _decode(self, request: Request, stop: StopRule, ledger: Ledger) -> tuple[FinishReason, float]:
        """Loops until the output ends; (why it ended, seconds that the clock stood still).

        The clock stands while a full ledger is settled: that is no part of decoding.
        """
        watch = Stopwatch(self._clock)
        paused_s = 0.0
        for decoded in self.loops(request, watch):
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
