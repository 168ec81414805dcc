"""Decoding by CUDA graphs: stages of fixed shape for B sequences, recorded once and launched as a whole.

A small draft costs less on a GPU than the launches of its kernels. Here the host launches a stage as
a whole and waits once a loop, for the tokens. The stages are plain functions over tensors that stay
where they are; uncaptured they run on any device, where tests compare them with the eager engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from spsbench.decode.algorithms import DecodedLoop, Loops
from spsbench.decode.batch import Batch, BatchRow
from spsbench.decode.clock import Clock, Stopwatch
from spsbench.decode.rejection import Draft, Verdict, accept_drafts
from spsbench.decode.rows import TensorRows
from spsbench.decode.sampling import Uniforms, UniformStream, draw, warp
from spsbench.decode.stopping import TextDecoder
from spsbench.engines.local import LocalEngine
from spsbench.models.batched import StaticLM
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
    """What the stages share: tensors on the device that keep their addresses.

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


class StagedBatch(Batch):
    """A batch whose loop is a few stages."""

    target: StaticLM

    def __init__(self, target: StaticLM, sampling: SamplingParams, numbers: int) -> None:
        super().__init__(target, sampling)
        self.state = State(target.batch, target.slots, numbers, target.device)

    def begin(self, row: int, prompt: Sequence[int], uniforms: Uniforms) -> None:
        super().begin(row, prompt, uniforms)
        self.state.begin(row, prompt)

    def end(self, row: int) -> None:
        super().end(row)
        self.state.end(row)

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        u = self.state.u
        drawn = [row.uniforms(u.shape[1]) for _, row in self._rows()]
        if len(drawn) == self.size:
            torch.stack(drawn, out=u)
        else:
            u.index_copy_(0, torch.tensor(sorted(self.live), device=u.device), torch.stack(drawn))
        watch.lap("other")
        return self._staged(watch)

    @abstractmethod
    def _staged(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """The stages of a loop; ``state.u`` holds its numbers."""


class StagedArS(StagedBatch):
    """Algorithm 1 for B sequences, in one stage."""

    def __init__(self, target: StaticLM, sampling: SamplingParams, capture: Capture) -> None:
        super().__init__(target, sampling, 1)
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
        logits = self.target.score_at(state.last(), state.lengths - 1, last=1)[:, 0]
        self._probs.copy_(warp(logits, self.sampling))
        self._tokens.copy_(draw(self._probs, state.u[:, 0]))
        state.append(self._tokens.unsqueeze(1), self._one)


class StagedSpS(StagedBatch):
    """Algorithm 2 for B sequences, in three stages: draft, verify, accept.

    The draft always reads the last two tokens of every row again, so that its shape does not depend on
    whether all were accepted; a loop costs K forwards of it as in the eager engine.
    """

    def __init__(
        self,
        target: StaticLM,
        draft: StaticLM,
        k: int,
        sampling: SamplingParams,
        capture: Capture,
        accept: Callable[[Tensor, Tensor, Tensor, Tensor], Verdict] = accept_drafts,
    ) -> None:
        super().__init__(target, sampling, 2 * k + 1)
        self._rule = accept
        self.draft, self._k = draft, k
        size, width, device = target.batch, target.vocab_size, target.device
        self._offsets, self._numbers = torch.arange(k + 1, device=device), torch.arange(size, device=device)
        self._drafted = torch.zeros(size, k, dtype=torch.int64, device=device)
        self._p = torch.zeros(size, k, width, dtype=target.wide, device=device)
        self._q = torch.zeros(size, k + 1, width, dtype=target.wide, device=device)
        self._answer = torch.zeros(size, k + 2, dtype=torch.int64, device=device)
        self.stages = tuple(map(capture, (self._propose, self._score, self._accept)))

    def _read(self, number: int, row: BatchRow) -> None:
        super()._read(number, row)
        self.draft.begin(number, row.tokens)

    def _staged(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """Three launches, and one wait for the answer."""
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
        """K tokens after every row, each drawn from the row of probabilities that is kept of it."""
        state = self.state
        # Of a sequence of one token there are no last two: then the second one is junk after it.
        first = (state.lengths - 2).clamp(min=0)
        tokens = state.tokens.gather(1, first.unsqueeze(1) + self._offsets[:2])
        logits = self.draft.score_at(tokens, first, last=2)
        row = logits[self._numbers, state.lengths - 1 - first]
        for i in range(self._k):
            if i:
                row = self.draft.score_at(self._drafted[:, i - 1 : i], state.lengths + (i - 1), last=1)[:, 0]
            self._p[:, i] = warp(row, self.sampling)
            self._drafted[:, i] = draw(self._p[:, i], state.u[:, i])

    def _score(self) -> None:
        """The target's rows after the pending tokens and every drafted one."""
        state = self.state
        block = torch.cat([state.last(), self._drafted], dim=1)
        logits = self.target.score_at(block, state.lengths - 1, last=self._k + 1)
        self._q.copy_(warp(logits.flatten(0, 1), self.sampling).view_as(self._q))

    def _accept(self) -> None:
        """Append the accepted tokens of every row and the one after them."""
        verdict = self._rule(self._q, self._drafted, self._p, self.state.u[:, self._k :])
        token, accepted = verdict.token.unsqueeze(1), verdict.accepted.unsqueeze(1)
        longer = torch.cat([self._drafted, token], dim=1)
        self._answer.copy_(torch.cat([longer, accepted], dim=1))
        # What lies after a row's new end is overwritten before it is read.
        self.state.append(torch.where(self._offsets < accepted, longer, token), verdict.accepted + 1)


def staged(
    target: StaticLM, draft: StaticLM | None, k: int, sampling: SamplingParams, capture: Capture
) -> StagedBatch:
    """ArS, or with a draft SpS, for as many sequences as the models hold."""
    if draft is None:
        return StagedArS(target, sampling, capture)
    return StagedSpS(target, draft, k, sampling, capture)


class GraphedEngine(LocalEngine):
    """ArS or SpS in fixed shapes: a batch of one."""

    name = "graphed"

    def __init__(self, batch: StagedBatch, decoder: TextDecoder, clock: Clock) -> None:
        super().__init__(decoder, batch.target.device, clock)
        self.batch = batch

    def start(self, request: Request) -> Loops:
        self.batch.begin(0, request.prompt_ids, UniformStream(request.seed, self._device))
        return self._loops

    def _loops(self, watch: Stopwatch) -> Iterator[DecodedLoop]:
        while True:
            yield self.batch.loop(watch)[0]
