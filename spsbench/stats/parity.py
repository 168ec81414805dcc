"""The quality of each arm's outputs, and whether SpS and ArS are equally good.

"No significant difference" is not parity: a small run never finds one. The margin is a share of what
is at stake, the gap between the target and the draft alone; the verdict is *equivalent* when two
one-sided tests (Schuirmann 1987) put the difference within it, *different* when the 95% interval of
the difference leaves out 0, else *inconclusive*, with the difference that the run could have seen
and the prompts that it would take. A lossless sampler is called different in at most one of twenty
runs, by the interval's own odds. Prompts are the unit: repeats of a prompt are averaged, samples of
a HumanEval problem are its cluster.

A metric that is not a mean over outputs (BLEU) is compared as a figure of the corpus: the interval leaves out
prompts with the counts of both arms together, and the tests take the jackknife's pseudo-values for scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.messages import Message
from spsbench.stats.anytime import EXPECTABLE
from spsbench.stats.bootstrap import finite, pooled_interval, pseudo_values, ratio_of_sums
from spsbench.stats.corpus import CommonFigures, CorpusMetric, by_prompt, score_table
from spsbench.stats.messages import evidence as reasons_of
from spsbench.stats.speedup import conversation_of, finished
from spsbench.store.summary_types import (
    Advantage,
    ArmRow,
    PairedScores,
    Parity,
    ParityComparison,
    Solved,
    TargetOverDraft,
)

if TYPE_CHECKING:
    import pandas as pd

Units: TypeAlias = "pd.Series[Any] | pd.DataFrame"
"""Of each prompt by example_id: its mean score, or what is summed for the figure of a corpus."""

PASSED = "passed"


def metrics(
    samples: pd.DataFrame, corpora: Mapping[str, CorpusMetric] | None = None, arm: str | None = None
) -> dict[str, float | None]:
    """Return the metrics of one arm's finished samples.

    Every score key becomes its plain mean over sequences. The key ``passed`` (1 if a program passed
    its tests, else 0) becomes pass@1, pass@10 and pass@100 instead; None where a problem has
    fewer samples than k. What is counted for the figure of a corpus becomes that figure.
    """
    from spsbench.tasks.metrics.builtin import pass_at_k

    scores = score_table(samples)
    result: dict[str, float | None] = {}
    for name in _metric_names(scores, corpora or {}):
        if corpora and name in corpora:
            result[name] = corpora[name].figure(samples, scores, arm)
        elif name == PASSED:
            per_problem = scores[name].dropna().astype("float64").groupby(samples["example_id"])
            total, correct = ([int(n) for n in column] for column in (per_problem.size(), per_problem.sum()))
            result.update(pass_at_k(total, correct) if total else {})
        else:
            result[name] = finite(scores[name].astype("float64").mean())
    return result


def _metric_names(scores: pd.DataFrame, corpora: Mapping[str, CorpusMetric]) -> list[str]:
    """Several columns may belong to one."""
    owner = {column: name for name, metric in corpora.items() for column in metric.columns}
    return list(dict.fromkeys(owner.get(str(column), str(column)) for column in scores.columns))


SHARE_OF_GAP = 0.05
"""The margin, as a share of the target-draft gap."""

DEFAULT_MARGINS = {PASSED: 0.02}
DEFAULT_MARGIN = 0.01
"""Absolute margins where there is no gap to take a share of: pass@1, and everything else (ROUGE)."""

LEVEL = 0.05
POWER = 0.9

EQUIVALENT: Final = "equivalent"
DIFFERENT: Final = "different"
INCONCLUSIVE: Final = "inconclusive"
_PREFERRED = ("rouge2", PASSED, "exact_match")
_ROUNDING = 1e-12


Value = Callable[[Floats], Floats]
"""The figure of a corpus from sums; see ``metrics.kind.Sums``."""


def parity(
    by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    headline: str | None = None,
    kinds: Mapping[str, Any] | None = None,
    corpora: Mapping[str, CorpusMetric] | None = None,
) -> Parity | None:
    """Compare every SpS arm with the ArS arm of its sampling on the headline metric."""
    done = {arm: finished(samples) for arm, samples in by_arm.items()}
    tables = {arm: score_table(samples) for arm, samples in done.items()}
    column = _score_column(tables, headline, corpora or {})
    if column is None:
        return None
    about = (kinds or {}).get(column, {})
    default = about.get("margin", DEFAULT_MARGINS.get(column))
    better = about.get("higher_is_better", True)
    corpus = (corpora or {}).get(column)
    value = None if corpus is None else corpus.value
    recorded = corpus.on_common(done) if corpus is not None and value is None else None
    # Why recorded figures have no interval.
    summed = corpus is not None and corpus.summed
    why_not = reasons_of.METRIC_FILE_NOT_RUN if summed else reasons_of.ONE_FIGURE
    units: dict[str, Units] = {
        arm: per_prompt(done[arm], table, column)
        if corpus is None
        else by_prompt(done[arm], corpus.counted(table))
        for arm, table in tables.items()
    }
    comparisons: list[ParityComparison] = []
    advantages: list[TargetOverDraft] = []
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        group = [row["arm"] for row in rows if row["sampling"] == sampling and len(units.get(row["arm"], ()))]
        method = {row["arm"]: row["method"] for row in rows}
        ars, draft = (next((arm for arm in group if method[arm] == name), None) for name in ("ars", "draft"))
        if ars is None:
            continue
        if draft is not None:
            over = (
                advantage(units[ars], units[draft], value)
                if recorded is None
                else _advantage_of_record(recorded, ars, draft, why_not)
            )
            advantages.append({"sampling": sampling, **over})
        for arm in (arm for arm in group if method[arm] == "sps"):
            solved = _mcnemar(units[ars], units[arm]) if column == PASSED else None
            if recorded is None:
                alone = None if draft is None else units[draft]
                scores = compare(units[ars], units[arm], alone, default, higher_is_better=better, value=value)
            else:
                figures = [recorded.by_arm.get(name or "") for name in (ars, arm, draft)]
                scores = _compare_of_record(recorded.prompts, figures, default, better, why_not)
            comparisons.append(
                {"arm": arm, "baseline": ars, "sampling": sampling, **scores, "solved": solved}
            )
    metric = "pass@1" if column == PASSED else column
    return {"metric": metric, "comparisons": comparisons, "target_over_draft": advantages}


def _advantage_of_record(recorded: CommonFigures, ars: str, draft: str, why_not: str) -> Advantage:
    target, alone = (recorded.by_arm.get(arm) for arm in (ars, draft))
    reason = reasons_of.FIGURE_NOT_RECORDED if None in (target, alone) else why_not
    return _no_ratio(recorded.prompts, target, alone, reasons_of.DRAFT_SCORES_ZERO if alone == 0 else reason)


def _compare_of_record(
    prompts: int, figures: Sequence[float | None], default: float | None, better: bool, why_not: str
) -> PairedScores:
    """Compare figures that cannot be computed here, of the prompts of all arms; they cannot be resampled."""
    first, second, alone = figures
    gap = None if first is None or alone is None else (first - alone) * (1.0 if better else -1.0)
    scores = _untested_scores(prompts, first, second, gap, default)
    scores["difference"] = None if first is None or second is None else second - first
    scores["reason"] = reasons_of.FIGURE_NOT_RECORDED if scores["difference"] is None else why_not
    return scores


def compare(
    ars: Units,
    sps: Units,
    draft: Units | None,
    default: float | None = None,
    *,
    higher_is_better: bool = True,
    value: Value | None = None,
) -> PairedScores:
    """Return the verdict on one pair of arms from scores per prompt; only prompts that all arms have count.

    ``prompts_needed`` and what is detectable are both at 90% power, the first from ``EXPECTABLE`` prompts on.

    Args:
        default: absolute margin without a gap to take a share of; None means ``DEFAULT_MARGIN``.
    """
    ars, sps, draft = _common_prompts(ars, sps, draft)
    first, second = (figure(units, value) for units in (ars, sps))
    sign = 1.0 if higher_is_better else -1.0
    gap = None if draft is None else _target_draft_gap(ars, draft, value, sign)
    scores = _untested_scores(len(ars), first, second, gap, default)
    if value is None:
        mean = figure(sps - ars, None)
    else:
        mean = None if first is None or second is None else second - first
    scores["difference"] = mean
    scores["normalised_difference"] = None if mean is None or not gap or gap < 0 else -sign * mean / gap
    _add_tests(scores, ars, sps, value)
    return scores


def advantage(target: Units, draft: Units, value: Value | None = None) -> Advantage:
    """Return how much better the target is than the draft alone: their means' ratio, paired by prompt."""
    target, draft, _ = _common_prompts(target, draft, None)
    of_target, of_draft = figure(target, value), figure(draft, value)
    if of_target is None or not of_draft:
        reason = reasons_of.NO_COMMON_PROMPT if not len(target) else reasons_of.DRAFT_SCORES_ZERO
        return _no_ratio(len(target), of_target, of_draft, reason)
    if value is None:
        columns = np.asarray(target, dtype=np.float64), np.asarray(draft, dtype=np.float64)
        low, high = pooled_interval(columns, ratio_of_sums, log=True)
        ratio = float(columns[0].sum() / columns[1].sum())
    else:
        both, statistic = _columns_of_both(target, draft, lambda one, other: value(one) / value(other))
        low, high = pooled_interval(both, statistic, log=True)
        ratio = of_target / of_draft
    too_little = reasons_of.TOO_LITTLE_VARIATION if low is None else None
    result = _no_ratio(len(target), of_target, of_draft, too_little)
    result.update({"ratio": ratio, "low": low, "high": high})
    return result


def _no_ratio(prompts: int, target: float | None, draft: float | None, reason: str | None) -> Advantage:
    return {
        "prompts": prompts,
        "target_mean": target,
        "draft_mean": draft,
        "ratio": target / draft if target is not None and draft else None,
        "low": None,
        "high": None,
        "reason": reason,
    }


def _untested_scores(
    prompts: int, first: float | None, second: float | None, gap: float | None, default: float | None
) -> PairedScores:
    margin = DEFAULT_MARGIN if default is None else default
    rule: Message = reasons_of.AbsoluteMargin(margin, gap is not None)
    if gap is not None and gap > 0:
        margin = SHARE_OF_GAP * gap
        rule = reasons_of.MarginOfGap(SHARE_OF_GAP)
    return {
        "prompts": prompts,
        "baseline_mean": first,
        "arm_mean": second,
        "difference": None,
        "margin": margin,
        "margin_rule": str(rule),
        "normalised_difference": None,
        "low": None,
        "high": None,
        "tost_p_value": None,
        "minimum_detectable_difference": None,
        "prompts_needed": None,
        "standard_deviation": None,
        "verdict": None,
        "reason": None,
    }


def _score_column(
    tables: Mapping[str, pd.DataFrame], headline: str | None, corpora: Mapping[str, CorpusMetric]
) -> str | None:
    wanted = PASSED if (headline or "").startswith("pass@") else headline
    names = list(dict.fromkeys(name for table in tables.values() for name in _metric_names(table, corpora)))
    return next((name for name in (wanted, *_PREFERRED, *names) if name in names), None)


def per_prompt(samples: pd.DataFrame, table: pd.DataFrame, column: str) -> pd.Series[Any]:
    """Return the finished samples' mean score of each prompt, or conversation.

    ``table`` is their ``score_table``.
    """
    import pandas as pd

    if column not in table:
        return pd.Series(dtype=np.float64)
    scores = table[column].astype("float64").dropna()
    return scores.groupby(conversation_of(samples).loc[scores.index], sort=False).mean()


def _common_prompts(ars: Units, sps: Units, draft: Units | None) -> tuple[Any, Any, Any]:
    """In the same order; a draft without any of them counts as not measured."""
    index = ars.index.intersection(sps.index, sort=False)
    if draft is not None:
        shared = index.intersection(draft.index, sort=False)
        index, draft = (shared, draft.loc[shared]) if len(shared) else (index, None)
    return ars.loc[index], sps.loc[index], draft


def figure(units: Units, value: Value | None) -> float | None:
    """Return the mean of scores, or the figure of what is summed; None without prompts."""
    numbers = np.asarray(units, dtype=np.float64)
    if not len(numbers):
        return None
    return float(numbers.mean() if value is None else value(numbers.sum(axis=0)[:, None])[0])


def _target_draft_gap(ars: Any, draft: Any, value: Value | None, sign: float) -> float:
    if value is None:
        return sign * float((ars - draft).mean())
    first, alone = figure(ars, value), figure(draft, value)
    assert first is not None
    assert alone is not None
    return sign * (first - alone)


def _columns_of_both(
    one: Any, other: Any, of_both: Callable[[Floats, Floats], Floats]
) -> tuple[list[Floats], Value]:
    """([prompts] each; the statistic of their sums)."""
    first, second = (np.asarray(units, dtype=np.float64).T for units in (one, other))
    width = len(first)
    return [*first, *second], lambda sums: of_both(sums[:width], sums[width:])


def differences(
    one: Any, other: Any, value: Value | None
) -> tuple[Floats, tuple[float, float] | tuple[None, None]]:
    """Return ([prompts] numbers whose mean is other's figure less one's, the mean's 95% interval).

    There is no interval over one prompt, nor where the numbers vary by no more than rounding.
    """
    if len(one) < 2:
        return np.zeros(len(one)), (None, None)
    if value is None:
        paired = np.asarray(other - one, dtype=np.float64)
        columns = [paired, np.ones(len(paired))]
        statistic: Value = ratio_of_sums
    else:
        columns, statistic = _columns_of_both(one, other, lambda first, second: value(second) - value(first))
        paired = pseudo_values(columns, statistic)
    if paired.std(ddof=1) < _ROUNDING:
        return paired, (None, None)
    return paired, pooled_interval(columns, statistic)


def _add_tests(scores: PairedScores, ars: Any, sps: Any, value: Value | None) -> None:
    """Add interval, tests and verdict of paired scores, or of the figures of corpora."""
    n = len(ars)
    if n < 2:
        scores["reason"] = str(reasons_of.NoVariance(n))
        return
    difference, (low, high) = differences(ars, sps, value)
    deviation = float(difference.std(ddof=1))
    if deviation < _ROUNDING:
        same = reasons_of.NoSpread(abs(float(difference[0])) < _ROUNDING, by_prompt=value is None)
        scores.update({"standard_deviation": 0.0, "reason": str(same)})
        return
    from statsmodels.stats.weightstats import ttost_paired

    margin = scores["margin"]
    p_value = float(ttost_paired(difference, np.zeros(n), -margin, margin)[0])
    apart = low is not None and high is not None and not low <= 0.0 <= high
    scores.update(
        {
            "low": low,
            "high": high,
            "tost_p_value": p_value,
            "minimum_detectable_difference": minimum_detectable(deviation, n),
            "prompts_needed": prompts_needed(deviation, margin) if n >= EXPECTABLE else None,
            "standard_deviation": deviation,
            "verdict": EQUIVALENT if p_value < LEVEL else DIFFERENT if apart else INCONCLUSIVE,
        }
    )


def _deviation_quantiles(n: int) -> Floats:
    """Of the standard deviation of n standard normal values, equally likely."""
    from scipy.stats import chi2

    return np.asarray(np.sqrt(chi2.ppf((np.arange(1_000) + 0.5) / 1_000, n - 1) / (n - 1)))


def minimum_detectable(deviation: float, n: int) -> float:
    """Return the true difference that a paired two-sided t-test at 5% over n prompts finds in 90% of runs."""
    from scipy.optimize import brentq
    from scipy.stats import norm, t

    least = t.ppf(1 - LEVEL / 2, n - 1) * _deviation_quantiles(n)
    effect = brentq(lambda z: float(norm.cdf(z - least).mean()) - POWER, 0.0, 1_000.0)
    return deviation * float(effect) / math.sqrt(n)


def prompts_needed(deviation: float, margin: float) -> int:
    """Return the number of prompts for which the verdict is *equivalent* in 90% of runs without a difference.

    Both one-sided t-tests reject where |mean| < margin - t s / sqrt(n): a normal probability for each s,
    averaged over the law of s. The normal approximation is where the search begins: it is too low.
    """
    from scipy.stats import norm, t

    def power(n: int) -> float:
        room = math.sqrt(n) * margin / deviation - t.ppf(1 - LEVEL, n - 1) * _deviation_quantiles(n)
        return float(np.clip(2 * norm.cdf(room) - 1, 0.0, None).mean())

    quantiles = float(norm.ppf(1 - LEVEL) + norm.ppf(1 - (1 - POWER) / 2))
    n = max(2, math.ceil((quantiles * deviation / margin) ** 2))
    while power(n) < POWER:
        n += 1
    return n


def _mcnemar(ars: Units, sps: Units) -> Solved:
    """On problems that any of the samples solved: the question of pass@100."""
    from statsmodels.stats.contingency_tables import mcnemar

    ars, sps, _ = _common_prompts(ars, sps, None)
    one, other = np.asarray(ars) > 0, np.asarray(sps) > 0
    table = [[int(np.sum((one == a) & (other == b))) for b in (True, False)] for a in (True, False)]
    differ = table[0][1] + table[1][0] > 0
    return {
        "both": table[0][0],
        "only_ars": table[0][1],
        "only_sps": table[1][0],
        "neither": table[1][1],
        "p_value": float(mcnemar(table, exact=True).pvalue) if differ else None,
        "reason": None if differ else reasons_of.SAME_PROBLEMS_SOLVED,
    }
