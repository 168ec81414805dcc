"""From what a loop left behind to its record; all of it after the sequence's clock has stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.rejection import Draft
from spsbench.decode.rows import Rows
from spsbench.decode.rules import Expected, expected_acceptance
from spsbench.records import FinishReason, Loop, TracedToken


@dataclass(slots=True)
class TruncatedLoop:
    """A decoded loop with what the stop rule kept of it.

    Attributes:
        seconds: of each phase.
    """

    decoded: DecodedLoop
    kept: int
    reason: FinishReason | None
    seconds: dict[str, float]

    @property
    def drafted(self) -> int:
        """Draft tokens that count as trials: those after an accepted EOS do not."""
        proposed = 0 if self.decoded.draft is None else len(self.decoded.draft.tokens)
        return self.kept if self._ended_inside_draft else proposed

    @property
    def accepted(self) -> int:
        """Accepted draft tokens, before stop strings and length cut the output."""
        return self.kept if self._ended_inside_draft else self.decoded.accepted

    @property
    def tested(self) -> int:
        """Draft tokens that met the acceptance test."""
        return min(self.accepted + 1, self.drafted)

    @property
    def rows(self) -> dict[str, Rows]:
        """Its rows by the role of the model: the target's, and the draft's where it showed some."""
        told = None if self.decoded.draft is None else self.decoded.draft.own_rows
        return {"target": self.decoded.target_rows} | ({} if told is None else {"draft": told})

    @property
    def _ended_inside_draft(self) -> bool:
        return self.reason == "eos" and self.kept <= self.decoded.accepted


def loop_records(
    loops: Sequence[TruncatedLoop], phases: bool, expected: Expected = expected_acceptance
) -> list[Loop]:
    """One ``Loop`` a decoded loop.

    Args:
        expected: the probability of acceptance at each drafted position, as the rule has it.
    """
    betas = _beta_sums(loops, expected)
    return [_loop_record(loop, beta_sum, phases) for loop, beta_sum in zip(loops, betas, strict=True)]


def _loop_record(loop: TruncatedLoop, beta_sum: float, phases: bool) -> Loop:
    seconds = loop.seconds
    return Loop(
        drafted=loop.drafted,
        accepted=loop.accepted,
        emitted=loop.kept,
        tested=loop.tested,
        beta_sum=beta_sum,
        truncated=len(loop.decoded.tokens) - loop.kept,
        draft_s=seconds["draft"] if phases else None,
        verify_s=seconds["verify"] if phases else None,
        sample_s=seconds["sample"] if phases else None,
        other_s=seconds["other"] if phases else None,
        loop_s=sum(seconds.values()),
        comm_s=seconds.get("comm") if phases else None,
    )


def _beta_sums(loops: Sequence[TruncatedLoop], expected: Expected) -> list[float]:
    """Sum over each loop's tested positions of the probability of acceptance there."""
    sums = []
    for loop in loops:
        draft, n = loop.decoded.draft, loop.tested
        if draft is None or n == 0:
            sums.append(torch.zeros((), device=loop.decoded.u.device))
        else:
            probs = draft.probs
            tested = Draft(draft.tokens[:n], None if probs is None else probs[:n])
            sums.append(expected(loop.decoded.target_probs, tested).sum())
    values: list[float] = torch.stack(sums).tolist() if sums else []
    return values


def proposed_tokens(loops: Sequence[TruncatedLoop]) -> list[list[int]]:
    """Per loop every drafted id, so that it is known how many there were; empty for ArS."""
    drafts = [loop.decoded.draft for loop in loops]
    parts = [torch.empty(0, dtype=torch.int64) if draft is None else draft.tokens for draft in drafts]
    found = [part for part in parts if len(part)]
    ids = iter(torch.cat(found).tolist() if found else [])  # one wait of the host for all of them
    return [[next(ids) for _ in range(len(part))] for part in parts]


def traced_tokens(loops: Sequence[TruncatedLoop], first: int = 0, position: int = 0) -> list[TracedToken]:
    """One entry a drafted and tested or emitted token of the output, in order."""
    trace: list[TracedToken] = []
    for index, loop in enumerate(loops, first):
        trace += _trace_loop(index, position, loop)
        position += loop.kept
    return trace


def _trace_loop(index: int, position: int, loop: TruncatedLoop) -> Iterator[TracedToken]:
    decoded = loop.decoded
    draft_tokens = [] if decoded.draft is None else decoded.draft.tokens.tolist()
    tests = decoded.u[-len(draft_tokens) - 1 :].tolist()
    for j in range(min(loop.accepted, loop.kept)):
        yield _entry(index, position, decoded, j, draft_tokens[j], "accepted", tests[j])
    if loop.kept <= loop.accepted:
        return
    j = loop.accepted
    if j < len(draft_tokens):
        yield _entry(index, position, decoded, j, draft_tokens[j], "rejected", tests[j])
    fate = "ars" if decoded.draft is None else "correction" if j < len(draft_tokens) else "bonus"
    yield _entry(index, position, decoded, j, decoded.tokens[j], fate, tests[-1])


def _draft_prob(draft: Draft, j: int, token: int) -> float:
    rows = draft.own_rows
    return float(draft.tokens[j] == token) if rows is None else rows.probability(j, token)


def _entry(
    index: int, position: int, decoded: DecodedLoop, j: int, token: int, fate: str, u: float
) -> TracedToken:
    draft = decoded.draft
    drafted = draft is not None and j < len(draft.tokens)
    return TracedToken(
        loop=index,
        position=position + j,
        token_id=token,
        fate=fate,  # type: ignore[arg-type]
        target_prob=decoded.target_rows.probability(j, token),
        draft_prob=_draft_prob(draft, j, token) if draft is not None and drafted else None,
        u=u,
    )
