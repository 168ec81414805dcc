"""The exact law of what the sampler's rule emits, found by probing it as a black box.

Nothing is assumed of the rule but that each of its tests accepts small uniform numbers and rejects
large ones, and that its final draw climbs the vocabulary with its number. So the law is a set of edges
between outcomes. Where one should lie is computed here, in float64; the rule is then asked just below
and just above. Where it answers otherwise, bisection finds its own edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor

from spsbench.base import MODIFIED_REJECTION
from spsbench.decode import Accept, DecodedLoop, Draft, HostRows, algorithms, as_in_a_loop, judged
from spsbench.decode import sampling as law
from spsbench.parts.verify.effort import Finding, measured, skipped
from spsbench.parts.verify.messages import AllAtAnEdge, LawDistance, NoThresholds, RowsNotShown
from spsbench.parts.verify.subject import SamplerUnderTest, steady

_STEP = 2.0**-18
_HALVINGS = 22
_BELOW_ONE = 1 - 2.0**-24


def emitted_law(rule: Accept, q: Tensor, draft: Draft, drawn: Tensor, j: int) -> Tensor:
    """Return the law of a loop's token ``j``, given that the drafted tokens before it stand.

    Args:
        q: [K+1, V] target rows.
        draft: K tokens, and the [K, V] rows that the rule is given for them.
        drawn: [K, V] rows that they really came from.

    Returns:
        [V] probabilities in float64. They add up to less than 1 where the rule leaves the path: it
        rejects what stood, or goes on after a rejection.
    """
    k = len(draft.tokens)
    if j == k:
        return _final_law(_TwoNumbers(rule, q, draft, j), 0.0, q[k].tolist())
    law = torch.zeros(q.shape[-1], dtype=torch.float64)
    rejected: dict[int, tuple[float, float]] = {}
    p = draft.rows(q.shape[-1], q.dtype)
    for x in drawn[j].nonzero().flatten().tolist():
        expected = min(1.0, float(q[j, x]) / float(p[j, x])) if p[j, x] > 0 else 1.0
        accepted = _TwoNumbers(rule, q, _with_token(draft, j, x), j).acceptance(expected)
        law[x] += float(drawn[j, x]) * accepted
        rejected[x] = (float(drawn[j, x]) * (1 - accepted), accepted)
    missing = sum(mass for mass, _ in rejected.values())
    if missing > 0:
        x = max(rejected, key=lambda token: rejected[token])
        probe = _TwoNumbers(rule, q, _with_token(draft, j, x), j)
        test = (1 + rejected[x][1]) / 2
        left = [max(a - b, 0.0) for a, b in zip(q[j].tolist(), p[j].tolist(), strict=True)]
        law += missing * _final_law(probe, test, left if any(left) else q[j].tolist())
    return law


class _TwoNumbers:
    """A rule with everything fixed but two of its uniform numbers: that of test ``j`` and the last."""

    def __init__(self, rule: Accept, q: Tensor, draft: Draft, j: int) -> None:
        self._rule, self._q, self._draft, self._j = rule, q, draft, j
        self._rows = as_in_a_loop(q)

    def answer(self, test: float, final: float) -> tuple[int, int]:
        """Return (accepted, token).

        All other tests pass at 0; those after ``j`` must not matter if it fails.
        """
        tests = [test if i == self._j else 0.0 for i in range(len(self._draft.tokens))]
        u = torch.tensor([*tests, final], dtype=self._q.dtype).clamp_(0.0, _BELOW_ONE)
        verdict = judged(self._rule, self._rows, self._draft, u)
        return int(verdict.accepted), int(verdict.token)

    def acceptance(self, guess: float) -> float:
        """Return the probability that test ``j`` accepts."""
        return _threshold(lambda u: self.answer(u, 0.5)[0] > self._j, guess)

    def token(self, test: float, final: float) -> int:
        """Return the token drawn after ``j`` accepted ones; past the vocabulary for any other number."""
        accepted, token = self.answer(test, final)
        return token if accepted == self._j else self._q.shape[-1]


def _final_law(probe: _TwoNumbers, test: float, weights: Sequence[float]) -> Tensor:
    """[V] law of the final draw with test ``j`` at ``test``; ``weights`` are the expected law."""
    whole, reached = sum(weights), 0.0
    token = cache(lambda u: probe.token(test, u))
    edges = [0.0]
    for y, weight in enumerate(weights):
        reached += weight / whole
        edges.append(_threshold(lambda u, y=y: token(u) <= y, reached))  # type: ignore[misc]
    return torch.tensor(edges, dtype=torch.float64).diff()


def _threshold(below: Callable[[float], bool], guess: float) -> float:
    """Up to which number ``below`` holds: the guess, if it holds just under and fails just over it."""
    low, high = guess - _STEP, guess + _STEP
    if (low <= 0 or below(low)) and (high >= 1 or not below(high)):
        return guess
    if not below(0.0):
        return 0.0
    if below(_BELOW_ONE):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def _with_token(draft: Draft, j: int, x: int) -> Draft:
    tokens = draft.tokens.clone()
    tokens[j] = x
    return Draft(tokens, draft.probs)


_TEST = "analytic"
TOKENS = 40
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_COARSE_TOLERANCE = 2e-2


class _RowsNotShown(Exception):
    """A drafter draws in its own way, so that only what it reports is known."""


# More tokens than this become one, "the rest", before a rule is asked hundreds of times.
_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class _Law:
    """What the sampler implies for one emitted token."""

    columns: Tensor  # [n] tokens that are tested one by one
    probs: Tensor  # [n + 1] their probabilities and that of the rest

    def distance(self, row: Tensor) -> float:
        """Return the total variation from a row [V]."""
        return float((self.probs - _lumped(row.double().cpu(), self.columns)).abs().sum()) / 2


@torch.inference_mode()
def analytic(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Does each emitted token, by the rule as a black box, follow the target's row?

    The rule that the loop really calls is asked for its law with the rows that verification used; the
    drafted mass comes from the row that the draft token was really drawn from; the row that all this
    must give comes from one forward without a cache. So a wrong formula is found as well as a wrong
    row or number within the rule, a stale cache, a wrong position, or a draft that draws from another
    row than it reports. Whether the uniform numbers are uniform is left to others.

    It does not apply to a rule whose tests are not thresholds, nor to a drafter that samples without
    showing what it draws from. A point mass is its own row.
    """
    if subject.rule.name != MODIFIED_REJECTION:
        return skipped(_TEST, NoThresholds(subject.rule))
    errors: list[float] = []
    at_an_edge = 0
    for index, prompt in enumerate(prompts):
        try:
            laws, sequence = _laws(subject, prompt, subject.seed + index)
        except _RowsNotShown:
            return skipped(_TEST, RowsNotShown(subject.drafter))
        tokens = torch.tensor(sequence, device=subject.device)
        logits = subject.target.score_uncached(tokens, last=len(sequence) - len(prompt) + 1)
        rows = subject.law(logits, sequence, len(prompt))
        sures = steady(logits, subject.sampling)
        for implied, row, sure in zip(laws, rows, sures.tolist(), strict=False):
            if sure:
                errors.append(implied.distance(row))
            at_an_edge += not sure
    if at_an_edge and not errors:
        return skipped(_TEST, AllAtAnEdge(at_an_edge))
    mean, worst = (math.fsum(errors) / len(errors), max(errors)) if errors else (0.0, 0.0)
    tolerance = _TOLERANCE.get(subject.target.dtype, _COARSE_TOLERANCE)
    distance = LawDistance(len(errors), at_an_edge, mean, worst, tolerance)
    return measured(_TEST, len(errors) > 0 and mean <= tolerance, distance)


def _laws(subject: SamplerUnderTest, prompt: Sequence[int], seed: int) -> tuple[list[_Law], list[int]]:
    """The law of each emitted token as the sampler implies it; prompt with output."""
    sequence, laws = list(prompt), list[_Law]()
    drafter = subject.build_drafter(subject.sampling)
    with observed() as drawn, subject.loops(subject.target, drafter, prompt, seed) as begin:
        for loop in begin():
            laws += _loop_laws(loop, _drawn_from(loop, drawn))
            drawn.clear()
            sequence += loop.tokens
            if len(sequence) >= len(prompt) + TOKENS:
                break
    return laws, sequence


def _drawn_from(loop: DecodedLoop, shown: list[Tensor]) -> Tensor:
    """[n, V] the row that each drafted token was really drawn from."""
    draft, q = loop.draft, loop.target_probs
    assert draft is not None
    if draft.probs is None or not len(draft.tokens):
        return draft.rows(q.shape[-1], q.dtype)
    if sum(len(rows) for rows in shown) != len(draft.tokens):
        raise _RowsNotShown
    return torch.cat(shown)


def _loop_laws(loop: DecodedLoop, drawn: Tensor) -> Iterator[_Law]:
    """``drawn`` [K, V] is what the draft drew from."""
    assert loop.draft is not None
    q = loop.target_probs
    rows = [part.cpu() for part in (q, loop.draft.rows(q.shape[-1], q.dtype), drawn)]
    weight = sum(part.sum(0) for part in rows)
    assert isinstance(weight, Tensor)
    columns = weight.topk(min(_COLUMNS, len(weight))).indices.sort().values
    q, shown, really = (_lumped(part, columns) for part in rows)
    certain = loop.draft.probs is None
    draft = Draft(_column_places(loop.draft.tokens.cpu(), columns), None if certain else shown)
    rule: Accept = vars(algorithms)["accept_draft"]  # as the loop finds it, with whatever is planted there
    for j in range(loop.accepted + 1):
        yield _Law(columns, emitted_law(rule, q, draft, really, j))


def _lumped(rows: Tensor, columns: Tensor) -> Tensor:
    """[..., n + 1] the named columns of [..., V] rows, and the sum of all others."""
    others = rows.index_fill(-1, columns, 0.0).sum(-1, keepdim=True)
    return torch.cat([rows.index_select(-1, columns), others], dim=-1)


def _column_places(tokens: Tensor, columns: Tensor) -> Tensor:
    """Which column stands for each token; the last one for all others."""
    same = tokens.unsqueeze(-1) == columns
    return torch.where(same.any(-1), same.int().argmax(-1), len(columns))


@contextmanager
def observed() -> Iterator[list[Tensor]]:
    """Collect the rows that the drafter really draws from."""
    rows: list[Tensor] = []
    draw, draw_on_host = law.draw, HostRows.draw

    def noted(probs: Tensor, u: Tensor) -> Tensor:
        rows.append(probs)
        return draw(probs, u)

    def noted_on_host(self: HostRows, u: Tensor) -> Tensor:
        rows.append(self.dense())
        return draw_on_host(self, u)

    with patch.object(law, "draw", noted), patch.object(HostRows, "draw", noted_on_host):
        yield rows
