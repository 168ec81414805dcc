"""Decoding by CUDA graphs: stages of fixed shape, recorded once and launched as a whole.

A small draft costs less on a GPU than the launches of its kernels. Here the host launches a stage as
a whole and waits once a loop, for the tokens. The stages are plain functions over tensors that stay
where they are; uncaptured they run on any device, where tests compare them with the eager engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from spsbench.decode.algorithms import DecodedLoop, Loops
from spsbench.decode.batch import Batch, BatchRow
from spsbench.decode.clock import Clock, Stopwatch
from spsbench.decode.rejection import Accept, Draft, Verdict, accept_draft, accept_drafts
from spsbench.decode.rows import TensorRows
from spsbench.decode.rules import Rule
from spsbench.decode.sampling import Uniforms, UniformStream, draw, warp
from spsbench.decode.stopping import TextDecoder
from spsbench.engines.local import LocalEngine
from spsbench.models.static import StaticBatchLM, StaticLM
from spsbench.records import Request, SamplingParams

_WARM_UPS = 3


class CaptureFailed(Exception):
    """A stage cannot be a graph; the message says why."""


class Graphs:
    """Captures stages into one pool of memory, which stages of the same arm share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self.count = 0

    def __call__(self, stage: Callable[[], object]) -> Callable[[], object]:
        """Run a stage a few times, so that libraries set themselves up, then record it."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode():
                self._warm_up(stage)
                with torch.cuda.graph(graph, pool=self._pool):
                    stage()
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise CaptureFailed(f"a CUDA graph could not be captured: {reason}") from error
        self.count += 1
        return graph.replay

    def _warm_up(self, stage: Callable[[], object]) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                stage()
        torch.cuda.current_stream(self._device).wait_stream(stream)


def uncaptured(stage: Callable[[], object]) -> Callable[[], object]:
    """The stage itself, on any device."""
    return stage


Stage = Callable[[], object]
Capture = Callable[[Stage], Stage]
"""Makes of a stage what is called in its place: itself, or the replay of its graph."""


class State:
    """What the stages of an arm share: tensors on the device that keep their addresses.

    Attributes:
        tokens: [slots] the sequence.
        length: [1] how long it is.
        u: [2K+1] the loop's uniform numbers (ArS: [1]).
    """

    def __init__(self, slots: int, numbers: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        self.length = torch.ones(1, dtype=torch.int64, device=device)
        self.u = torch.zeros(numbers, device=device)

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a sequence; the last token of its prompt is pending."""
        self.tokens[: len(prompt)] = torch.tensor(prompt, device=self.tokens.device)
        self.length.fill_(len(prompt))


class Decoder(Protocol):
    """The loops of one method over a ``State``."""

    state: State

    def loop(self, watch: Stopwatch) -> DecodedLoop:
        """One loop; ``state.u`` holds its numbers."""


class StaticArS:
    """Algorithm 1 in one stage."""

    def __init__(self, target: StaticLM, sampling: SamplingParams, capture: Capture) -> None:
        self.state = State(target.slots, 1, target.device)
        self._target, self._sampling = target, sampling
        self._probs = torch.zeros(1, target.vocab_size, dtype=target.wide, device=target.device)
        self._token = torch.zeros(1, dtype=torch.int64, device=target.device)
        self._step = capture(self._stage)

    def loop(self, watch: Stopwatch) -> DecodedLoop:
        watch.lap("other")
        self._step()
        watch.lap("verify")
        token = self._token.tolist()
        watch.lap("sample")
        return DecodedLoop(token, 0, TensorRows(self._probs.clone()), None, self.state.u.clone())

    def _stage(self) -> None:
        state = self.state
        last = state.length - 1
        logits = self._target.score(state.tokens.index_select(0, last), last, last=1)
        self._probs.copy_(warp(logits, self._sampling))
        self._token.copy_(draw(self._probs, state.u))
        state.tokens.index_copy_(0, state.length, self._token)
        state.length += 1


class StaticSpS:
    """Algorithm 2 in three stages: draft, verify, accept.

    The draft always reads the last two tokens again, so that its shape does not depend on whether all
    were accepted; a loop costs K forwards of it as in the eager engine.
    """

    def __init__(
        self,
        target: StaticLM,
        draft: StaticLM,
        k: int,
        sampling: SamplingParams,
        capture: Capture,
        rule: Accept | None = None,
    ) -> None:
        self._rule = rule or accept_draft
        device, vocab_size = target.device, target.vocab_size
        self.state = State(target.slots, 2 * k + 1, device)
        self._target, self._draft, self._k, self._sampling = target, draft, k, sampling
        self._offsets = torch.arange(k + 1, device=device)
        self._drafted = torch.zeros(k, dtype=torch.int64, device=device)
        self._p = torch.zeros(k, vocab_size, dtype=target.wide, device=device)
        self._q = torch.zeros(k + 1, vocab_size, dtype=target.wide, device=device)
        self._answer = torch.zeros(k + 2, dtype=torch.int64, device=device)
        self.stages = tuple(map(capture, (self._propose, self._score, self._accept)))

    def loop(self, watch: Stopwatch) -> DecodedLoop:
        """See ``Decoder.loop``: three launches, and one wait for the answer."""
        propose, score, accept = self.stages
        watch.lap("other")
        propose()
        watch.lap("draft")
        score()
        watch.lap("verify")
        accept()
        *drafted, token, accepted = self._answer.tolist()
        watch.lap("sample")
        # Copies: the next loop writes to the same places.
        q, u, draft = (
            TensorRows(self._q.clone()),
            self.state.u.clone(),
            Draft(self._drafted.clone(), self._p.clone()),
        )
        return DecodedLoop([*drafted[:accepted], token], accepted, q, draft, u)

    def _propose(self) -> None:
        """K tokens after the sequence, each drawn from the row that is kept of it."""
        state = self.state
        # Of a sequence of one token there are no last two: then the second row is junk after it.
        first = (state.length - 2).clamp(min=0)
        positions = first + self._offsets[:2]
        logits = self._draft.score(state.tokens.index_select(0, positions), positions, last=2)
        row = logits.index_select(0, state.length - 1 - first)
        for i in range(self._k):
            if i:
                place = state.length + (i - 1)
                row = self._draft.score(self._drafted[i - 1 : i], place, last=1)
            self._p[i : i + 1] = warp(row, self._sampling)
            self._drafted[i : i + 1] = draw(self._p[i : i + 1], state.u[i : i + 1])

    def _score(self) -> None:
        """The target's rows after the pending token and every drafted one."""
        state = self.state
        pending = state.tokens.index_select(0, state.length - 1)
        positions = state.length - 1 + self._offsets
        logits = self._target.score(torch.cat([pending, self._drafted]), positions, last=self._k + 1)
        self._q.copy_(warp(logits, self._sampling))

    def _accept(self) -> None:
        """Append the accepted tokens and the one after them."""
        state, k = self.state, self._k
        verdict = self._rule(self._q, Draft(self._drafted, self._p), state.u[k:])
        self._answer.copy_(torch.cat([self._drafted, torch.stack(verdict[::-1])]))
        # What lies after the new end is overwritten before it is read.
        longer = torch.cat([self._drafted, verdict.token.unsqueeze(0)])
        new = torch.where(self._offsets < verdict.accepted, longer, verdict.token)
        state.tokens.index_copy_(0, state.length + self._offsets, new)
        state.length += verdict.accepted + 1


class GraphedEngine(LocalEngine):
    """ArS or SpS in fixed shapes."""

    name = "graphed"

    def __init__(
        self,
        target: StaticLM,
        draft: StaticLM | None,
        k: int,
        sampling: SamplingParams,
        decoder: TextDecoder,
        clock: Clock,
        capture: Capture,
        rule: Rule | None = None,
    ) -> None:
        super().__init__(decoder, target.device, clock, rule)
        self.models = [target] if draft is None else [target, draft]
        self.steps: Decoder = (
            StaticArS(target, sampling, capture)
            if draft is None
            else StaticSpS(target, draft, k, sampling, capture, None if rule is None else rule.accept)
        )

    def start(self, request: Request) -> Loops:
        self.steps.state.begin(request.prompt_ids)
        read = len(request.prompt_ids) - 1
        if read:
            tokens = self.steps.state.tokens[:read]
            positions = torch.arange(read, device=tokens.device)
            for model in self.models:
                model.score(tokens, positions, last=1)
        return partial(self._loops, UniformStream(request.seed, self.steps.state.u.device))

    def _loops(self, uniforms: Uniforms, watch: Stopwatch) -> Iterator[DecodedLoop]:
        u = self.steps.state.u
        while True:
            u.copy_(uniforms(len(u)))
            yield self.steps.loop(watch)


class BatchState:
    """What the stages of a batch share: tensors on the device that keep their addresses.

    Attributes:
        tokens: [B, slots] the sequences.
        lengths: [B] how long they are; 1 where there is none.
        lives: [B] 1 where a row has a sequence, else 0.
        u: [B, n] the loop's uniform numbers.
    """

    def __init__(self, batch: int, slots: int, numbers: int, device: torch.device) -> None:
        self.tokens = torch.zeros(batch, slots, dtype=torch.int64, device=device)
        self.lengths = torch.ones(batch, dtype=torch.int64, device=device)
        self.lives = torch.zeros(batch, dtype=torch.int64, device=device)
        self.u = torch.zeros(batch, numbers, device=device)

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """Give a row a sequence; the last token of its prompt is pending."""
        self.tokens[row, : len(prompt)] = torch.tensor(prompt, device=self.tokens.device)
        self.lengths[row] = len(prompt)
        self.lives[row] = 1

    def end(self, row: int) -> None:
        """Take a row's sequence away."""
        self.lengths[row] = 1
        self.lives[row] = 0

    def append(self, new: Tensor, count: Tensor) -> None:
        """Write [B, n] tokens after every row, of which [B] ``count`` stand."""
        places = self.lengths.unsqueeze(1) + torch.arange(new.shape[1], device=new.device)
        self.tokens.scatter_(1, places, new)
        self.lengths += self.lives * count

    def last(self) -> Tensor:
        """[B, 1] the pending tokens."""
        return self.tokens.gather(1, self.lengths.unsqueeze(1) - 1)


class StageBatch(Batch):
    """A batch whose loop is a few stages."""

    def __init__(self, target: StaticBatchLM, sampling: SamplingParams, numbers: int) -> None:
        super().__init__(target, sampling)
        self.state = BatchState(target.batch, target.slots, numbers, target.device)

    def begin(self, row: int, prompt: Sequence[int], uniforms: Uniforms) -> None:
        super().begin(row, prompt, uniforms)
        self.state.begin(row, prompt)

    def end(self, row: int) -> None:
        super().end(row)
        self.state.end(row)

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        u, live = self.state.u, sorted(self.live)
        drawn = torch.stack([self.live[row].uniforms(u.shape[1]) for row in live])
        u.index_copy_(0, torch.tensor(live, device=u.device), drawn)
        watch.lap("other")
        return self._staged(watch)

    @abstractmethod
    def _staged(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """The stages of a loop; ``state.u`` holds its numbers."""


class StageBatchArS(StageBatch):
    """Algorithm 1 for B sequences, in one stage."""

    def __init__(self, target: StaticBatchLM, sampling: SamplingParams, capture: Capture) -> None:
        super().__init__(target, sampling, 1)
        self._model = target
        size, width = target.batch, target.vocab_size
        self._probs = torch.zeros(size, width, dtype=target.wide, device=target.device)
        self._tokens = torch.zeros(size, dtype=torch.int64, device=target.device)
        self._one = torch.ones(size, dtype=torch.int64, device=target.device)
        self._step = capture(self._stage)

    def _staged(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        self._step()
        watch.lap("verify")
        tokens = self._tokens.tolist()
        watch.lap("sample")
        probs, u = self._probs.clone(), self.state.u.clone()
        return {
            row: DecodedLoop([tokens[row]], 0, TensorRows(probs[row : row + 1]), None, u[row])
            for row in sorted(self.live)
        }

    def _stage(self) -> None:
        state = self.state
        logits = self._model.score_at(state.last(), state.lengths - 1, last=1)[:, 0]
        self._probs.copy_(warp(logits, self.sampling))
        self._tokens.copy_(draw(self._probs, state.u[:, 0]))
        state.append(self._tokens.unsqueeze(1), self._one)


class StageBatchSpS(StageBatch):
    """Algorithm 2 for B sequences, in three stages: draft, verify, accept.

    The draft always reads the last two tokens of every row again, see ``StaticSpS``.
    """

    def __init__(
        self,
        target: StaticBatchLM,
        draft: StaticBatchLM,
        k: int,
        sampling: SamplingParams,
        capture: Capture,
        accept: Callable[[Tensor, Tensor, Tensor, Tensor], Verdict] = accept_drafts,
    ) -> None:
        super().__init__(target, sampling, 2 * k + 1)
        self._judge = accept
        self._model, self._draft, self._k = target, draft, k
        size, width, device = target.batch, target.vocab_size, target.device
        self._offsets = torch.arange(k + 1, device=device)
        self._drafted = torch.zeros(size, k, dtype=torch.int64, device=device)
        self._p = torch.zeros(size, k, width, dtype=target.wide, device=device)
        self._q = torch.zeros(size, k + 1, width, dtype=target.wide, device=device)
        self._answer = torch.zeros(size, k + 2, dtype=torch.int64, device=device)
        self.stages = tuple(map(capture, (self._propose, self._score, self._accept)))

    def _read(self, number: int, row: BatchRow) -> None:
        super()._read(number, row)
        self._draft.begin(number, row.tokens)

    def _staged(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        propose, score, accept = self.stages
        propose()
        watch.lap("draft")
        score()
        watch.lap("verify")
        accept()
        answers = self._answer.tolist()
        watch.lap("sample")
        # Copies: the next loop writes to the same places.
        q, p, drafted, u = (part.clone() for part in (self._q, self._p, self._drafted, self.state.u))
        found = {}
        for row in sorted(self.live):
            *own, token, accepted = answers[row]
            draft = Draft(drafted[row], p[row])
            found[row] = DecodedLoop([*own[:accepted], token], accepted, TensorRows(q[row]), draft, u[row])
        return found

    def _propose(self) -> None:
        state = self.state
        # Of a sequence of one token there are no last two: then the second one is junk after it.
        first = (state.lengths - 2).clamp(min=0)
        tokens = state.tokens.gather(1, first.unsqueeze(1) + self._offsets[:2])
        logits = self._draft.score_at(tokens, first, last=2)
        row = logits[torch.arange(self.size, device=first.device), state.lengths - 1 - first]
        for i in range(self._k):
            if i:
                row = self._draft.score_at(self._drafted[:, i - 1 : i], state.lengths + (i - 1), last=1)[:, 0]
            self._p[:, i] = warp(row, self.sampling)
            self._drafted[:, i] = draw(self._p[:, i], state.u[:, i])

    def _score(self) -> None:
        state = self.state
        block = torch.cat([state.last(), self._drafted], dim=1)
        logits = self._model.score_at(block, state.lengths - 1, last=self._k + 1)
        self._q.copy_(warp(logits.flatten(0, 1), self.sampling).view_as(self._q))

    def _accept(self) -> None:
        verdict = self._judge(self._q, self._drafted, self._p, self.state.u[:, self._k :])
        token, accepted = verdict.token.unsqueeze(1), verdict.accepted.unsqueeze(1)
        longer = torch.cat([self._drafted, token], dim=1)
        self._answer.copy_(torch.cat([longer, accepted], dim=1))
        # What lies after a row's new end is overwritten before it is read.
        self.state.append(torch.where(self._offsets < accepted, longer, token), verdict.accepted + 1)
