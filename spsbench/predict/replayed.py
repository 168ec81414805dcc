"""Tokens per loop against K from ArS texts alone: the law of replay, fed by what a run recorded of them.

Of every ArS token the run knows log q and log p, by teacher forcing. That is all that the law needs, for
every K at once, without independence of tests and without a constant alpha (``spsbench.law.text_loops``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.axes import unusual
from spsbench.law.text_loops import Floats, accepted_by_token, anchored, loops_over
from spsbench.stats.bootstrap import pooled_ratio
from spsbench.summary_types import ArmRow, Estimate

if TYPE_CHECKING:
    import pandas as pd

_TEXT = ["example_id", "sample_index"]


def replayed(evidence: pd.DataFrame, rows: Sequence[ArmRow]) -> dict[str, Estimate]:
    """Tokens per loop that a run's ArS texts predict for its SpS arms, with the interval over prompts."""
    found: dict[str, Estimate] = {}
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        own = [row for row in rows if row["sampling"] == sampling]
        ars = next((row["arm"] for row in own if row["method"] == "ars"), None)
        texts = list(_chances(evidence[evidence["arm"] == ars]))
        arms = {row["arm"]: row["k"] for row in own if row["method"] == "sps" and not unusual(row)}
        if texts:
            found |= {arm: _tokens_per_loop(texts, k) for arm, k in arms.items()}
    return found


def _chances(ars: pd.DataFrame) -> Iterator[tuple[str, Floats]]:
    """(prompt, [n] the chance that each token of a text is accepted) of texts that were read as a whole."""
    for (prompt, _), text in ars.sort_values([*_TEXT, "position"]).groupby(_TEXT, sort=False):
        known = text[["log_target", "log_draft"]].to_numpy(dtype=np.float64).T
        if not np.isnan(known).any() and int(text["position"].iloc[-1]) == len(text) - 1:
            yield str(prompt), accepted_by_token(*known)


def _tokens_per_loop(texts: Sequence[tuple[str, Floats]], k: int) -> Estimate:
    sums: Mapping[str, Floats] = {prompt: np.zeros(2) for prompt, _ in texts}
    for prompt, chances in texts:
        sums[prompt][:] += len(chances), loops_over(anchored(chances, k)).loops
    tokens, loops = np.array(list(sums.values())).T
    found = pooled_ratio(tokens, loops)
    return {"estimate": found.estimate, "low": found.low, "high": found.high}
