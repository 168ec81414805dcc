"""The scores of samples as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


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
