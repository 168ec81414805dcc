"""The G-test: whether counts of tokens follow a known law."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

FALSE_ALARM = 1e-4
"""How often a right sampler may fail the test."""

_MIN_EXPECTED = 5.0


def g_statistic(seen: Counter[int], law: Sequence[float]) -> tuple[float, int, int]:
    """G, its degrees of freedom, and how many tokens were seen that the law rules out.

    Cells with fewer than five expected draws are pooled; counts that leave fewer than two cells say nothing
    and have no degree of freedom.

    Args:
        law: V probabilities.
    """
    from scipy.stats import power_divergence

    outside = sum(count for token, count in seen.items() if law[token] <= 0)
    total = sum(seen.values()) - outside
    expected = {token: share * total for token, share in enumerate(law) if share}
    large = [token for token, e in expected.items() if e >= _MIN_EXPECTED]
    observed = [seen[token] for token in large]
    means = [expected[token] for token in large]
    rest = total - math.fsum(means)
    if rest >= _MIN_EXPECTED:
        observed.append(total - sum(observed))
        means.append(rest)
    if len(means) < 2:
        return 0.0, 0, outside
    scale = sum(observed) / math.fsum(means)
    g = power_divergence(observed, [m * scale for m in means], lambda_="log-likelihood").statistic
    return float(g), len(means) - 1, outside


def survival(g: float, freedom: int) -> float:
    """The probability that a right sampler's G is at least this large; 1 without a degree of freedom."""
    from scipy.stats import chi2

    return float(chi2.sf(g, freedom)) if freedom else 1.0
