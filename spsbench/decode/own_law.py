"""The distribution that is sampled, a second time: what re-derivation compares decisions with.

``spsbench.decode.sampling`` makes the rows that are decoded with. This module says the same in its own
words, in float64 and by a full sort, so that a fault there is seen here. It also says how far rounding
may move a row: a float32 forward of K+1 rows after a cache does not give the bits of one forward of
the whole text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.records import SamplingParams

_SLACK = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far rounding may move a logit, in units of the best logit's distance from the mean of its row.

Measured on 16 architectures (``docs/losslessness.md``): in float32 three times the worst that was seen, in
half precision about the worst. A wrong row moves it by far more.
"""

_FARTHEST = 100.0  # what a model all but masks must not stretch the unit


def rounding_slack(dtype: torch.dtype) -> float:
    """How far rounding may move a logit of a model of this dtype, in units of its row."""
    return _SLACK[dtype]


class Law(NamedTuple):
    """Warped rows with what rounding leaves open.

    Attributes:
        probs: [n, V] float64, each row sums to 1.
        doubtful: [n, V] tokens that rounding could move into the row's support or out of it.
        tolerance: [n] how much probability mass rounding may move from any set of tokens to the rest.
        lead: [n] the share of the best token in the mass of the two best, above 1/2: 0 for a tie.
    """

    probs: Tensor
    doubtful: Tensor
    tolerance: Tensor
    lead: Tensor


def own_law(logits: Tensor, sampling: SamplingParams, slack: float) -> Law:
    """Temperature, then top-k, then nucleus, ties kept; greedy is the largest logit.

    Args:
        logits: [n, V], any floating dtype.
        sampling: temperature, top_k, top_p, greedy.
        slack: see ``rounding_slack``.
    """
    logits = logits.double() / (1.0 if sampling.greedy else sampling.temperature)
    best = logits.max(-1, keepdim=True).values
    unit = _unit(logits, best)
    shift = slack * unit  # of a logit, up or down
    ahead = logits.topk(2, dim=-1).values.diff(dim=-1).abs().squeeze(-1)
    lead = (ahead / 2).tanh() / 2
    if sampling.greedy:
        first = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        near = logits >= best - 2 * shift
        tied = near & (near.sum(-1, keepdim=True) > 1)
        return Law(first, tied, tied.any(-1).double(), lead)
    outside, doubtful = _top_k(logits, sampling.top_k, shift)
    whole = logits.masked_fill(outside, float("-inf")).softmax(-1)
    uncut = logits.softmax(-1)
    open_mass = (uncut * doubtful).sum(-1, keepdim=True) / (uncut * ~outside).sum(-1, keepdim=True)
    # Odds move by at most exp(2 shift), a mass then by at most shift / 2; the loop adds up in its dtype.
    moved = shift + slack + open_mass
    probs, edge = _nucleus(whole, sampling.top_p, shift, moved)
    doubtful = doubtful | edge
    kept = (whole * (probs > 0)).sum(-1)
    tolerance = moved.squeeze(-1) + (whole * edge).sum(-1) / kept
    return Law(probs, doubtful, tolerance, lead)


def _unit(logits: Tensor, best: Tensor) -> Tensor:
    """[n, 1] the best logit's distance from the mean of its row; tokens at minus infinity are not asked."""
    away = (best - logits).clamp(max=_FARTHEST)
    never = logits.isneginf()
    return away.masked_fill(never, 0.0).sum(-1, keepdim=True) / (~never).sum(-1, keepdim=True)


def _top_k(logits: Tensor, top_k: int, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens are outside of the k largest and their ties; which may be on either side."""
    if not 0 < top_k < logits.shape[-1]:
        nowhere = torch.zeros_like(logits, dtype=torch.bool)
        return nowhere, nowhere
    kth = logits.sort(-1, descending=True).values[:, top_k - 1 : top_k]
    outside = logits < kth
    near = (logits - kth).abs() <= 2 * shift
    return outside, near & (near & outside).any(-1, keepdim=True)


def _nucleus(whole: Tensor, top_p: float, shift: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Rows cut to their nucleus and normalised; which tokens may be on either side of the edge."""
    if top_p >= 1.0:
        return whole / whole.sum(-1, keepdim=True), torch.zeros_like(whole, dtype=torch.bool)
    ordered, order = whole.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    last = torch.where(before < top_p, ordered, torch.inf).min(-1, keepdim=True).values
    inside = whole >= last
    unsure = ((before - top_p).abs() <= moved) & (before > 0) & (ordered > 0)
    by_mass = torch.zeros_like(inside).scatter_(-1, order, unsure)
    near = (whole.log() - last.log()).abs() <= 2 * shift
    by_rank = near & (near & ~inside).any(-1, keepdim=True)
    kept = whole.masked_fill(~inside, 0.0)
    return kept / kept.sum(-1, keepdim=True), by_mass | by_rank
