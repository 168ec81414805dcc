"""How good the output of an arm is: means of its scores, and pass@k for code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spsbench.analysis.numbers import finite

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
