"""How good the output of an arm is, and whether SpS and ArS are equally good.

"No significant difference" is no parity: a small run never finds one. The margin is a share of what
is at stake, the gap between the target and the draft alone; the verdict is *equivalent* when two
one-sided tests (Schuirmann 1987) put the difference within it, *different* when the 95% interval of
the difference leaves out 0, else *underpowered*, with the difference that the run could have seen
and the prompts that it would take. A lossless sampler is called different in at most one of twenty
runs, by the interval's own odds. Prompts are the unit: repeats of a prompt are averaged, samples of
a HumanEval problem are its cluster.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from spsbench.stats.bootstrap import finite, pooled_interval, ratio_of_sums
from spsbench.stats.speedup import finished
from spsbench.summary_types import (
    Advantage,
    ArmRow,
    PairedScores,
    Parity,
    ParityComparison,
    ParityTest,
    ParityVerdict,
    Solved,
    TargetOverDraft,
)

if TYPE_CHECKING:
    import pandas as pd


PASSED = "passed"


def metrics(samples: pd.DataFrame) -> dict[str, float | None]:
    """Metrics of one arm's finished samples.

    Every score key becomes its plain mean over sequences. The key ``passed`` (1 if a program passed
    its tests, else 0) becomes pass@1, pass@10 and pass@100 instead; None where a problem has
    fewer samples than k.

    Args:
        samples: rows with ``example_id`` and ``scores``: a dict per row, its JSON, or None where
            scoring was left out.
    """
    scores = score_table(samples)
    result: dict[str, float | None] = {}
    for name in scores.columns:
        if name == PASSED:
            result.update(_pass_at(samples["example_id"], scores[name]))
        else:
            result[str(name)] = finite(scores[name].astype("float64").mean())
    return result


def score_table(samples: pd.DataFrame) -> pd.DataFrame:
    """One row per sample under its own index, one column per score; NaN where a sample lacks it."""
    import pandas as pd

    return pd.DataFrame([_scores(value) for value in samples["scores"]], index=samples.index)


def _scores(value: Any) -> dict[str, Any]:
    """One row's scores; Parquet gives a struct with None for keys that a row does not have."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        return {}
    return {str(key): score for key, score in value.items() if score is not None}


def _pass_at(problems: pd.Series[Any], passed: pd.Series[Any]) -> dict[str, float | None]:
    from spsbench.metrics.pass_at_k import pass_at_k

    per_problem = passed.dropna().astype("float64").groupby(problems).agg(["size", "sum"])
    total = [int(n) for n in per_problem["size"]]
    correct = [int(n) for n in per_problem["sum"]]
    return pass_at_k(total, correct) if total else {}


Floats = npt.NDArray[np.float64]

SHARE_OF_GAP = 0.05
"""The margin, as a share of the target-draft gap."""

DEFAULT_MARGINS = {PASSED: 0.02}
DEFAULT_MARGIN = 0.01
"""Absolute margins where there is no gap to take a share of: pass@1, and everything else (ROUGE)."""

LEVEL = 0.05
POWER = 0.9

EQUIVALENT: Final = "equivalent"
DIFFERENT: Final = "different"
UNDERPOWERED: Final = "underpowered"
_PREFERRED = ("rouge2", PASSED, "exact_match")


def parity(
    by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    headline: str | None = None,
    kinds: Mapping[str, Any] | None = None,
) -> Parity | None:
    """Compare every SpS arm with the ArS arm of its sampling on the headline metric.

    Args:
        by_arm: rows of ``samples`` of each arm.
        rows: the arms' rows of the summary.
        headline: the metric that the task is judged by, e.g. ``rouge2`` or ``pass@1``.
        kinds: ``margin`` and ``higher_is_better`` by metric, as ``run.json`` has them.

    Returns:
        ``metric``, ``comparisons`` (one per SpS arm, see ``compare``) and ``target_over_draft`` (one
        per sampling with a draft-only arm, see ``advantage``); None where nothing was scored.
    """
    tables = {arm: score_table(finished(samples)) for arm, samples in by_arm.items()}
    column = _score_column(tables, headline)
    if column is None:
        return None
    told = (kinds or {}).get(column, {})
    default, better = told.get("margin", DEFAULT_MARGINS.get(column)), told.get("higher_is_better", True)
    means = {arm: _per_prompt(by_arm[arm], table, column) for arm, table in tables.items()}
    comparisons: list[ParityComparison] = []
    advantages: list[TargetOverDraft] = []
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        group = [row for row in rows if row["sampling"] == sampling and len(means.get(row["arm"], ()))]
        ars, draft = (next((r for r in group if r["method"] == name), None) for name in ("ars", "draft"))
        if ars is None:
            continue
        alone = None if draft is None else means[draft["arm"]]
        if alone is not None:
            advantages.append({"sampling": sampling, **advantage(means[ars["arm"]], alone)})
        for row in (row for row in group if row["method"] == "sps"):
            result = compare(means[ars["arm"]], means[row["arm"]], alone, default, higher_is_better=better)
            solved = _solved(means[ars["arm"]], means[row["arm"]]) if column == PASSED else None
            comparisons.append(
                {
                    "arm": row["arm"],
                    "baseline": ars["arm"],
                    "sampling": sampling,
                    **result,
                    "solved": solved,
                }
            )
    metric = "pass@1" if column == PASSED else column
    return {"metric": metric, "comparisons": comparisons, "target_over_draft": advantages}


def compare(
    ars: pd.Series[Any],
    sps: pd.Series[Any],
    draft: pd.Series[Any] | None,
    default: float | None = None,
    *,
    higher_is_better: bool = True,
) -> PairedScores:
    """The verdict on one pair of arms from scores per prompt; only prompts that all arms have count.

    Args:
        ars, sps, draft: mean score by example_id; ``draft`` is the draft alone, None if not measured.
        default: absolute margin without a gap to take a share of; None means ``DEFAULT_MARGIN``.
        higher_is_better: False turns the gap's sign: the target then has the lower score.

    Returns:
        ``prompts``, means, ``difference`` (SpS - ArS) with ``low`` and ``high``, ``margin`` with
        ``margin_rule``, ``normalised_difference`` ((ArS - SpS) / (ArS - draft)), ``tost_p_value``,
        ``standard_deviation`` of the paired differences, ``minimum_detectable_difference`` and
        ``prompts_needed`` (both at 90% power), ``verdict`` and ``reason``. What does not exist is None,
        and ``reason`` says why.
    """
    ars, sps, draft = _common(ars, sps, draft)
    difference = np.asarray(sps - ars, dtype=np.float64)
    sign = 1.0 if higher_is_better else -1.0
    gap = None if draft is None else sign * float((ars - draft).mean())
    margin, rule = _margin(gap, DEFAULT_MARGIN if default is None else default)
    mean = _mean(difference)
    return {
        "prompts": len(difference),
        "baseline_mean": _mean(np.asarray(ars)),
        "arm_mean": _mean(np.asarray(sps)),
        "difference": mean,
        "margin": margin,
        "margin_rule": rule,
        "normalised_difference": None if mean is None or not gap or gap < 0 else -sign * mean / gap,
        **_tested(np.asarray(ars), np.asarray(sps), margin),
    }


def advantage(target: pd.Series[Any], draft: pd.Series[Any]) -> Advantage:
    """How much better the target is than the draft alone: the ratio of their means, paired by prompt."""
    target, draft, _ = _common(target, draft, None)
    columns = np.asarray(target, dtype=np.float64), np.asarray(draft, dtype=np.float64)
    found: Advantage = {
        "prompts": len(target),
        "target_mean": _mean(columns[0]),
        "draft_mean": _mean(columns[1]),
        "ratio": None,
        "low": None,
        "high": None,
        "reason": None,
    }
    if not len(target) or not columns[1].sum():
        reason = "no common prompt" if not len(target) else "the draft alone scores 0"
        return {**found, "reason": reason}
    low, high = pooled_interval(columns, ratio_of_sums)
    why = None if low is not None else "too little variation between prompts for an interval"
    ratio = float(columns[0].sum() / columns[1].sum())
    return {**found, "ratio": ratio, "low": low, "high": high, "reason": why}


def _score_column(tables: Mapping[str, pd.DataFrame], headline: str | None) -> str | None:
    wanted = PASSED if (headline or "").startswith("pass@") else headline
    names = list(dict.fromkeys(str(name) for table in tables.values() for name in table.columns))
    return next((name for name in (wanted, *_PREFERRED, *names) if name in names), None)


def _per_prompt(samples: pd.DataFrame, table: pd.DataFrame, column: str) -> pd.Series[Any]:
    import pandas as pd

    if column not in table:
        return pd.Series(dtype=np.float64)
    scores = table[column].astype("float64").dropna()
    return scores.groupby(samples["example_id"].loc[scores.index], sort=False).mean()


def _common(ars: pd.Series[Any], sps: pd.Series[Any], draft: pd.Series[Any] | None) -> tuple[Any, Any, Any]:
    """The same prompts in the same order; a draft without any of them counts as not measured."""
    index = ars.index.intersection(sps.index, sort=False)
    if draft is not None:
        shared = index.intersection(draft.index, sort=False)
        index, draft = (shared, draft.loc[shared]) if len(shared) else (index, None)
    return ars.loc[index], sps.loc[index], draft


def _margin(gap: float | None, default: float) -> tuple[float, str]:
    if gap is not None and gap > 0:
        return SHARE_OF_GAP * gap, f"{SHARE_OF_GAP:.0%} of the target-draft gap"
    why = "no draft-only arm" if gap is None else "the target is no better than the draft"
    return default, f"{default:g} absolute: {why}"


def _tested(ars: Floats, sps: Floats, margin: float) -> ParityTest:
    """Interval, tests and verdict of paired scores."""
    difference = sps - ars
    if len(difference) < 2:
        return _untested(f"{len(difference)} prompts: no variance to judge by", None)
    deviation = float(difference.std(ddof=1))
    if deviation < 1e-12:
        same = "the same score" if abs(float(difference[0])) < 1e-12 else "the same difference"
        return _untested(f"{same} on every prompt", 0.0)
    from statsmodels.stats.weightstats import ttost_paired

    low, high = pooled_interval((difference, np.ones(len(difference))), ratio_of_sums)
    p_value = float(ttost_paired(sps, ars, -margin, margin)[0])
    verdict: ParityVerdict
    if p_value < LEVEL:
        verdict = EQUIVALENT
    else:
        apart = low is not None and high is not None and not low <= 0.0 <= high
        verdict = DIFFERENT if apart else UNDERPOWERED
    return {
        "low": low,
        "high": high,
        "tost_p_value": p_value,
        "minimum_detectable_difference": minimum_detectable(deviation, len(difference)),
        "prompts_needed": prompts_needed(deviation, margin),
        "standard_deviation": deviation,
        "verdict": verdict,
        "reason": None,
    }


def _untested(reason: str, deviation: float | None) -> ParityTest:
    return {
        "low": None,
        "high": None,
        "tost_p_value": None,
        "minimum_detectable_difference": None,
        "prompts_needed": None,
        "verdict": None,
        "standard_deviation": deviation,
        "reason": reason,
    }


def minimum_detectable(deviation: float, n: int) -> float:
    """The true difference that a paired two-sided t-test at 5% over n prompts finds in 90% of runs."""
    from statsmodels.stats.power import TTestPower

    return deviation * float(TTestPower().solve_power(nobs=n, alpha=LEVEL, power=POWER))


def prompts_needed(deviation: float, margin: float) -> int:
    """Prompts for which the verdict is *equivalent* in 90% of runs if there is no difference at all.

    The normal approximation: both one-sided tests must reject, each failing in half of the 10%.
    """
    from scipy.stats import norm

    quantiles = float(norm.ppf(1 - LEVEL) + norm.ppf(1 - (1 - POWER) / 2))
    return math.ceil((quantiles * deviation / margin) ** 2)


def _solved(ars: pd.Series[Any], sps: pd.Series[Any]) -> Solved:
    """McNemar's exact test on problems that any of the samples solved: the question of pass@100."""
    from statsmodels.stats.contingency_tables import mcnemar

    ars, sps, _ = _common(ars, sps, None)
    one, other = np.asarray(ars) > 0, np.asarray(sps) > 0
    table = [[int(np.sum((one == a) & (other == b))) for b in (True, False)] for a in (True, False)]
    differ = table[0][1] + table[1][0] > 0
    return {
        "both": table[0][0],
        "only_ars": table[0][1],
        "only_sps": table[1][0],
        "neither": table[1][1],
        "p_value": float(mcnemar(table, exact=True).pvalue) if differ else None,
        "reason": None if differ else "the same problems are solved",
    }


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
