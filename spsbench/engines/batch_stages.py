"""Stages of fixed shape over B rows: what a CUDA graph of a batch is captured from.

As ``cuda_graph``, with B sequences in a state [B, slots]. How many tokens of a row stand is a number on the
device, so that nothing in a loop depends on it but what is written where; the host waits once a loop, for the
tokens of all rows. A row without a sequence goes on writing to its first slots and never moves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.batch import Batch, BatchRow
from spsbench.decode.clock import Stopwatch
from spsbench.decode.rejection import Draft, Verdict, accept_drafts
from spsbench.decode.rows import TensorRows
from spsbench.decode.sampling import Uniforms, draw, warp
from spsbench.engines.cuda_graph import Capture
from spsbench.models.static import StaticBatchLM
from spsbench.records import SamplingParams


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
