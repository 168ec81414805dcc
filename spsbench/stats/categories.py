"""The result table for each category of prompts: the same estimators on a part of the prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spsbench.axes import identity
from spsbench.stats.bootstrap import finite, ratio
from spsbench.stats.corpus import CorpusMetric
from spsbench.stats.parity import metrics
from spsbench.stats.processes import paired_speedup
from spsbench.stats.speedup import column, finished, loops_of
from spsbench.summary_types import ArmRow, CategoryPart, CategoryRow, RatioInterval

if TYPE_CHECKING:
    import pandas as pd


def by_category(
    by_arm: Mapping[str, pd.DataFrame],
    loops_by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    *,
    corpora: Mapping[str, CorpusMetric] | None = None,
    trusted: bool = True,
    anytime: bool = False,
) -> list[CategoryPart]:
    """Every arm's row for each category; nothing unless there are several."""
    parts: list[CategoryPart] = []
    for category in _categories(by_arm):
        own = {arm: _part(samples, category) for arm, samples in by_arm.items()}
        asked = {example for samples in own.values() for example in samples["example_id"]}
        found = [_row(row, own, loops_by_arm, corpora, trusted, anytime) for row in rows if row["arm"] in own]
        parts.append({"category": category, "prompts": len(asked), "rows": found})
    return parts


def _categories(by_arm: Mapping[str, pd.DataFrame]) -> list[str | None]:
    columns = [samples["category"] for samples in by_arm.values() if "category" in samples]
    named = sorted({str(value) for values in columns for value in values.dropna()})
    unnamed = any(values.isna().any() for values in columns)
    found = [*named, *([None] if unnamed else [])]
    return found if len(found) > 1 else []


def _part(samples: pd.DataFrame, category: str | None) -> pd.DataFrame:
    values = samples["category"]
    return samples[values.isna() if category is None else values == category]


def _row(
    row: ArmRow,
    own: Mapping[str, pd.DataFrame],
    loops_by_arm: Mapping[str, pd.DataFrame],
    corpora: Mapping[str, CorpusMetric] | None,
    trusted: bool,
    anytime: bool,
) -> CategoryRow:
    samples, baseline = own[row["arm"]], row["baseline"]
    done = finished(samples)
    tokens = int(done["new_tokens"].sum())
    per_token = ratio(float(done["decode_s"].sum()), tokens)
    return {
        **identity(row),
        "sequences": len(done),
        "prompts": int(done["example_id"].nunique()),
        "failed": len(samples) - len(done),
        "tokens": tokens,
        "ms_per_token": None if per_token is None else 1e3 * per_token,
        "baseline": baseline,
        "speedup": None if baseline is None else _speedup(own[baseline], samples, trusted, anytime),
        "tokens_per_loop": _tokens_per_loop(loops_by_arm.get(row["arm"]), done),
        "metrics": metrics(done, corpora),
        "lossless": row["lossless"],
    }


def _speedup(
    baseline: pd.DataFrame, samples: pd.DataFrame, trusted: bool, anytime: bool
) -> RatioInterval | None:
    found = paired_speedup(baseline, samples, anytime=anytime)
    if found is None:
        return None
    if not trusted:
        return {"ratio": found.ratio, "low": None, "high": None}
    return {"ratio": found.ratio, "low": found.low, "high": found.high}


def _tokens_per_loop(loops: pd.DataFrame | None, done: pd.DataFrame) -> float | None:
    if loops is None or not len(done):
        return None
    emitted = column(loops_of(loops, done, -1), "emitted")
    return finite(emitted.mean()) if len(emitted) else None
