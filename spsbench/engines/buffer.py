"""The loops of one sequence, with their rows until these take too much room."""

from __future__ import annotations

from spsbench.decode.evidence import Sums, added
from spsbench.decode.rules import Expected, expected_acceptance
from spsbench.engines.recording import TruncatedLoop, loop_records, proposed_tokens, traced_tokens
from spsbench.engines.rescore import own_evidence
from spsbench.records import Loop, TracedToken

# K+1 target rows and K draft rows a loop: at 152,000 tokens and K = 4 a loop takes 5.5 MB.
_MOST_BYTES = 256 << 20


class LoopBuffer:
    """Keeps what is known of a sequence; what needs the rows is worked out in ``flush``.

    That costs time, so it is done after the sequence's clock has stopped, or while it stands.

    Args:
        phases: see ``loop_records``.
        trace: keep one entry per drafted or emitted token.
        seed: of the sequence.
        expected: of the rule, see ``Rule.expected``.
        most_bytes: rows beyond this should be flushed.

    Attributes:
        tokens: emitted so far.
        records: of the flushed loops.
        trace: of the flushed loops; None if it is not kept.
        losslessness: sums over the flushed loops, see ``own_evidence``.
        proposed: of the flushed loops, see ``proposed_tokens``.
    """

    def __init__(
        self,
        *,
        phases: bool,
        trace: bool,
        seed: int,
        expected: Expected = expected_acceptance,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._expected = expected
        self.tokens: list[int] = []
        self.records: list[Loop] = []
        self.trace: list[TracedToken] | None = [] if trace else None
        self.losslessness: Sums = {}
        self.proposed: list[list[int]] = []
        self._phases = phases
        self._seed = seed
        self._most_bytes = most_bytes
        self._open: list[TruncatedLoop] = []
        self._open_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the rows should be flushed now."""
        return self._open_bytes > self._most_bytes

    def add(self, loop: TruncatedLoop) -> None:
        """Take the next loop of the sequence."""
        decoded = loop.decoded
        self.tokens += decoded.tokens[: loop.kept]
        self._open.append(loop)
        self._open_bytes += decoded.target_probs.nbytes
        if decoded.draft is not None and decoded.draft.probs is not None:
            self._open_bytes += decoded.draft.probs.nbytes

    def flush(self) -> None:
        """Reduce the open loops to their records and let go of their rows.

        Raises:
            FloatingPointError: a model answered with NaN or infinity; the output is worth nothing.
        """
        self._require_numbers()
        if self.trace is not None:
            position = len(self.tokens) - sum(loop.kept for loop in self._open)
            self.trace += traced_tokens(self._open, len(self.records), position)
        if self._open:
            seed = self._seed + len(self.records)
            self.losslessness = added(self.losslessness, own_evidence(self._open, seed))
        self.records += loop_records(self._open, self._phases, self._expected)
        self.proposed += proposed_tokens(self._open)
        self._open, self._open_bytes = [], 0

    def _require_numbers(self) -> None:
        for number, loop in enumerate(self._open, start=len(self.records)):
            decoded = loop.decoded
            rows = {
                "target": decoded.target_probs,
                "draft": None if decoded.draft is None else decoded.draft.probs,
            }
            for role, probs in rows.items():
                if probs is not None and not bool(probs.isfinite().all()):
                    raise FloatingPointError(f"the {role}'s logits are not finite numbers in loop {number}")
