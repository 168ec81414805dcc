"""The papers' predictions: tokens per loop, and speedup against K.

Letters of Leviathan et al. 2022 in the house's words: ``alpha`` is the probability that one draft
token is accepted, ``k`` the lookahead (their gamma), ``c`` the time of one draft run over the time
of one target run. Their formulae take the tests of a loop as independent with the same alpha; a
measurement that differs is a finding, not an error. Chen et al. 2023 measure r', the emitted
tokens per loop as a share of K+1, and need no such assumption.

K below 0, alpha outside [0, 1] and a cost below 0 or infinite are refused with a ``UsageError``.
"""

from __future__ import annotations

from math import isfinite

from spsbench.base.errors import UsageError


def _check(*, k: int = 0, alpha: float = 0.0, c: float = 0.0) -> None:
    if k < 0:
        raise UsageError(
            f"K must be 0 or above, got {k}.", flag="--k", remedy="Give a whole number from 0 on."
        )
    if not 0 <= alpha <= 1:
        why = f"alpha must be between 0 and 1, got {alpha}."
        raise UsageError(why, flag="--alpha", remedy="Give a number between 0 and 1.")
    if not (c >= 0 and isfinite(c)):
        raise UsageError(
            f"c must be finite and at least 0, got {c}.",
            flag="--c",
            remedy="Give the time of one draft run over the time of one target run, from 0 on.",
        )


def expected_tokens(alpha: float, k: int) -> float:
    """Compute the tokens one loop emits on average: (1 - alpha^(K+1)) / (1 - alpha); K+1 at alpha = 1.

    Leviathan et al. 2022, equation 1. Summed as 1 + alpha + ... + alpha^K, which needs no case for
    alpha = 1 and loses no digits near it.
    """
    _check(k=k, alpha=alpha)
    total = 0.0
    for _ in range(k + 1):
        total = 1.0 + alpha * total
    return total


def walltime_factor(alpha: float, c: float, k: int) -> float:
    """Return the speedup over ArS if verifying K+1 tokens costs as much as one target step.

    Leviathan et al. 2022, Theorem 3.8: expected tokens / (K c + 1).
    """
    _check(k=k, alpha=alpha, c=c)
    return expected_tokens(alpha, k) / (k * c + 1.0)


def operations_factor(alpha: float, c_operations: float, k: int) -> float:
    """Return the arithmetic per emitted token, as a multiple of what ArS needs: the price of the speed.

    Leviathan et al. 2022, Theorem 3.11: (1 - alpha)(K c^ + K + 1) / (1 - alpha^(K+1)).

    Args:
        alpha: acceptance probability.
        c_operations: operations of one draft run per token over those of one target run (c^).
        k: lookahead.
    """
    _check(k=k, alpha=alpha, c=c_operations)
    return loop_operations(c_operations, k) / expected_tokens(alpha, k)


def loop_operations(c_operations: float, k: int) -> float:
    """Count a loop's operations in target runs over a token: K c^ + K + 1, the numerator of Theorem 3.11."""
    _check(k=k, c=c_operations)
    return k * c_operations + k + 1.0


def minimum_gain(alpha: float, c: float) -> float:
    """Return what the best K gains at least: (1 + alpha) / (1 + c) if alpha > c, else 1 (no K gains).

    Leviathan et al. 2022, Corollary 3.9; the bound is the walltime factor at K = 1.
    """
    _check(alpha=alpha, c=c)
    return (1.0 + alpha) / (1.0 + c) if alpha > c else 1.0


def chen_speedup(r_prime: float, k: int, target_s: float, draft_s: float) -> float:
    """Speedup from the measured r' and two step times: r'(K+1) t_target / (K t_draft + t_target).

    After Chen et al. 2023, Figure 1: no independence is assumed, only that verifying K+1 tokens
    takes one target step and that nothing else costs time.

    Args:
        r_prime: emitted tokens per loop over K+1, between 1/(K+1) and 1.
        k: lookahead.
        target_s: seconds of one target step; any unit, the same as for ``draft_s``.
        draft_s: seconds of one draft step.

    Raises:
        UsageError: K below 0, r' outside (0, 1], or times that are not positive numbers.
    """
    _check(k=k)
    if not 0.0 < r_prime <= 1.0:
        remedy = "Give a number above 0, at most 1."
        raise UsageError(f"r' must be above 0 and at most 1, got {r_prime}.", remedy=remedy)
    if not (target_s > 0.0 and draft_s >= 0.0):
        why = f"the times of a target and a draft step must be positive, got {target_s} and {draft_s}."
        raise UsageError(why, remedy="Give positive numbers in the same unit.")
    return r_prime * (k + 1) * target_s / (k * draft_s + target_s)


def alpha_iid(mean_length: float, k: int) -> float:
    """Return the alpha whose expected tokens per loop are ``mean_length``: inverse of ``expected_tokens``.

    Describes a measured length by one number; never feed it to a prediction, which would only
    return the length it was solved from. By bisection: the sum is strictly increasing in alpha.

    Args:
        mean_length: accepted + 1 tokens per loop, between 1 and K+1.
        k: lookahead, at least 1 (at K = 0 every alpha gives length 1).

    Raises:
        UsageError: K below 1 or a length outside [1, K+1].
    """
    if k < 1:
        raise UsageError(f"K = {k} says nothing about alpha.", flag="--k", remedy="Give a K of at least 1.")
    if not 1.0 - 1e-9 <= mean_length <= k + 1.0 + 1e-9:
        remedy = f"It lies between 1 and K+1 = {k + 1}."
        raise UsageError(f"a mean length of {mean_length} does not fit K = {k}.", remedy=remedy)
    if mean_length >= k + 1.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_tokens(middle, k) < mean_length else (low, middle)
    return low if mean_length > 1.0 else 0.0


def union_share(count: int, per_token: int, rows: int) -> float:
    """Expected share of a layer's experts that at least one of the rows activates.

    As if routers chose evenly and rows independently: 1 - (1 - per_token/count)^rows; 8 experts, 2 a
    token, 5 rows: 6.1 of 8. Text routes less evenly, so that the true union is smaller.
    """
    return float(1.0 - (1.0 - min(per_token / count, 1.0)) ** rows)
