"""What the runner needs of an engine, and those that run the built-in loops: alone, in batches, beams."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from spsbench.base.axes import EAGER
from spsbench.base.records import (
    BEAM_CLOSEST,
    BEAM_LOG_PROB,
    FinishReason,
    Generation,
    Loop,
    Request,
    SamplingParams,
)
from spsbench.decode import algorithms, beam
from spsbench.decode.algorithms import Loops
from spsbench.decode.batch import DecodingBatch
from spsbench.decode.clock import Clock, Stopwatch, device_now, stopwatch_of
from spsbench.decode.processors import bound
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.decode.rejection import Accept
from spsbench.decode.rules import Rule, expected_acceptance
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stopping import StopRule, TextDecoder
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.buffer import MOST_BYTES, LoopBuffer, TruncatedLoop, phase_seconds
from spsbench.engines.derivation import Derivation


class Engine(Protocol):
    """Generates one sequence at a time for one arm."""

    name: str

    def generate(self, request: Request) -> Generation:
        """Answer a request; the clock stops at the last emitted token."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give torch so many CPU threads while the block lasts."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class ThreadedEngine:
    """An engine whose forwards are torch's, for a run that may give torch one thread otherwise.

    Over ONNX Runtime torch keeps to one thread, since its pool and the session's would wait for each other.
    An engine over torch needs the run's threads, but only during its own sequences.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self.name = engine.name
        self._engine, self._threads = engine, threads

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``; the engine's clock does not see the threads being set."""
        with torch_threads(self._threads):
            return self._engine.generate(request)


def _sees_phases(device: torch.device) -> bool:
    """On the host, or by events on the device."""
    return device.type in ("cpu", "cuda")


class LocalEngine(ABC):
    """Generates a sequence from an endless iterator of loops.

    Attributes:
        most_open: see ``DecodingBatch.most_open``.
    """

    most_open: float = math.inf

    def __init__(
        self,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
        rule: Rule | None = None,
        *,
        derivation: Derivation | None = None,
    ) -> None:
        self._rule = rule
        self._derivation = derivation
        self._decoder = decoder
        self._device = device
        self._clock = clock

    @property
    def rolls_states(self) -> bool:
        """Whether a loop puts running states back, see ``Loop.rollback_s``."""
        return False

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
        ledger = LoopBuffer(
            phases=_sees_phases(self._device),
            trace=request.trace,
            seed=request.seed,
            expected=expected_acceptance if self._rule is None else self._rule.expected,
            end_ids=stop.end_ids,
            most_loops=self.most_open,
            derivation=self._derivation,
        )
        with torch.inference_mode():
            started = device_now(self._device, self._clock)
            loops = self.start(request)
            prefilled = device_now(self._device, self._clock)
            watch = stopwatch_of(self._device, self._clock, states=self.rolls_states)
            paused_s = 0.0
            for decoded in loops(watch):
                kept, reason = stop.cut(ledger.tokens, decoded.tokens)
                watch.lap("other")
                ledger.add(TruncatedLoop(decoded, kept, reason, watch.take()))
                if reason is not None:
                    break
                if ledger.is_full:  # the clock stands while it is flushed: that is not part of decoding
                    watch.lap("other")
                    ledger.flush()
                    paused_s += watch.skip()
            else:
                raise AssertionError("loops do not end by themselves")
            ended = device_now(self._device, self._clock)
            ledger.flush()
        return ledger.generation(stop.text, reason, prefilled - started, ended - prefilled - paused_s)


MakeDrafter = Callable[[SamplingParams], Drafter]


class EagerEngine(LocalEngine):
    """Generates with ArS (no draft model) or SpS (a draft model and K), with ``tree`` as the target of drafts
    that are trees of so many nodes."""

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
        derivation: Derivation | None = None,
        tree: beam.TreeModel | None = None,
        nodes: int = 0,
    ) -> None:
        super().__init__(decoder, device, clock, rule, derivation=derivation)
        self._target = target
        self._tree, self._nodes = tree, nodes
        self._k = k
        if make_drafter is None and draft is not None:
            make_drafter = partial(ModelDrafter, draft, device=device)
        self._make_drafter = make_drafter
        self._drafters: dict[SamplingParams, Drafter] = {}
        self._begun: SamplingParams | None = None

    def start(self, request: Request) -> Loops:
        prompt = request.prompt_ids
        sampling = bound(request.sampling, self._decoder)
        drafter = self._drafter(sampling)
        uniforms = UniformStream(request.seed, self._device)
        accept, self._begun = self._accept, sampling
        if self._tree is not None:
            assert drafter is not None
            assert accept is not None
            return algorithms.start_tree(self._tree, drafter, prompt, self._nodes, sampling, uniforms, accept)
        return algorithms.start(self._target, drafter, prompt, self._k, sampling, uniforms, accept)

    @property
    def _accept(self) -> Accept | None:
        return None if self._rule is None else self._rule.accept

    @property
    def rolls_states(self) -> bool:
        """Of the target, or of a model that drafts."""
        drafter = None if self._begun is None else self._drafter(self._begun)
        models = () if drafter is None else (self._target, getattr(drafter, "model", None))
        return any(getattr(model, "rolled_back_by", "length") != "length" for model in models)

    def _drafter(self, sampling: SamplingParams) -> Drafter | None:
        if self._make_drafter is None:
            return None
        if sampling not in self._drafters:
            self._drafters[sampling] = self._make_drafter(sampling)
        return self._drafters[sampling]


RowResult = tuple[int, Generation | FloatingPointError]
"""The place of a request among those asked, and its generation or why it failed."""


@dataclass(slots=True)
class _Sequence:
    """A request that has a row."""

    place: int
    stop: StopRule
    buffer: LoopBuffer
    prefill_s: float
    begun_s: float
    latency_s: float = 0.0
    reason: FinishReason | None = None
    error: FloatingPointError | None = None


class BatchedEngine:
    """Generates many sequences, B at a time; a row that has ended takes the next one.

    A forward has one shape, however many rows are live, so a sequence is charged with what its row takes:
    the B-th part of each forward it was in, and the part of one live row of what else a loop does, unless
    that costs the same for all rows too (``DecodingBatch.shared``). Its
    seconds over its tokens are then those of a full batch, whose throughput is one over them, and the last
    sequences of a wave, whose neighbours are not replaced, cost no more than the others. ``latency_s`` is
    what passed from the end of its prefill to its last token, other rows' prefills included.
    """

    def __init__(
        self,
        batch: DecodingBatch,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
        rule: Rule | None = None,
        name: str = EAGER,
        *,
        derivation: Derivation | None = None,
    ) -> None:
        self.name, self._derivation = name, derivation
        self._batch = batch
        self._decoder = decoder
        self._device = device
        self._clock = clock
        self._expected = expected_acceptance if rule is None else rule.expected
        self._live: dict[int, _Sequence] = {}
        self._elapsed_s = 0.0

    @property
    def size(self) -> int:
        return self._batch.size

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``: one sequence, in a batch that is empty beside it."""
        ((_, answer),) = self.generate_all([request])
        if isinstance(answer, FloatingPointError):
            raise answer
        return answer

    def generate_all(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        """Answer requests, each as soon as it is done.

        All have the batch's sampling. Rows are filled in the order of the requests.
        """
        for row in range(self.size):  # forget what an abandoned or failed call left
            self._batch.end(row)
        self._live, self._elapsed_s = {}, 0.0
        waiting = deque(enumerate(requests))
        watch = stopwatch_of(self._device, self._clock)
        while waiting or self._live:
            try:
                with torch.inference_mode():
                    self._fill_free_rows(waiting)
                    ended = self._run_loop(watch)
            except Exception:
                self._live = {}  # free the rows' memory for the arms after this one
                raise
            for row in ended:
                yield self._answer(self._live.pop(row))

    def _fill_free_rows(self, waiting: deque[tuple[int, Request]]) -> None:
        for row in range(self.size):
            if row in self._live or not waiting:
                continue
            place, request = waiting.popleft()
            started_s = device_now(self._device, self._clock)
            self._batch.begin(row, request.prompt_ids, UniformStream(request.seed, self._device))
            prefill_s = device_now(self._device, self._clock) - started_s
            self._elapsed_s += prefill_s
            stop = StopRule.of(request, self._decoder)
            buffer = LoopBuffer(
                phases=_sees_phases(self._device),
                trace=request.trace,
                seed=request.seed,
                expected=self._expected,
                end_ids=stop.end_ids,
                most_bytes=MOST_BYTES // self.size,
                most_loops=self._batch.most_open,
                derivation=self._derivation,
            )
            self._live[row] = _Sequence(place, stop, buffer, prefill_s, self._elapsed_s)

    def _run_loop(self, watch: Stopwatch) -> list[int]:
        """The sequences whose output ended with it."""
        watch.start()
        decoded = self._batch.loop(watch)
        live = self._live
        cut = {row: live[row].stop.cut(live[row].buffer.tokens, loop.tokens) for row, loop in decoded.items()}
        watch.lap("other")
        seconds = watch.take()
        self._elapsed_s += watch.passed_s
        # A row's part: forwards are shared by all rows, the rest by the live rows.
        rows = {phase: self.size if phase in self._batch.shared else len(decoded) for phase in seconds}
        ended = []
        for row, loop in decoded.items():
            kept, reason = cut[row]
            if self._keep_loop(row, TruncatedLoop(loop, kept, reason, seconds, shared_by=rows)):
                ended.append(row)
        return ended

    def _keep_loop(self, row: int, loop: TruncatedLoop) -> bool:
        """Keep what a loop gave a row; return whether its output ended."""
        sequence = self._live[row]
        reason = loop.reason
        sequence.buffer.add(loop)
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
        """Reduce open loops to records; a row with NaN fails alone."""
        try:
            sequence.buffer.flush()
        except FloatingPointError as error:
            sequence.error = error
            return "error"
        return None

    def _answer(self, sequence: _Sequence) -> RowResult:
        with torch.inference_mode():
            if sequence.error is None:
                self._flush(sequence)
        buffer, reason = sequence.buffer, sequence.reason
        if sequence.error is not None:
            return sequence.place, sequence.error
        assert reason is not None
        decode_s = sum(loop.loop_s for loop in buffer.records)
        made = buffer.generation(sequence.stop.text, reason, sequence.prefill_s, decode_s)
        return sequence.place, replace(made, latency_s=sequence.latency_s)


class BeamEngine:
    """Finds the most probable outputs by beam search."""

    name = "beam"

    def __init__(
        self,
        target: beam.TreeModel,
        draft: beam.TreeModel | None,
        k: int,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._target, self._draft, self._k = target, draft, k
        self._decoder, self._device, self._clock = decoder, device, clock

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``; the tokens are those of the best hypothesis, and nothing is traced."""
        params = request.sampling.beam
        assert params is not None, "asked for beam search"
        stop = StopRule.of(request, self._decoder)
        ends = ends_of(stop)
        end_tokens = len(stop.end_ids)
        search = beam.BeamSearch(
            beam.Node(request.prompt_ids[-1]), params, ends, end_tokens, request.max_new_tokens
        )
        with torch.inference_mode():
            started = device_now(self._device, self._clock)
            for model in (self._target, self._draft):
                if model is not None:
                    model.begin(request.prompt_ids)
            prefilled = device_now(self._device, self._clock)
            watch = stopwatch_of(self._device, self._clock)
            if self._draft is None:
                found = beam.beam_search(self._target, search, watch)
            else:
                grow = beam.DraftSearch(params.draft_width, ends, end_tokens)
                found = beam.beam_speculative(self._target, self._draft, search, self._k, watch, grow)
            timed = [(loop, watch.take()) for loop in found]
            ended = device_now(self._device, self._clock)
        best = search.hypotheses[0]
        closest = {BEAM_CLOSEST: search.closest} if math.isfinite(search.closest) else {}
        return Generation(
            tokens=list(best.tokens),
            text=stop.text(best.tokens),
            loops=[_record(loop, seconds, phases=_sees_phases(self._device)) for loop, seconds in timed],
            prefill_s=prefilled - started,
            decode_s=ended - prefilled,
            finish_reason=best.reason,
            losslessness={BEAM_LOG_PROB: best.log_prob} | closest,
            hypotheses=search.hypotheses,
        )


def ends_of(stop: StopRule) -> beam.Ends:
    """Return the stop rule of all arms as a function of a node and one token after it."""

    def ends(parent: beam.Node, token: int) -> FinishReason | None:
        # Without stop strings the rule looks at the number of tokens alone.
        before = parent.tokens() if stop.stop else range(parent.depth)
        return stop.cut(before, [token])[1]

    return ends


def _record(loop: beam.BeamLoop, seconds: Mapping[str, float], *, phases: bool) -> Loop:
    return Loop(
        drafted=loop.drafted,
        accepted=loop.accepted,
        emitted=loop.steps,
        tested=min(loop.accepted + 1, loop.drafted),
        beta_sum=float("nan") if loop.drafted else 0.0,
        truncated=0,
        **phase_seconds(seconds, phases),
    )
