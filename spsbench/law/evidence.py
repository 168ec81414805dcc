"""What the emitted tokens of one sequence say about the distribution they came from.

Each emitted token x is compared with the target's warped row q at its position and, where something
was drafted there, with the draft's row p. All results are sums over positions, so that sequences,
shards and resumed runs add up. Nothing here knows how the token was made: a lossless sampler draws
each x from q whatever was drafted, accepted or rejected on the way.

Three kinds of sums:
* log-score: log q(x) plus the row's entropy has mean 0 under q;
* leakage: the share lambda of a mixture (1 - lambda) q + lambda p that fits the output, from the
  bounded score s(x) = (p(x) - q(x)) / (p(x) + q(x)), centred under q. Once over positions that leave a
  choice (``leak_``) and once over all (``leak_all_``): where q leaves one token, a leak would have
  brought another, so that such a position adds information and no variance;
* e-values: likelihood ratios of alternatives against q. Each is a martingale under q, so they may be
  evaluated while a run grows (alarm at 1/alpha, Ville's inequality). The alternatives are mixtures
  with the draft, as far as the target has its tokens, the law of a sampler that corrects a rejection from
  the target in place of the residual, and the target sharpened or flattened.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIXTURES = (0.02, 0.1, 0.5)
"""Shares lambda of the draft in the alternatives that the e-values bet on."""

POWERS = (0.8, 1.25)
"""Exponents of the alternatives q^power, normalised: a flatter and a sharper target."""

DRAFTED_SHARE = 0.8
"""Share of positions that the bet on a missing residual takes to be drafted: no engine drafts all."""

LENIENCE = 0.9
"""Of the bet on a rule that accepts too many: between what is hard to see and what is obvious."""

BINS = 10
"""Cells of the randomised probability-integral transform, uniform under q."""

CHUNK_ELEMENTS = 1 << 20
"""Entries of rows that are worked on at a time: those of a whole sequence would take gigabytes."""

Sums = dict[str, float]

DECIDED = "decisions"
CLOSEST = f"{DECIDED}_closest"
"""A distance among the sums: of two the smaller one counts."""


def sums_of(tokens: Tensor, q: Tensor, p: Tensor | None, v: Tensor) -> Sums:
    """Sum over the positions of one sequence.

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
    rows = rows_in_chunk(q.shape[-1])
    sums: Sums = {}
    for start in range(0, len(tokens), rows):
        part = slice(start, start + rows)
        sums = added(sums, _chunk(tokens[part], q[part], None if p is None else p[part], v[part]))
    return sums


def rows_in_chunk(vocab_size: int) -> int:
    """How many rows of V entries are worked on at a time."""
    return max(CHUNK_ELEMENTS // vocab_size, 1)


def added(some: Sums, more: Sums) -> Sums:
    """Add sums; a name that only one of them has keeps its value, and ``CLOSEST`` is a minimum."""
    sums = {name: some.get(name, 0.0) + more.get(name, 0.0) for name in some | more}
    if CLOSEST in sums:
        sums[CLOSEST] = min(each[CLOSEST] for each in (some, more) if CLOSEST in each)
    return sums


def _chunk(tokens: Tensor, q: Tensor, p: Tensor | None, v: Tensor) -> Sums:
    """The sums of a few positions: in float64 a whole sequence of a large vocabulary takes gigabytes."""
    q = q.double()
    column = tokens.unsqueeze(-1)
    own = q.gather(-1, column).squeeze(-1)
    possible = own > 0
    informative = possible & ((q > 0).sum(-1) > 1)
    about_draft = {} if p is None else _about_draft(column, q, p.double(), informative)
    q, own = q[informative], own[informative]
    return {
        "positions": float(informative.sum()),
        "impossible": float((~possible).sum()),
        **_log_score(q, own),
        **{  # likelihood ratios of q^power, normalised, against q
            f"log_e_power_{power}": float(((power - 1) * own.log() - q.pow(power).sum(-1).log()).sum())
            for power in POWERS
        },
        **_transform_counts(q, own, v[informative].double()),
        **about_draft,
    }


def _about_draft(column: Tensor, q: Tensor, p: Tensor, informative: Tensor) -> Sums:
    """Expected acceptance over every drafted row; leakage over all of them and over the informative ones."""
    drafted = p.sum(-1) > 0
    column, q, p, informative = (rows[drafted] for rows in (column, q, p, informative))
    return {
        "overlap": float(torch.minimum(p, q).sum()),
        "overlap_positions": float(drafted.sum()),
        "drafted_positions": float(informative.sum()),
        **_leakage(column, q, p, informative),
        **_bets(column[informative], q[informative], p[informative]),
    }


def _log_score(q: Tensor, own: Tensor) -> Sums:
    """Sum of log q(x) + entropy and its variance under q."""
    surprise = -torch.special.entr(q)  # q log q, with 0 log 0 = 0
    mean = surprise.sum(-1)
    square = (surprise * q.clamp_min(1e-300).log()).sum(-1)
    return {
        "log_score": float((own.log() - mean).sum()),
        "log_score_var": float((square - mean.square()).clamp_min(0).sum()),
    }


def _transform_counts(q: Tensor, own: Tensor, v: Tensor) -> Sums:
    """Of the randomised transform, in order of descending probability, in ``BINS`` cells."""
    above = torch.where(q > own.unsqueeze(-1), q, 0.0).sum(-1)
    # Tokens of equal probability share their interval: which of them it was says nothing.
    tied = torch.where(q == own.unsqueeze(-1), q, 0.0).sum(-1)
    cell = ((above + v * tied) * BINS).long().clamp(0, BINS - 1)
    counts = torch.bincount(cell, minlength=BINS).tolist()
    return {f"transform_{i}": float(count) for i, count in enumerate(counts)}


def _leakage(column: Tensor, q: Tensor, p: Tensor, informative: Tensor) -> Sums:
    """Score, information and variance of the leakage estimate, over informative rows and over all.

    Under (1 - lambda) q + lambda p the centred score has mean lambda times the information
    sum (p - q)^2 / (p + q), so that score / information estimates lambda.
    """
    score = torch.where(q + p > 0, (p - q) / (p + q).clamp_min(1e-300), 0.0)
    mean = (q * score).sum(-1)
    parts = {
        "score": score.gather(-1, column).squeeze(-1) - mean,
        "information": ((p - q) * score).sum(-1),
        "var": ((q * score.square()).sum(-1) - mean.square()).clamp_min(0),
    }
    some = {f"leak_{name}": float(part[informative].sum()) for name, part in parts.items()}
    return some | {f"leak_all_{name}": float(part.sum()) for name, part in parts.items()}


def _bets(column: Tensor, q: Tensor, p: Tensor) -> Sums:
    """Log likelihood ratios against q, given that the token is possible: mixtures, and a missing residual.

    A token outside the target's support is an alarm by itself. Without its mass a mixture's ratio has mean 1
    under q, and not less: nothing of the stake is lost on what is not counted here. Without the residual
    a token is emitted with probability min(p, q) + (1 - overlap) q.
    """
    ratio = (p / q.clamp_min(1e-300)).gather(-1, column).squeeze(-1)
    within, overlap = torch.where(q > 0, p, 0.0).sum(-1), torch.minimum(p, q).sum(-1)
    bets = {
        f"mixture_{share}": torch.log1p(share * (ratio - 1)) - torch.log1p(share * (within - 1))
        for share in MIXTURES
    }
    bets["no_residual"] = torch.log1p(DRAFTED_SHARE * (ratio.clamp_max(1.0) - overlap))
    lenient = _lenient_ratio(column, q, p)
    bets["lenience"] = torch.log1p(DRAFTED_SHARE * (lenient - 1))
    return {f"log_e_{name}": float(value.sum()) for name, value in bets.items()}


def _lenient_ratio(column: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """[n] how much more probable a token is where drafts are accepted with min(1, q / (l p)), l below 1.

    It is then emitted with probability min(p, q / l), and otherwise drawn from the residual (Leviathan et al.
    2022, appendix A.5).
    """
    kept = torch.minimum(p, q / LENIENCE)
    residual = (q - p).clamp_min(0)
    rest = (1 - kept.sum(-1)) / residual.sum(-1).clamp_min(1e-300)
    law = (kept + rest.unsqueeze(-1) * residual).gather(-1, column).squeeze(-1)
    return law / q.gather(-1, column).squeeze(-1)
