"""ArS and SpS over a batch: B rows, each with its own sequence and its own length.

A forward has one shape for all rows; how many draft tokens stand is decided row by row, and a row whose
output has ended takes the next prompt while the others go on. Each row draws the numbers of its sequence
and is judged by the same rule as a sequence alone, so that its tokens depend on no other row but by the
rounding of a forward of more rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.clock import Phase, Stopwatch
from spsbench.decode.protocols import Drafter, sent
from spsbench.decode.rejection import Accept, Draft, accept_draft, all_decided, judged
from spsbench.decode.rows import Rows
from spsbench.decode.sampling import Uniforms


class BatchModel(Protocol):
    """A language model that caches B sequences.

    Attributes:
        batch: B.
        vocab_size: V, the width of the logits.
        device: where it is.
    """

    batch: int
    vocab_size: int
    device: torch.device

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """Forget a row's last sequence and read a prompt but its last token."""
        ...

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        """Write n tokens a row after the first ``starts[b]`` ones of it, and score the last few.

        What a row held after ``starts[b]`` is forgotten: to roll back is to start earlier.

        Args:
            tokens: [B, n] int64; of a row without a sequence any tokens.
            starts: [B] how many tokens of each row stand.
            last: rows of logits wanted of each sequence, 1 to n.

        Returns:
            [B, last, V] logits. The next ``score`` of this model may overwrite them.
        """
        ...


@dataclass(slots=True)
class BatchRow:
    """A sequence while it has a row.

    Attributes:
        tokens: all of it; the last is pending, read by no model.
        uniforms: its numbers.
    """

    tokens: list[int]
    uniforms: Uniforms


class DecodingBatch(ABC):
    """B rows that decode together.

    Args:
        target: writes the law of every output.
        sampling: of target and drafts.

    Attributes:
        size: B.
        live: the rows that have a sequence, by their numbers from 0.
        shared: phases that cost the same, however many rows are live.
        most_open: a sequence's loops after which the rows of its oldest one are overwritten.
    """

    shared: tuple[Phase, ...] = ("draft", "verify")
    most_open: float = math.inf

    def __init__(self, target: BatchModel, sampling: SamplingParams) -> None:
        self.target, self.sampling = target, sampling
        self.size = target.batch
        self.live: dict[int, BatchRow] = {}

    def begin(self, row: int, prompt: Sequence[int], uniforms: Uniforms) -> None:
        """Give a row a sequence: every model reads its prompt but the last token.

        Should one of them fail, the row stays without a sequence.
        """
        begun = BatchRow(list(prompt), uniforms)
        self._read(row, begun)
        self.live[row] = begun

    def _read(self, number: int, row: BatchRow) -> None:
        """Have every model read a row's prompt."""
        self.target.begin(number, row.tokens)

    def end(self, row: int) -> None:
        """End the row's output; no effect where it has no sequence."""
        self.live.pop(row, None)

    @abstractmethod
    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """Run one loop of every live row, of which there is at least one."""

    def _warped(self, logits: Tensor) -> Rows:
        """The live sequences' warped last rows, from logits [B, last, V]; no copy if all are live."""
        if len(self.live) < self.size:
            logits = logits[sent(sorted(self.live), logits.device)]
        return rows.warped(logits.flatten(0, 1), self.sampling)


class BatchArS(DecodingBatch):
    """Algorithm 1 for B sequences: one token of each a loop."""

    def __init__(self, target: BatchModel, sampling: SamplingParams) -> None:
        super().__init__(target, sampling)
        if target.device.type != "cpu":  # drawing takes as many kernels for one row as for all
            self.shared = ("draft", "verify", "sample")

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """Run one loop of ArS: one token for every live row."""
        live = sorted(self.live.items())
        numbers = [row.uniforms(1) for _, row in live]
        watch.lap("other")
        tokens, starts = pending(self.live, self.target)
        logits = self.target.score(tokens, starts, last=1)
        watch.lap("verify")
        q = self._warped(logits)
        drawn = q.draw(torch.cat(numbers)).tolist()
        watch.lap("sample")
        decoded = {}
        for place, ((number, row), token) in enumerate(zip(live, drawn, strict=True)):
            row.tokens.append(token)
            decoded[number] = DecodedLoop([token], 0, q.part(place, 1), None, numbers[place])
        return decoded


Drafts = Mapping[int, Draft]


class BatchDrafter(Protocol):
    """Proposes tokens after several sequences."""

    def begin(self, number: int, row: BatchRow) -> None:
        """Give a row a new sequence, whose last token is pending."""
        ...

    def draft(self, live: Mapping[int, BatchRow], k: int, numbers: Mapping[int, Tensor]) -> Drafts:
        """Draft up to k tokens after each row; ``numbers`` are [k] uniform numbers a row."""
        ...

    def observe(self, number: int, row: BatchRow, accepted: int) -> None:
        """End a row's loop; its tokens are those that stand now."""
        ...


class BatchSpS(DecodingBatch):
    """Algorithm 2 for B sequences: one pass of the target over the K+1 tokens of every row.

    Args:
        target, sampling: see ``DecodingBatch``.
        drafter: proposes for all rows.
        k: lookahead, at least 1.
        rule: judges each row's draft; modified rejection unless given.
    """

    def __init__(
        self,
        target: BatchModel,
        sampling: SamplingParams,
        drafter: BatchDrafter,
        k: int,
        rule: Accept | None = None,
    ) -> None:
        super().__init__(target, sampling)
        self._drafter = drafter
        self._k = k
        self._rule = rule or accept_draft

    def _read(self, number: int, row: BatchRow) -> None:
        super()._read(number, row)
        self._drafter.begin(number, row)

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        """Run one loop of SpS: drafts, one target pass for all rows, the rule row by row."""
        live, k = sorted(self.live.items()), self._k
        numbers = {number: row.uniforms(2 * k + 1) for number, row in live}
        watch.lap("other")
        drafts = self._drafter.draft(self.live, k, {number: u[:k] for number, u in numbers.items()})
        watch.lap("draft")
        logits = self._score(drafts)
        watch.lap("verify")
        q = self._warped(logits)
        width = logits.shape[1]
        target_rows = []
        judgements = []
        for place, (number, _) in enumerate(live):
            draft = drafts[number]
            target_rows.append(q.part(place * width, len(draft.tokens) + 1))
            u = numbers[number][-len(draft.tokens) - 1 :]
            judgements.append((draft, judged(self._rule, target_rows[-1], draft, u)))
        decoded = {}
        for (number, row), (drafted, accepted, token), part in zip(
            live, all_decided(judgements), target_rows, strict=True
        ):
            new = [*drafted[:accepted], token]
            row.tokens += new
            decoded[number] = DecodedLoop(new, accepted, part, drafts[number], numbers[number])
        watch.lap("sample")
        for number, row in live:
            self._drafter.observe(number, row, decoded[number].accepted)
        return decoded

    def _score(self, drafts: Drafts) -> Tensor:
        """[B, n+1, V] target logits, n the longest draft; undefined after the end of a shorter one."""
        longest = max(len(draft.tokens) for draft in drafts.values())
        last, starts = pending(self.live, self.target)
        block = last.new_zeros(self.size, longest + 1)
        block[:, :1] = last
        for number, draft in drafts.items():
            block[number, 1 : len(draft.tokens) + 1] = draft.tokens
        return self.target.score(block, starts, last=longest + 1)


class ModelBatchDrafter:
    """The paper's drafter for B sequences: each token of all rows by one forward of the draft model.

    Behind full acceptance a row has two pending tokens. If any has, all read their last two again: a forward
    has one shape.

    Args:
        model: the draft.
        sampling: of draft and target.
    """

    def __init__(self, model: BatchModel, sampling: SamplingParams) -> None:
        self._model, self._sampling = model, sampling
        self._read = [0] * model.batch  # tokens of each row that the model has read

    def begin(self, number: int, row: BatchRow) -> None:
        self._model.begin(number, row.tokens)
        self._read[number] = len(row.tokens) - 1

    def draft(self, live: Mapping[int, BatchRow], k: int, numbers: Mapping[int, Tensor]) -> Drafts:
        """Draft with the draft model, all rows in one forward a token."""
        order = sorted(live)
        device = self._model.device
        places = sent(order, device)
        picks: list[Tensor] = []
        own_rows: list[Rows] = []
        for i in range(k):
            logits = self._next_logits(live, places, picks[-1], i) if i else self._first_logits(live, places)
            row = rows.warped(logits, self._sampling)
            picks.append(row.draw(torch.stack([numbers[number][i] for number in order])))
            own_rows.append(row)
        tokens = torch.stack(picks, dim=1)
        for number in order:
            self._read[number] = len(live[number].tokens) + k - 1
        return {
            number: Draft(tokens[place], rows.joined([row.part(place, 1) for row in own_rows]))
            for place, number in enumerate(order)
        }

    def observe(self, number: int, row: BatchRow, accepted: int) -> None:
        """Forget the model's tokens after the last decided one."""
        self._read[number] = min(self._read[number], len(row.tokens) - 1)

    def _first_logits(self, live: Mapping[int, BatchRow], places: Tensor) -> Tensor:
        """[b, V] logits after the pending tokens, of which each row has one or two."""
        most = max(len(row.tokens) - self._read[number] for number, row in live.items())
        block = [[0] * most for _ in range(self._model.batch)]
        device = self._model.device
        starts, ends = [0] * self._model.batch, []
        for number, row in sorted(live.items()):
            starts[number] = max(len(row.tokens) - most, 0)
            last = row.tokens[starts[number] :]
            block[number][: len(last)] = last
            ends.append(len(last) - 1)
        # A sequence of one token has no last two: then the block's second row is not read.
        least = min(ends)
        logits = self._model.score(sent(block, device), starts, last=most - least)
        return logits[places, sent([end - least for end in ends], device)]

    def _next_logits(self, live: Mapping[int, BatchRow], places: Tensor, picked: Tensor, i: int) -> Tensor:
        """[b, V] logits after the i-th drafted token of each row."""
        block = picked.new_zeros(self._model.batch, 1)
        block[places, 0] = picked
        starts = [0] * self._model.batch
        for number, row in live.items():
            starts[number] = len(row.tokens) + i - 1
        return self._model.score(block, starts, last=1)[places, 0]


class RowDrafters:
    """A drafter for each row, for those that look at tokens alone.

    Args:
        make: makes one for a row; it serves every sequence that has this row.
    """

    def __init__(self, make: Callable[[], Drafter]) -> None:
        self._make = make
        self._drafters: dict[int, Drafter] = {}

    def begin(self, number: int, row: BatchRow) -> None:
        if number not in self._drafters:
            self._drafters[number] = self._make()
        self._drafters[number].begin(row.tokens)

    def draft(self, live: Mapping[int, BatchRow], k: int, numbers: Mapping[int, Tensor]) -> Drafts:
        return {
            number: self._drafters[number].draft(row.tokens, k, numbers[number])
            for number, row in live.items()
        }

    def observe(self, number: int, row: BatchRow, accepted: int) -> None:
        self._drafters[number].observe(row.tokens, accepted)


def pending(live: Mapping[int, BatchRow], model: BatchModel) -> tuple[Tensor, list[int]]:
    """Return ([B, 1] each row's last token, [B] how many tokens come before it); zeros for rows not live."""
    tokens = [[0] for _ in range(model.batch)]
    starts = [0] * model.batch
    for number, row in live.items():
        tokens[number] = row.tokens[-1:]
        starts[number] = len(row.tokens) - 1
    return sent(tokens, model.device), starts
