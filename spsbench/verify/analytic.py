"""Tier 0 at real positions: the law of each emitted token, computed and not sampled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from spsbench.decode import algorithms
from spsbench.decode import sampling as law
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.rejection import Accept, Draft
from spsbench.verify.black_box import emitted_law
from spsbench.verify.finding import Finding
from spsbench.verify.subject import Subject

TOKENS = 40
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_COARSE_TOLERANCE = 2e-2


# More tokens than this become one, "the rest", before a rule is asked hundreds of times.
_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class _Law:
    """What the sampler implies for one emitted token.

    Attributes:
        columns: [n] tokens that are looked at one by one.
        probs: [n + 1] their probabilities and that of the rest.
    """

    columns: Tensor
    probs: Tensor

    def distance(self, row: Tensor) -> float:
        """Total variation from a row [V]."""
        return float((self.probs - _lumped(row.double().cpu(), self.columns)).abs().sum()) / 2


@torch.inference_mode()
def analytic(subject: Subject, prompts: Sequence[Sequence[int]]) -> Finding:
    """Does each emitted token, by the rule as a black box, follow the target's row?

    The rule that the loop really calls is asked for its law with the rows that verification used; the
    drafted mass comes from the row that the draft token was really drawn from; the row that all this
    must give comes from one forward without a cache. So a wrong formula is found as well as a wrong
    row or number within the rule, a stale cache, a wrong position, or a draft that draws from another
    row than it tells. Whether the uniform numbers are uniform is left to others.
    """
    errors: list[float] = []
    skipped = 0
    for index, prompt in enumerate(prompts):
        laws, sequence = _laws(subject, prompt, subject.seed + index)
        rows, steady = subject.true_rows(sequence, len(prompt))
        for implied, row, sure in zip(laws, rows, steady.tolist(), strict=False):
            errors += [implied.distance(row)] if sure else []
            skipped += not sure
    mean, worst = (math.fsum(errors) / len(errors), max(errors)) if errors else (0.0, 0.0)
    tolerance = _TOLERANCE.get(subject.target.model.dtype, _COARSE_TOLERANCE)
    return Finding(
        "analytic",
        len(errors) > 0 and mean <= tolerance,
        f"mean total variation {mean:.1e}, worst {worst:.1e}, over {len(errors)} positions",
        f"a mean total variation above {tolerance:g} at the positions visited",
        {
            "positions": len(errors),
            "skipped_at_an_edge": skipped,
            "mean": mean,
            "worst": worst,
            "limit": tolerance,
        },
    )


def _laws(subject: Subject, prompt: Sequence[int], seed: int) -> tuple[list[_Law], list[int]]:
    """The law of each emitted token as the sampler implies it, and prompt with output."""
    sequence, laws = list(prompt), list[_Law]()
    with observed() as drawn, subject.loops(subject.target, subject.draft, prompt, seed) as begin:
        for loop in begin():
            laws += _loop_laws(loop, torch.cat(drawn))
            drawn.clear()
            sequence += loop.tokens
            if len(sequence) >= len(prompt) + TOKENS:
                break
    return laws, sequence


def _loop_laws(loop: DecodedLoop, drawn: Tensor) -> Iterator[_Law]:
    """The laws of a loop's tokens; ``drawn`` [K, V] is what the draft drew from."""
    assert loop.draft is not None
    q = loop.target_probs
    rows = [part.cpu() for part in (q, loop.draft.rows(q.shape[-1], q.dtype), drawn)]
    weight = sum(part.sum(0) for part in rows)
    assert isinstance(weight, Tensor)
    columns = weight.topk(min(_COLUMNS, len(weight))).indices.sort().values
    q, told, really = (_lumped(part, columns) for part in rows)
    draft = Draft(_places(loop.draft.tokens.cpu(), columns), told)
    rule: Accept = vars(algorithms)["accept_draft"]  # as the loop finds it, with whatever is planted there
    for j in range(loop.accepted + 1):
        yield _Law(columns, emitted_law(rule, q, draft, really, j))


def _lumped(rows: Tensor, columns: Tensor) -> Tensor:
    """[..., n + 1] the named columns of [..., V] rows, and the sum of all others."""
    others = rows.index_fill(-1, columns, 0.0).sum(-1, keepdim=True)
    return torch.cat([rows.index_select(-1, columns), others], dim=-1)


def _places(tokens: Tensor, columns: Tensor) -> Tensor:
    """Which column stands for each token; the last one for the rest."""
    same = tokens.unsqueeze(-1) == columns
    return torch.where(same.any(-1), same.int().argmax(-1), len(columns))


@contextmanager
def observed() -> Iterator[list[Tensor]]:
    """Collect the rows that the drafter really draws from."""
    rows: list[Tensor] = []
    draw = law.draw

    def noted(probs: Tensor, u: Tensor) -> Tensor:
        rows.append(probs)
        return draw(probs, u)

    with patch.object(law, "draw", noted):
        yield rows
