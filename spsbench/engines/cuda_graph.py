"""Decoding by CUDA graphs: stages of fixed shape for B sequences, recorded once and launched as a whole.

A small draft costs less on a GPU than the launches of its kernels. Here the host launches a stage as
a whole, and nothing beside them, and waits once a loop, for the tokens. The stages are plain functions over
tensors that stay where they are; uncaptured they run on any device, where tests compare them with the eager
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.base.errors import first_line
from spsbench.base.records import Request, SamplingParams
from spsbench.decode.algorithms import DecodedLoop, Loops, ars, sps
from spsbench.decode.batch import BatchRow, DecodingBatch
from spsbench.decode.clock import Clock, Stopwatch
from spsbench.decode.protocols import Tokens, Verified
from spsbench.decode.rejection import Decision, Draft, Verdict, accept_drafts
from spsbench.decode.rows import TensorRows
from spsbench.decode.sampling import Uniforms, UniformStream, draw, warp
from spsbench.decode.stopping import TextDecoder
from spsbench.engines.buffer import MOST_BYTES
from spsbench.engines.derivation import Derivation
from spsbench.engines.local import LocalEngine
from spsbench.models.batched import StaticLM

Stage = Callable[[], object]
"""A part of a loop, of fixed shape over memory that stays where it is."""

Capture = Callable[[Stage], Stage]
"""Makes of a stage what is called in its place: itself, or the replay of its graph."""


class CaptureFailed(Exception):
    """A stage cannot be a graph; the message says why."""


class Graphs:
    """Captures stages into one pool of memory, which stages of the same arm share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, stage: Stage) -> Stage:
        """Run a stage a few times, so that libraries set themselves up, then record it."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode():
                stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
                stream.wait_stream(torch.cuda.current_stream(self._device))
                with torch.cuda.stream(stream):
                    for _ in range(3):
                        stage()
                torch.cuda.current_stream(self._device).wait_stream(stream)
                with torch.cuda.graph(graph, pool=self._pool):
                    stage()
        except RuntimeError as error:
            reason = first_line(error)
            raise CaptureFailed(f"a CUDA graph could not be captured: {reason}") from error
        return graph.replay


def uncaptured(stage: Stage) -> Stage:
    return stage


class RowMemory:
    """Memory for the rows of open loops, the same for arms that take turns; the largest should come first."""

    def __init__(self) -> None:
        self._held = torch.empty(0)

    def ring(self, most: int, rows: Tensor) -> Tensor:
        """[B, places, 2K+1, V] for up to ``most`` loops, each with rows like these [B, 2K+1, V]."""
        size = min(most * rows.numel(), max(MOST_BYTES // rows.itemsize, rows.numel()))
        if self._held.numel() < size or self._held.dtype != rows.dtype:
            self._held = rows.new_empty(size)
        places = size // rows.numel()
        return self._held[: places * rows.numel()].view(len(rows), places, *rows.shape[1:])


class OpenLoop(NamedTuple):
    """Where a loop's stages leave a row's draft, None for ArS, and the target's rows."""

    draft: Draft | None
    target_rows: TensorRows


class StagedBatch(DecodingBatch):
    """B sequences by Algorithm 2 in three stages, draft, verify and accept, or by Algorithm 1 in one.

    The draft always reads the last two tokens of every row again, so that its shape does not depend on
    whether all were accepted; a loop costs K forwards of it as in the eager engine. What the stages share are
    tensors on the device that keep their addresses. By the number of the loop, which the device counts, they
    take its uniform numbers and find the place of its rows in a ring.

    Args:
        memory: of the ring; its own unless given.

    Attributes:
        k: lookahead; 0 for ArS.
        tokens: [B, slots] the sequences.
        lengths: [B] how long they are; 1 where there is none.
        u: [B, 2K+1] the loop's uniform numbers.
        most_open: places of the ring; no sequence has more loops than slots.
    """

    target: StaticLM
    shared = ("draft", "verify", "sample")

    def __init__(
        self,
        target: StaticLM,
        draft: StaticLM | None,
        k: int,
        sampling: SamplingParams,
        capture: Capture,
        accept: Callable[[Tensor, Tensor, Tensor, Tensor], Verdict] = accept_drafts,
        memory: RowMemory | None = None,
    ) -> None:
        super().__init__(target, sampling)
        self.draft = draft
        self.k = k = 0 if draft is None else k
        self._rule = accept
        size = target.batch
        width = target.vocab_size
        device = target.device
        self.tokens = torch.zeros(size, target.slots, dtype=torch.int64, device=device)
        self.lengths = torch.ones(size, dtype=torch.int64, device=device)
        self._lives = torch.zeros(size, dtype=torch.int64, device=device)  # 1 for a row that has a sequence
        self._done = torch.zeros(size, dtype=torch.int64, device=device)  # loops of every row's sequence
        self._ahead = torch.zeros(size, UniformStream.loops_ahead(2 * k + 1), 2 * k + 1, device=device)
        self.u = torch.zeros(size, 2 * k + 1, device=device)
        self._offsets, self._numbers = torch.arange(k + 1, device=device), torch.arange(size, device=device)
        self._drafted = torch.zeros(size, k, dtype=torch.int64, device=device)
        # Of every row k rows of the draft and k + 1 of the target.
        self._rows = torch.zeros(size, 2 * k + 1, width, dtype=target.wide, device=device)
        self._p, self._q = torch.split(self._rows, [k, k + 1], dim=1)
        self._answer = torch.zeros(size, k + 2, dtype=torch.int64, device=device)
        self._open_rows = (memory or RowMemory()).ring(target.slots, self._rows)
        self.most_open = places = self._open_rows.shape[1]
        self._open_drafts = torch.zeros(size, places, k, dtype=torch.int64, device=device)
        self._counted = [0] * size  # the host's copy of ``_done``
        self._given: dict[int, Tensor] = {}  # the numbers in ``_ahead``, for records: never overwritten
        accepting = capture(self._accept) if k else None
        self._stages = {span: self._captured(span, capture, accepting) for span in target.spans}

    def _captured(self, span: int, capture: Capture, accepting: Stage | None) -> tuple[Stage, ...]:
        """Return what a loop launches while no sequence is longer than ``span``."""
        if accepting is None:
            return (capture(partial(self._step, span)),)
        return capture(partial(self._propose, span)), capture(partial(self._score, span)), accepting

    def stages(self) -> tuple[Stage, ...]:
        """Return draft, verify and accept, or one step, for the smallest span that holds the next loop."""
        longest = max((len(row.tokens) for row in self.live.values()), default=1)
        return self._stages[self.target.span_of(longest + self.k)]

    def begin(self, row: int, prompt: Sequence[int], uniforms: Uniforms) -> None:
        super().begin(row, prompt, uniforms)
        self.tokens[row, : len(prompt)] = torch.tensor(prompt, device=self.tokens.device)
        self.lengths[row] = len(prompt)
        self._lives[row] = 1
        self._done[row].zero_()
        self._counted[row] = 0
        self._draw_ahead(row)

    def _draw_ahead(self, row: int) -> None:
        """Copy a row's next numbers to the device, in one waiting copy: at K = 4 those of 1,808 loops."""
        uniforms = self.live[row].uniforms
        assert isinstance(uniforms, UniformStream), "others do not know their next numbers"
        self._given[row] = uniforms.ahead(self.u.shape[1])
        self._ahead[row] = self._given[row]

    def _read(self, number: int, row: BatchRow) -> None:
        super()._read(number, row)
        if self.draft is not None:
            self.draft.begin(number, row.tokens)

    def end(self, row: int) -> None:
        super().end(row)
        self.lengths[row] = 1
        self._lives[row] = 0

    def numbers(self, row: int) -> Tensor:
        """[2K+1] a row's numbers for the loop that begins; the device takes its own copy of them."""
        done, ahead = self._counted[row], self._ahead.shape[1]
        if done and done % ahead == 0:
            self._draw_ahead(row)
        return self._given[row][done % ahead]

    def open_loop(self, row: int) -> OpenLoop:
        """A row's loop that has begun; its stages fill what these are views of."""
        place = self._counted[row] % self._open_rows.shape[1]
        p, q = torch.split(self._open_rows[row, place], [self.k, self.k + 1])
        draft = Draft(self._open_drafts[row, place], p) if self.k else None
        return OpenLoop(draft, TensorRows(q))

    def decisions(self) -> dict[int, Decision]:
        """Wait for the loop's last stage, which ends the loop of every live row."""
        answers = self._answer.tolist()
        decided = {}
        for row in self.live:
            *drafted, token, accepted = answers[row]
            decided[row] = Decision(drafted[: self.k], accepted, token, None)
            self._counted[row] += 1
        return decided

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """Launch one or three graphs, and wait once for the outcome."""
        numbers = {row: self.numbers(row) for row in sorted(self.live)}
        opened = {row: self.open_loop(row) for row in numbers}
        stages = self.stages()
        watch.lap("other")
        if self.k:
            propose, score, accept = stages
            propose()
            watch.lap("draft")
            score()
            watch.lap("verify")
            accept()
        else:
            stages[0]()
            watch.lap("verify")
        decisions = self.decisions()
        watch.lap("sample")
        decoded = {}
        for row, u in numbers.items():
            drafted, accepted, token, _ = decisions[row]
            new = [*drafted[:accepted], token]
            self.live[row].tokens += new
            decoded[row] = DecodedLoop(new, accepted, opened[row].target_rows, opened[row].draft, u)
        return decoded

    def _take_numbers(self) -> None:
        self.u.copy_(self._ahead[self._numbers, self._done % self._ahead.shape[1]])

    def _keep(self) -> None:
        """Copy the loop's rows to their place in the ring, and count it."""
        place = self._done % self._open_rows.shape[1]
        self._open_rows[self._numbers, place] = self._rows
        self._open_drafts[self._numbers, place] = self._drafted
        self._done += self._lives

    def _step(self, span: int) -> None:
        self._take_numbers()
        self._score(span)
        self._accept()

    def _propose(self, span: int) -> None:
        """Draft K tokens after every row, each from a row of probabilities that is kept."""
        assert self.draft is not None
        self._take_numbers()
        # A sequence of one token has no last two: then the second token is not used.
        first = (self.lengths - 2).clamp(min=0)
        tokens = self.tokens.gather(1, first.unsqueeze(1) + self._offsets[:2])
        logits = self.draft.score_at(tokens, first, 2, span)
        row = logits[self._numbers, self.lengths - 1 - first]
        for i in range(self.k):
            if i:
                pick = self._drafted[:, i - 1 : i]
                starts = self.lengths + (i - 1)
                row = self.draft.score_at(pick, starts, 1, span)[:, 0]
            self._p[:, i] = warp(row, self.sampling)
            self._drafted[:, i] = draw(self._p[:, i], self.u[:, i])

    def _score(self, span: int) -> None:
        """Compute the target's rows after the pending tokens and every drafted one."""
        pending = self.tokens.gather(1, self.lengths.unsqueeze(1) - 1)
        block = torch.cat([pending, self._drafted], dim=1)
        logits = self.target.score_at(block, self.lengths - 1, self.k + 1, span)
        self._q.copy_(warp(logits.flatten(0, 1), self.sampling).view_as(self._q))

    def _accept(self) -> None:
        """Append the accepted tokens of every row and the one after them."""
        if self.k:
            verdict = self._rule(self._q, self._drafted, self._p, self.u[:, self.k :])
        else:
            verdict = Verdict(torch.zeros_like(self.lengths), draw(self._q[:, 0], self.u[:, 0]))
        token = verdict.token.unsqueeze(1)
        accepted = verdict.accepted.unsqueeze(1)
        longer = torch.cat([self._drafted, token], dim=1)
        self._answer.copy_(torch.cat([longer, accepted], dim=1))
        # Tokens after a row's new end are overwritten before they are read.
        new = torch.where(self._offsets < accepted, longer, token)
        self.tokens.scatter_(1, self.lengths.unsqueeze(1) + self._offsets, new)
        self.lengths += self._lives * (verdict.accepted + 1)
        self._keep()


class StagedSequence:
    """The sequence of a batch of one behind the nouns of ``ars`` and ``sps``: uniforms, drafter and verifier.

    Each call launches its stage; what it is given is on the device already.

    Attributes:
        tokens: the sequence.
        device: where its numbers are.
    """

    def __init__(self, batch: StagedBatch, prompt: Sequence[int], uniforms: UniformStream) -> None:
        batch.begin(0, prompt, uniforms)
        self._batch = batch
        self.device = uniforms.device
        self.tokens = batch.live[0].tokens = Tokens(prompt)

    def __call__(self, n: int) -> Tensor:
        """[n] the loop's uniform numbers, see ``Uniforms``."""
        return self._batch.numbers(0)

    def begin(self, prompt: Sequence[int]) -> None:
        """Of a drafter: the batch has read the prompt with both models."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        self._batch.stages()[0]()
        draft = self._batch.open_loop(0).draft
        assert draft is not None, "a batch for ArS drafts nothing"
        return draft

    def score(self, tokens: Sequence[int], draft: Draft | None) -> None:
        self._batch.stages()[0 if draft is None else 1]()

    def judge(self, draft: Draft | None, u: Tensor) -> Verified:
        if draft is not None:
            self._batch.stages()[2]()
        target_rows = self._batch.open_loop(0).target_rows
        return Verified(target_rows, self._batch.decisions()[0])

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Of a drafter: stages read by the device's own length, so that nothing is to be put back."""

    def keep(self, length: int) -> None:
        """Of a verifier: see ``observe``."""


class GraphedEngine(LocalEngine):
    """ArS or SpS in fixed shapes: a batch of one."""

    name = "graphed"

    def __init__(
        self, batch: StagedBatch, decoder: TextDecoder, clock: Clock, *, derivation: Derivation | None = None
    ) -> None:
        super().__init__(decoder, batch.target.device, clock, derivation=derivation)
        self.batch, self.most_open = batch, batch.most_open

    def start(self, request: Request) -> Loops:
        sequence = StagedSequence(self.batch, request.prompt_ids, UniformStream(request.seed, self._device))

        def loops(watch: Stopwatch) -> Iterator[DecodedLoop]:
            if self.batch.draft is None:
                return ars(sequence, sequence.tokens, sequence, watch)
            return sps(sequence, sequence, sequence.tokens, self.batch.k, sequence, watch)

        return loops
