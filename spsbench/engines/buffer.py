"""The loops of one sequence, with their rows until these take too much memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spsbench.decode.evidence import Sums, added
from spsbench.decode.rows import HostRows, Rows
from spsbench.decode.rules import Expected, expected_acceptance
from spsbench.engines.recording import TruncatedLoop, loop_records, proposed_tokens, traced_tokens
from spsbench.engines.rescore import own_evidence
from spsbench.records import FinishReason, Generation, Loop, TracedToken

# K+1 target rows and K draft rows a loop: at 152,000 tokens and K = 4 a loop takes 5.5 MB as tensors.
MOST_BYTES = 256 << 20
"""Of rows that a sequence keeps before it is reduced to records."""


_MOST_KEPT = 4
"""Rows of a draft that are kept until the output is read again, in units of ``most_bytes``."""


class LoopBuffer:
    """Keeps what is known of a sequence; what needs the rows is worked out in ``flush``.

    That costs time, so it is done after the sequence's clock has stopped, or while it stands.

    Args:
        most_bytes: rows that take more than this should be flushed. No more of them are made into tensors
            at a time either.

    Attributes:
        losslessness: sums over the flushed loops, see ``own_evidence``.
        proposed: of the flushed loops, see ``proposed_tokens``.
        draft_rows: of the flushed loops, see ``Generation``; None if not kept, or too large.
    """

    def __init__(
        self,
        *,
        phases: bool,
        trace: bool,
        seed: int,
        expected: Expected = expected_acceptance,
        most_bytes: int = MOST_BYTES,
        keep_drafts: bool = False,
    ) -> None:
        self._expected = expected
        self.tokens: list[int] = []
        self.records: list[Loop] = []
        self.trace: list[TracedToken] | None = [] if trace else None
        self.losslessness: Sums = {}
        self.proposed: list[list[int]] = []
        self.draft_rows: list[Rows | None] | None = [] if keep_drafts else None
        self._phases = phases
        self._seed = seed
        self._most_bytes = most_bytes
        self._open: list[TruncatedLoop] = []
        self._open_bytes = self._kept_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the rows should be flushed now."""
        return self._open_bytes > self._most_bytes

    def add(self, loop: TruncatedLoop) -> None:
        """Take the next loop of the sequence."""
        self.tokens += loop.decoded.tokens[: loop.kept]
        self._open.append(loop)
        self._open_bytes += sum(rows.nbytes for rows in loop.rows.values())

    def flush(self) -> None:
        """Reduce the open loops to their records and let go of their rows."""
        self._require_numbers()
        position = len(self.tokens) - sum(loop.kept for loop in self._open)
        for loops in self._portions():
            self._settle(loops, position)
            position += sum(loop.kept for loop in loops)
        self._open, self._open_bytes = [], 0

    def generation(
        self, text: Callable[[Sequence[int]], str], reason: FinishReason, prefill_s: float, decode_s: float
    ) -> Generation:
        """The flushed sequence as an engine answers it."""
        return Generation(
            tokens=self.tokens,
            text=text(self.tokens),
            loops=self.records,
            prefill_s=prefill_s,
            decode_s=decode_s,
            finish_reason=reason,
            trace=self.trace,
            losslessness=self.losslessness,
            proposed=self.proposed,
            draft_rows=self.draft_rows,
        )

    def _settle(self, loops: list[TruncatedLoop], position: int) -> None:
        """Reduce consecutive loops, of which the first one's first token is the output's at ``position``."""
        if self.trace is not None:
            self.trace += traced_tokens(loops, len(self.records), position)
        seed = self._seed + len(self.records)
        self.losslessness = added(self.losslessness, own_evidence(loops, seed))
        self.records += loop_records(loops, self._phases, self._expected)
        self.proposed += proposed_tokens(loops)
        for loop in loops:
            self._keep_draft(loop)

    def _keep_draft(self, loop: TruncatedLoop) -> None:
        if self.draft_rows is None:
            return
        told, rows = loop.decoded.draft, None
        if told is not None and len(told.tokens) and told.own_rows is not None:
            own = told.own_rows.part(0, min(loop.kept, len(told.tokens)))
            rows = own if isinstance(own, HostRows) else HostRows.of(own.dense())
        self.draft_rows.append(rows)
        self._kept_bytes += 0 if rows is None else rows.nbytes
        if self._kept_bytes > _MOST_KEPT * self._most_bytes:
            self.draft_rows = None

    def _portions(self) -> Iterator[list[TruncatedLoop]]:
        """The open loops in parts whose rows take little more than ``most_bytes`` as tensors."""
        part: list[TruncatedLoop] = []
        taken = 0
        for loop in self._open:
            part.append(loop)
            taken += sum(rows.dense_nbytes for rows in loop.rows.values())
            if taken > self._most_bytes:
                yield part
                part, taken = [], 0
        if part:
            yield part

    def _require_numbers(self) -> None:
        for number, loop in enumerate(self._open, start=len(self.records)):
            for role, rows in loop.rows.items():
                if not rows.is_finite():
                    raise FloatingPointError(f"the {role}'s logits are not finite numbers in loop {number}")
