"""What sums of evidence say: leakage, log-score, integral transform, e-values.

The sums are those of ``spsbench.law.evidence``, one dictionary a sequence. All samples of a prompt
are added up first: prompts are independent, sequences of one prompt need not be.

Leakage is the headline, a number with a bound that a reader can weigh. The tests behind it are of
two kinds. The p-values and z-scores hold for a number of prompts fixed beforehand. The e-values may
be evaluated while a run grows, and after any resume: under a lossless sampler their average ever
exceeds 1/a with a probability of at most a (Ville 1939; Ramdas et al. 2023, "Game-theoretic
statistics and safe anytime-valid inference").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.errors import SpsbenchError
from spsbench.base.records import BEAM_CLOSEST, BEAM_LOG_PROB, RESCORED
from spsbench.stats.bootstrap import quantiles
from spsbench.stats.messages.evidence import SumsNotFinite
from spsbench.stats.speedup import conversation_of
from spsbench.store.summary_types import Leakage, LogScore, TransformTest

if TYPE_CHECKING:
    import pandas as pd


PROMPTS_FOR_VARIANCE = 20
"""From so many prompts on, the variance of the log-score is that between prompts; below, the model's."""

FEWEST_IN_CELLS = 50
"""Positions for the chi-square test: five expected in each of ten cells."""

SLOPES = (0.01, 0.03, 0.1, 0.3)
"""Stakes of the bets on the direction of the leakage score, for deviations of any size."""

DECIDED = "decisions"
"""What the names of re-derived decisions begin with: counts, and a distance that does not add up."""


def per_prompt(samples: pd.DataFrame, prefix: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the sequences that carry one kind of evidence, and their sums added up per prompt.

    Those with sums that are ``not_finite`` are not among them.
    """
    carried, table = _carried(samples, f"{prefix}positions", _is_of_kind(prefix))
    sums = table.rename(columns=lambda name: name.removeprefix(prefix)) if prefix else table
    # Sequences from before sums over all positions were kept give those over positions with a choice.
    for name in ("score", "information", "var"):
        chosen, every = f"leak_{name}", f"leak_all_{name}"
        if chosen in sums and (every not in sums or sums[every].hasnans):
            sums[every] = sums.get(every, sums[chosen]).fillna(sums[chosen])
    return carried, sums.fillna(0.0).groupby(conversation_of(carried), sort=False).sum()


def decisions(samples: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the sequences whose decisions were derived again, and the sums of the results.

    Those with sums that are ``not_finite`` are not among them.
    """
    carried, sums_of = _carried(samples, DECIDED, _is_decision)
    if carried.empty:
        return carried, {}
    closest = f"{DECIDED}_closest"
    sums = {str(name): float(sums_of[name].sum()) for name in sums_of if name != closest}
    return carried, sums | {closest: float(_column(sums_of, closest).min(initial=1.0))}


def not_finite(samples: pd.DataFrame, prefix: str | None = "") -> list[SumsNotFinite]:
    """Return the reason for an alarm where sums are NaN or infinite: of them nothing can be said.

    They are those of one kind of evidence, with None those of the decisions. To leave them out without a word
    would hide a fault of our own arithmetic, or of who wrote the run.
    """
    is_own = _is_decision if prefix is None else _is_of_kind(prefix)
    values = samples.get("losslessness", ())
    unsound = [_own(value, is_own) for value in values if isinstance(value, dict) and not _are_finite(value)]
    wrong = [[name for name, number in sums.items() if not math.isfinite(number)] for sums in unsound]
    if not any(wrong):
        return []
    names = sorted({name for each in wrong for name in each})
    return [SumsNotFinite(sum(map(bool, wrong)), len(samples), tuple(names))]


@cache
def _is_of_kind(prefix: str) -> Callable[[str], bool]:
    """Names of the other kind begin with ``RESCORED``."""
    other = () if prefix else (RESCORED, BEAM_LOG_PROB, BEAM_CLOSEST)
    # Asked of the same hundred names for every sequence.
    return cache(lambda name: name.startswith(prefix) and not name.startswith((DECIDED, *other)))


@cache
def _is_decision(name: str) -> bool:
    return name.startswith(DECIDED)


def _own(sums: dict[str, Any], is_own: Callable[[str], bool]) -> dict[str, float]:
    return {name: number for name, number in sums.items() if number is not None and is_own(name)}


def _are_finite(sums: dict[str, Any]) -> bool:
    """False also where their sum alone is not."""
    return math.isfinite(sum(filter(None, sums.values())))


def _carried(
    samples: pd.DataFrame, needed: str, is_own: Callable[[str], bool]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The sequences that have the sum ``needed`` and finite ones alone, and these as columns."""
    import pandas as pd

    values = samples["losslessness"] if "losslessness" in samples else [None] * len(samples)
    sums = [_own(value, is_own) if isinstance(value, dict) else {} for value in values]
    there = np.array([needed in each and _are_finite(each) for each in sums], dtype=bool)
    carried = samples if there.all() else samples[there]
    rows = [each for each, has in zip(sums, there, strict=True) if has]
    return carried, pd.DataFrame(rows, index=carried.index, dtype=np.float64)


def leakage(prompts: pd.DataFrame, *, everywhere: bool = False, level: float = 0.05) -> Leakage | None:
    """Return the share of the draft, in a mixture with the target, that fits the output best.

    Args:
        everywhere: take the positions that leave one token, too. A token of probability 0 then counts as
            leaked, which only exact rows can distinguish from rounding.
    """
    from scipy.special import ndtri

    kind = "leak_all" if everywhere else "leak"
    if f"{kind}_information" not in prompts:
        return None
    prompts = prompts[prompts[f"{kind}_information"] > 0]
    score = _column(prompts, f"{kind}_score")
    information = _column(prompts, f"{kind}_information")
    if not len(prompts):
        return None
    total = float(information.sum())
    estimate = float(score.sum()) / total
    variance = max(0.0, float(_column(prompts, f"{kind}_var").sum()))
    n = len(prompts)
    rests = score - estimate * information
    model = math.sqrt(variance) / total
    between = math.sqrt(n / (n - 1) * float(np.square(rests).sum())) / total if n > 1 else 0.0

    def reach(share: float) -> tuple[float, float, float]:
        """Return the interval's reach below and above the estimate, and the highest leakage that fits."""
        z = float(ndtri(share))
        sides = quantiles(rests, share) if n > 1 else (z, z)
        below, above = (max(z * model, side * between) for side in sides)
        return below, above, _highest_that_fits(float(score.sum()), total, variance, z)

    _, above, fits = reach(1 - level)
    down, up, most = reach(0.975)
    # A negative estimate is chance (or an alarm, elsewhere): it may not buy a bound that so few
    # positions could not give around 0.
    return {
        "estimate": estimate,
        "low": estimate - down,
        "high": max(estimate + up, most),
        "bound": min(1.0, max(max(estimate, 0.0) + above, fits)),
        "standard_error": max(model, between),
    }


def _highest_that_fits(score: float, information: float, variance: float, z: float) -> float:
    """The largest leakage that a score test with quantile z does not reject.

    Where the draft's own tokens are rare under the target, a short text holds none of them and looks
    certain: the variance under no leakage is then too small. Under leakage L the variance is at most
    variance + 2 L (information - variance), which gives a quadratic in L (Wilson's way with a share).
    """
    slope = z * z * (information - variance)
    middle = score * information + slope
    root = middle * middle - information**2 * (score * score - z * z * variance)
    return (middle + math.sqrt(root)) / information**2 if root > 0 else -math.inf


def log_score(prompts: pd.DataFrame) -> LogScore | None:
    """Return z and two-sided p-value of the log-score: 0 under the target, above 0 for a sharper sampler."""
    from scipy import stats

    scores = _column(prompts, "log_score")
    if len(scores) >= PROMPTS_FOR_VARIANCE and np.ptp(scores) > 0:
        result = stats.ttest_1samp(scores, 0.0)
        return {"z": float(result.statistic), "p_value": float(result.pvalue), "variance": "between prompts"}
    variance = float(_column(prompts, "log_score_var").sum())
    if not variance > 0:
        return None
    z = float(scores.sum()) / math.sqrt(variance)
    return {"z": z, "p_value": float(2 * stats.norm.sf(abs(z))), "variance": "of the model"}


def transform(prompts: pd.DataFrame) -> TransformTest | None:
    """Return a chi-square test of the integral transform's cells; None with too few positions."""
    from scipy import stats

    cells = _cells(prompts)
    if cells.sum() < FEWEST_IN_CELLS:
        return None
    result = stats.chisquare(cells)
    return {"chi_square": float(result.statistic), "p_value": float(result.pvalue), "cells": cells.tolist()}


def e_values(prompts: pd.DataFrame) -> dict[str, float]:
    """Return log10 of the e-value against each alternative, and of their mean under ``mean``.

    The alternatives: mixtures with the draft, and the target flattened or sharpened (likelihood
    ratios, summed per sequence); ``draft_shunned`` and ``draft_favoured``, which catch a shift along
    the leakage score of any shape; ``transform``, which catches whatever reorders ranks.
    """
    from scipy.special import logsumexp

    names = [name for name in prompts if str(name).startswith("log_e_")]
    logs = {str(name).removeprefix("log_e_"): float(_column(prompts, str(name)).sum()) for name in names}
    if "leak_score" in prompts:
        score, variance = (float(_column(prompts, name).sum()) for name in ("leak_score", "leak_var"))
        logs |= {
            "draft_favoured": _log_mean_e_value(score, variance),
            "draft_shunned": _log_mean_e_value(-score, variance),
        }
    logs["transform"] = _log_bayes_factor(_cells(prompts))
    logs["mean"] = float(logsumexp(list(logs.values()))) - math.log(len(logs))
    return {name: value / math.log(10.0) for name, value in logs.items()}


def _log_mean_e_value(score: float, variance: float) -> float:
    """Over the stakes of ``directions``."""
    from scipy.special import logsumexp

    return float(logsumexp(directions(score, variance))) - math.log(len(SLOPES))


def directions(score: float, variance: float) -> Floats:
    """Return a log e-value for each of ``SLOPES`` against a sum of bounded martingale differences of mean 0.

    exp(s S - (exp(sb) - 1 - sb) / b^2 V) is a supermartingale for every stake s, with V the summed
    conditional variances and b the bound (Freedman 1975).
    """
    stakes, b = np.asarray(SLOPES), 2.0  # the centred score: each part within [-1, 1]
    return np.asarray(stakes * score - (np.expm1(stakes * b) - stakes * b) / b**2 * variance)


def _log_bayes_factor(cells: Floats) -> float:
    """Of cell probabilities from a flat Dirichlet against uniform cells.

    The probability of the observed sequence of cells depends on its counts alone, so that the sums
    suffice for an e-value.
    """
    from scipy.special import gammaln

    n, bins = float(cells.sum()), len(cells)
    return float(gammaln(bins) - gammaln(bins + n) + gammaln(cells + 1.0).sum() + n * math.log(bins))


def _cells(prompts: pd.DataFrame) -> Floats:
    names = sorted(
        (str(name) for name in prompts if str(name).startswith("transform_")),
        key=lambda name: int(name.rpartition("_")[2]),
    )
    return np.asarray(prompts[names].sum().to_numpy(dtype=np.float64))


def _column(prompts: pd.DataFrame, name: str) -> Floats:
    if name not in prompts:
        raise SpsbenchError(f"the evidence of losslessness lacks {name}: the run is damaged.")
    return np.asarray(prompts[name].to_numpy(dtype=np.float64))


FALSE_ALARM = 1e-4
"""How often a right sampler may fail the G-test."""


def g_statistic(seen: Counter[int], law: Sequence[float]) -> tuple[float, int, int]:
    """Compute G of counts of tokens, its degrees of freedom, and how many tokens the law rules out.

    Cells with fewer than five expected draws are pooled; counts that leave fewer than two cells say nothing
    and have no degree of freedom.

    Args:
        law: V probabilities.
    """
    from scipy.stats import power_divergence

    outside = sum(count for token, count in seen.items() if law[token] <= 0)
    total = sum(seen.values()) - outside
    expected = {token: share * total for token, share in enumerate(law) if share}
    large = [token for token, e in expected.items() if e >= 5.0]
    observed = [seen[token] for token in large]
    means = [expected[token] for token in large]
    rest = total - math.fsum(means)
    if rest >= 5.0:
        observed.append(total - sum(observed))
        means.append(rest)
    if len(means) < 2:
        return 0.0, 0, outside
    scale = sum(observed) / math.fsum(means)
    g = power_divergence(observed, [m * scale for m in means], lambda_="log-likelihood").statistic
    return float(g), len(means) - 1, outside


def survival(g: float, freedom: int) -> float:
    """Compute the probability that a right sampler's G is this large; 1 without a degree of freedom."""
    from scipy.stats import chi2

    return float(chi2.sf(g, freedom)) if freedom else 1.0
