"""The built-in loops over a batch of B rows: the clock, the stop rule and the records of every row."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from spsbench.axes import EAGER
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.batch import Batch
from spsbench.decode.clock import Clock, Stopwatch, device_now
from spsbench.decode.rules import Rule, expected_acceptance
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stopping import StopRule, TextDecoder
from spsbench.engines.buffer import MOST_BYTES, LoopBuffer
from spsbench.engines.recording import TruncatedLoop
from spsbench.records import FinishReason, Generation, Request

Answer = tuple[int, Generation | FloatingPointError]
"""The place of a request among those asked, and its generation or why it failed."""


@dataclass(slots=True)
class _Sequence:
    """A request that has a row."""

    place: int
    stop: StopRule
    buffer: LoopBuffer
    prefill_s: float
    begun_s: float
    decode_s: float = 0.0
    latency_s: float = 0.0
    reason: FinishReason | None = None
    error: FloatingPointError | None = None


class BatchedEngine:
    """Generates many sequences, B at a time; a row that has ended takes the next one.

    A forward has one shape, however many rows are live, so a sequence is charged with what its row takes: the
    B-th part
    of each forward it was in, and the part of one live row of what else a loop does. Its seconds over its
    tokens are then those of a full batch, whose throughput is one over them, and the last sequences of a
    wave, whose neighbours are not replaced, cost no more than the others. ``latency_s`` is what passed from
    the end of its prefill to its last token, other rows' prefills included.
    """

    def __init__(
        self,
        batch: Batch,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
        rule: Rule | None = None,
        name: str = EAGER,
        *,
        keep_drafts: bool = False,
    ) -> None:
        self.name, self._keep_drafts = name, keep_drafts
        self._batch, self._decoder, self._device, self._clock = batch, decoder, device, clock
        self._expected = expected_acceptance if rule is None else rule.expected
        self._live: dict[int, _Sequence] = {}
        self._elapsed_s = 0.0

    @property
    def size(self) -> int:
        """B."""
        return self._batch.size

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``: one sequence, in a batch that is empty beside it."""
        ((_, answer),) = self.generate_all([request])
        if isinstance(answer, FloatingPointError):
            raise answer
        return answer

    def generate_all(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests, each as soon as it is done.

        All have the batch's sampling. Rows are filled in the order of the requests.
        """
        self._clear()
        waiting = deque(enumerate(requests))
        watch = Stopwatch(self._clock)
        while waiting or self._live:
            with torch.inference_mode():
                self._refill(waiting)
                ended = self._loop(watch)
            for row in ended:
                yield self._answer(self._live.pop(row))

    def _clear(self) -> None:
        """Forget what an abandoned or failed call left behind."""
        for row in range(self.size):
            self._batch.end(row)
        self._live, self._elapsed_s = {}, 0.0

    def _refill(self, waiting: deque[tuple[int, Request]]) -> None:
        """Give every free row the next request, as far as there are any."""
        for row in range(self.size):
            if row in self._live or not waiting:
                continue
            place, request = waiting.popleft()
            started_s = device_now(self._device, self._clock)
            self._batch.begin(row, request.prompt_ids, UniformStream(request.seed, self._device))
            prefill_s = device_now(self._device, self._clock) - started_s
            self._elapsed_s += prefill_s
            buffer = LoopBuffer(
                phases=self._device.type == "cpu",
                trace=request.trace,
                seed=request.seed,
                expected=self._expected,
                most_bytes=MOST_BYTES // self.size,
                keep_drafts=self._keep_drafts,
            )
            stop = StopRule.of(request, self._decoder)
            self._live[row] = _Sequence(place, stop, buffer, prefill_s, self._elapsed_s)

    def _loop(self, watch: Stopwatch) -> list[int]:
        """One loop of all rows; those whose output ended with it."""
        watch.start()
        decoded = self._batch.loop(watch)
        cut = {row: self._cut(self._live[row], loop) for row, loop in decoded.items()}
        device_now(self._device, self._clock)
        watch.lap("other")
        seconds = watch.take()
        self._elapsed_s += sum(seconds.values())
        share = self._share(seconds, len(decoded))
        return [row for row, loop in decoded.items() if self._kept(row, loop, *cut[row], share)]

    def _share(self, seconds: dict[str, float], live: int) -> dict[str, float]:
        """A row's part of a loop: a share of the forwards by all rows, and of the rest by the live ones."""
        rows = {"draft": self.size, "verify": self.size}
        return {phase: value / rows.get(phase, live) for phase, value in seconds.items()}

    @staticmethod
    def _cut(sequence: _Sequence, loop: DecodedLoop) -> tuple[int, FinishReason | None]:
        return sequence.stop.cut(sequence.buffer.tokens, loop.tokens)

    def _kept(
        self, row: int, loop: DecodedLoop, kept: int, reason: FinishReason | None, share: dict[str, float]
    ) -> bool:
        """Keep what a loop gave a row; whether its output ended."""
        sequence = self._live[row]
        sequence.buffer.add(TruncatedLoop(loop, kept, reason, share))
        sequence.decode_s += sum(share.values())
        if sequence.buffer.is_full:
            reason = self._flush(sequence) or reason
        if reason is None:
            return False
        sequence.reason = reason
        sequence.latency_s = self._elapsed_s - sequence.begun_s
        self._batch.end(row)
        return True

    @staticmethod
    def _flush(sequence: _Sequence) -> FinishReason | None:
        """Reduce open loops to records; a row whose numbers are none fails alone."""
        try:
            sequence.buffer.flush()
        except FloatingPointError as error:
            sequence.error = error
            return "error"
        return None

    def _answer(self, sequence: _Sequence) -> Answer:
        with torch.inference_mode():
            if sequence.error is None:
                self._flush(sequence)
        buffer, reason = sequence.buffer, sequence.reason
        if sequence.error is not None:
            return sequence.place, sequence.error
        assert reason is not None
        made = buffer.generation(sequence.stop.text, reason, sequence.prefill_s, sequence.decode_s)
        return sequence.place, replace(made, latency_s=sequence.latency_s)
