"""What the emitted tokens of one sequence tell about the distribution they came from.

Each emitted token x is compared with the target's warped row q at its position and, where something
was drafted there, with the draft's row p. All results are sums over positions, so that sequences,
shards and resumed runs add up. Nothing here knows how the token was made: a lossless sampler draws
each x from q whatever was drafted, accepted or rejected on the way.

Three kinds of sums:
* log-score: log q(x) plus the row's entropy has mean 0 under q;
* leakage: the share lambda of a mixture (1 - lambda) q + lambda p that fits the output, from the
  bounded score s(x) = (p(x) - q(x)) / (p(x) + q(x)), centred under q;
* e-values: likelihood ratios of alternatives against q. Each is a martingale under q, so they may be
  looked at while a run grows (alarm at 1/alpha, Ville's inequality). The alternatives are mixtures
  with the draft, and the target sharpened or flattened.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIXTURES = (0.02, 0.1, 0.5)
"""Shares lambda of the draft in the alternatives that the e-values bet on."""

POWERS = (0.8, 1.25)
"""Exponents of the alternatives q^power, normalised: a flatter and a sharper target."""

BINS = 10
"""Cells of the randomised probability-integral transform, uniform under q."""

_CHUNK_ELEMENTS = 1 << 22

Sums = dict[str, float]

DECIDED = "decisions"
CLOSEST = f"{DECIDED}_closest"
"""A distance among the sums: of two the smaller one counts."""


def evidence(tokens: Tensor, q: Tensor, p: Tensor | None, v: Tensor) -> Sums:
    """Sums over the positions of one sequence.

    Args:
        tokens: [n] emitted token ids.
        q: [n, V] warped target rows; q[i] is the law that tokens[i] should follow.
        p: [n, V] warped draft rows, a row of zeros where nothing was drafted; None if nowhere.
        v: [n] uniform numbers for the randomised transform, independent of the tokens' own.

    Returns:
        ``positions`` whose row has more than one possible token, the sums named in the module's
        text, and ``impossible``: emitted tokens of probability 0 under the target. With a draft also
        ``overlap``, the sum of min(target, draft) over all ``overlap_positions`` where something was
        drafted, certain rows included: on ArS text their quotient is Leviathan's alpha.
    """
    rows = max(_CHUNK_ELEMENTS // q.shape[-1], 1)
    sums: Sums = {}
    for start in range(0, len(tokens), rows):
        part = slice(start, start + rows)
        sums = added(sums, _chunk(tokens[part], q[part], None if p is None else p[part], v[part]))
    return sums


def added(some: Sums, more: Sums) -> Sums:
    """Both sums in one; a name that only one of them has keeps its value, and ``CLOSEST`` is a minimum."""
    sums = {name: some.get(name, 0.0) + more.get(name, 0.0) for name in some | more}
    if CLOSEST in sums:
        sums[CLOSEST] = min(each[CLOSEST] for each in (some, more) if CLOSEST in each)
    return sums


def _chunk(tokens: Tensor, q: Tensor, p: Tensor | None, v: Tensor) -> Sums:
    """The sums of a few positions: in float64 a whole sequence of a large vocabulary takes gigabytes."""
    q = q.double()
    acceptance = {} if p is None else _overlap(q, p.double())
    column = tokens.unsqueeze(-1)
    own = q.gather(-1, column).squeeze(-1)
    possible = own > 0
    informative = possible & ((q > 0).sum(-1) > 1)
    q, own = q[informative], own[informative]
    sums = {
        "positions": float(informative.sum()),
        "impossible": float((~possible).sum()),
        **_log_score(q, own),
        **_powers(q, own),
        **_transform(q, own, v[informative].double()),
        **acceptance,
    }
    if p is not None:
        rows = p[informative].double()
        drafted = rows.sum(-1) > 0
        sums |= _leakage(column[informative][drafted], q[drafted], rows[drafted])
    return sums


def _overlap(q: Tensor, p: Tensor) -> Sums:
    """Expected acceptance, summed over every drafted row."""
    drafted = p.sum(-1) > 0
    overlap = torch.minimum(p, q)[drafted].sum()
    return {"overlap": float(overlap), "overlap_positions": float(drafted.sum())}


def _log_score(q: Tensor, own: Tensor) -> Sums:
    """Sum of log q(x) + entropy and its variance under q."""
    surprise = -torch.special.entr(q)  # q log q, with 0 log 0 = 0
    mean = surprise.sum(-1)
    square = (surprise * q.clamp_min(1e-300).log()).sum(-1)
    return {
        "log_score": float((own.log() - mean).sum()),
        "log_score_var": float((square - mean.square()).clamp_min(0).sum()),
    }


def _powers(q: Tensor, own: Tensor) -> Sums:
    """Log likelihood ratios of q^power, normalised, against q."""
    return {
        f"log_e_power_{power}": float(((power - 1) * own.log() - q.pow(power).sum(-1).log()).sum())
        for power in POWERS
    }


def _transform(q: Tensor, own: Tensor, v: Tensor) -> Sums:
    """Counts of the randomised transform in order of descending probability, in ``BINS`` cells."""
    above = torch.where(q > own.unsqueeze(-1), q, 0.0).sum(-1)
    # Tokens of equal probability share their interval: which of them it was says nothing.
    tied = torch.where(q == own.unsqueeze(-1), q, 0.0).sum(-1)
    cell = ((above + v * tied) * BINS).long().clamp(0, BINS - 1)
    counts = torch.bincount(cell, minlength=BINS).tolist()
    return {f"transform_{i}": float(count) for i, count in enumerate(counts)}


def _leakage(column: Tensor, q: Tensor, p: Tensor) -> Sums:
    """Score, information and variance of the leakage estimate; log likelihood ratios of mixtures.

    Under (1 - lambda) q + lambda p the centred score has mean lambda times the information
    sum (p - q)^2 / (p + q), so that score / information estimates lambda.
    """
    score = torch.where(q + p > 0, (p - q) / (p + q).clamp_min(1e-300), 0.0)
    mean = (q * score).sum(-1)
    centred = score.gather(-1, column).squeeze(-1) - mean
    ratio = (p / q.clamp_min(1e-300)).gather(-1, column).squeeze(-1)
    return {
        "drafted_positions": float(len(q)),
        "leak_score": float(centred.sum()),
        "leak_information": float(((p - q) * score).sum()),
        "leak_var": float(((q * score.square()).sum(-1) - mean.square()).clamp_min(0).sum()),
    } | {f"log_e_mixture_{share}": float(torch.log1p(share * (ratio - 1)).sum()) for share in MIXTURES}
