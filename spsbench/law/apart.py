"""How far the rows that a loop had lie from those of an independent forward of the finished text.

The decisions follow from a loop's own rows; this says whether these were the target's. A wrong position, a
stale cache or a wrong row moves them by far more than rounding does. In float32 rounding has a bound, so that
a single row can be contradicted. In 16 bits it has none worth the name: there its size is measured, by the
independent forward itself, which reads the same text again in blocks as the loops did
(``CausalLM.score_in_blocks``), and the loops' rows are held against that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.law.evidence import rows_in_chunk
from spsbench.law.rederive import own_law

_SUMMED = 1e-6  # what sums over a float32 row may be off by


class Apart(NamedTuple):
    """Of n rows how far they lie from the law of an independent forward.

    Attributes:
        distance: [n] float64. Of sampled rows the total variation, 0 to 1. Of greedy ones the probability by
            which the best token exceeds the one that the loop had, at temperature 1: 0 for the same token.
        beyond: [n] whether it is more than the slack explains.
    """

    distance: Tensor
    beyond: Tensor


def rows_apart(rows: Tensor, logits: Tensor, sampling: SamplingParams, slack: float) -> Apart:
    """Hold warped rows against the logits of an independent forward at the same positions.

    Args:
        rows: [n, V] as a loop had them.
        logits: [n, V] after penalties, bans and a grammar.
        sampling: temperature and cuts.
        slack: see ``rederive.rounding_slack``.
    """
    size = rows_in_chunk(logits.shape[-1])
    parts = [
        _apart(rows[start : start + size].to(logits.device), logits[start : start + size], sampling, slack)
        for start in range(0, len(rows), size)
    ]
    if not parts:
        nothing = torch.empty(0, dtype=torch.float64)
        return Apart(nothing, nothing.bool())
    return Apart(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _apart(rows: Tensor, logits: Tensor, sampling: SamplingParams, slack: float) -> Apart:
    law = own_law(logits, sampling, slack)
    if sampling.greedy:
        token, probs = rows.argmax(-1, keepdim=True), logits.double().softmax(-1)
        distance = (probs.max(-1, keepdim=True).values - probs.gather(-1, token)).squeeze(-1)
        near = (law.probs > 0) | law.doubtful
        return Apart(distance, ~near.gather(-1, token).squeeze(-1))
    own = rows.double()
    moved = (own / own.sum(-1, keepdim=True) - law.probs).abs() / 2
    known = moved.masked_fill(law.doubtful, 0.0).sum(-1)
    # A distance that is NaN, by a fault of either forward, is not within anything.
    return Apart(moved.sum(-1), ~(known <= law.tolerance + _SUMMED))


def shifts(logits: Tensor, other: Tensor) -> Tensor:
    """[n] how far two readings of a row differ in a logit at most, in units of the row.

    Those of ``rederive.rounding_slack``: the best logit's distance from the mean.
    """
    size = rows_in_chunk(logits.shape[-1])
    pairs = zip(torch.split(logits, size), torch.split(other, size), strict=True)
    return torch.cat([_shifts(one.double(), two.double()) for one, two in pairs])


def _shifts(logits: Tensor, other: Tensor) -> Tensor:
    never = logits.isneginf() & other.isneginf()
    moved = (logits - other).abs().masked_fill(never, 0.0).amax(-1)
    kept = ~other.isneginf()
    mean = other.masked_fill(~kept, 0.0).sum(-1) / kept.sum(-1)
    return moved / (other.amax(-1) - mean).clamp_min(torch.finfo(torch.float32).tiny)
