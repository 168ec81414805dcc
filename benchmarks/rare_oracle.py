"""What any test could find of an engine that goes wrong rarely.

An oracle knows what is wrong, its law and its share. Its bet on a request is the likelihood ratio of the law
with so many wrong requests to the target's; the product of these grows faster than that of any other bet. Of
all tests with so many false alarms, the one that finds most asks whether the product over all requests is
large (Neyman and Pearson), and whoever looks on the way finds no more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.int64]


def from_each_token(wrong: Floats, right: Floats) -> Floats:
    """[n] logs of likelihood ratios of a text's rest from each token on.

    Args:
        wrong, right: [n] probabilities of the text's tokens in a request gone wrong, and in a right one.
    """
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(wrong) - np.log(right))[::-1].cumsum()[::-1])


def parted(rests: Floats, first: int, tokens: float) -> float:
    """Log of the likelihood ratio of a text that goes wrong at some token, all of a target's being as likely.

    Args:
        rests: [n] logs of the ratios of what follows.
        first: token of a text from which on it may go wrong.
        tokens: of a right text at which it may, on average.
    """
    return float(np.logaddexp.reduce(rests[first:], initial=-np.inf)) - math.log(tokens)


def replaced(rows: Floats, ids: Ints, share: float) -> tuple[float, float]:
    """Log of the likelihood ratio of a text some of whose tokens are the second best, and what is expected.

    Args:
        rows: [n, V] of the target.
        ids: [n] the text.
        share: of tokens that are replaced.
    """
    second = np.argpartition(rows, -2, axis=-1)[:, -2]
    chance = rows[np.arange(len(ids)), second]
    with np.errstate(divide="ignore", invalid="ignore"):
        hit, missed = np.log(1 - share + share / chance), math.log1p(-share)
        often = share + (1 - share) * chance
        expected = often * hit + (1 - often) * missed
    return float(np.where(ids == second, hit, missed).sum()), float(expected.sum())


def some(ratios: Floats, share: float) -> Floats:
    """Logs of the likelihood ratios of requests of which a share is wrong, by those of wrong ones."""
    return np.asarray(np.logaddexp(math.log1p(-share), math.log(share) + ratios))


def most_found(totals: Floats, level: float) -> float:
    """Share of audits of a wrong engine that the most powerful test finds, randomised if need be.

    A right engine's totals follow from a wrong one's: one of log ratio L is exp(-L) times as frequent there.

    Args:
        totals: [audits] logs of the likelihood ratios of wrong engines' audits.
        level: share of right engines' audits that the test accuses.
    """
    ordered = np.sort(totals)[::-1]
    accused = np.exp(-ordered).cumsum() / len(ordered)
    return float((accused <= level).mean())
