"""Metrics that give a corpus one figure, no mean over its outputs: BLEU, and others of ``evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.metrics.kind import MetricKind
from spsbench.metrics.registry import installed
from spsbench.stats.bootstrap import Floats, finite, pooled_interval
from spsbench.stats.scores import score_table
from spsbench.summary_types import MetricInterval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class CorpusMetric:
    """How the figure of a corpus is had from what the run kept of its outputs.

    Attributes:
        columns: among the scores of an output.
        value: from sums of the columns, [columns, m], to figures, [m]; None where no sum tells it, or where
            the metric is neither ours nor an installed package's.
        figures: by arm, of all of its outputs, where no sum tells it.
    """

    columns: tuple[str, ...]
    value: Callable[[Floats], Floats] | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def counted(self, table: pd.DataFrame) -> pd.DataFrame:
        """What is summed of each output that was scored; of a ``score_table``."""
        import pandas as pd

        if not set(self.columns) <= set(table.columns):
            return pd.DataFrame(columns=list(self.columns), dtype=np.float64)
        return table[list(self.columns)].astype("float64").dropna()

    def figure(self, counted: pd.DataFrame, arm: str | None = None) -> float | None:
        """The figure of the outputs; of an arm's all, if ``arm`` names it."""
        if not len(counted):
            return None
        if self.value is None:
            return None if arm is None else self.figures.get(arm)
        return finite(self.value(counted.to_numpy().sum(axis=0)[:, None])[0])


def corpus_metrics(info: Mapping[str, Any], kinds: Iterable[MetricKind] = ()) -> dict[str, CorpusMetric]:
    """The metrics of a run that are no means, by name.

    Args:
        info: of ``summarise``; its ``metrics`` tells the columns, its ``corpus_figures`` the figures that no
            sum gives, by metric and arm.
        kinds: the task's own metrics, where the task is at hand.
    """
    at_hand = {kind.name: kind for kind in kinds}
    figures = info.get("corpus_figures") or {}
    found = {}
    for name, told in (info.get("metrics") or {}).items():
        if columns := tuple(told.get("columns") or ()):
            kind = at_hand.get(name) or installed(name)
            same = kind is not None and kind.sums is not None and kind.columns == columns
            value = kind.sums.value if same and kind is not None and kind.sums is not None else None
            found[name] = CorpusMetric(columns, value, figures.get(name) or {})
    return found


def without_figure(samples: pd.DataFrame, corpora: Mapping[str, CorpusMetric]) -> list[str]:
    """A sentence for each metric whose outputs were scored and whose figure cannot be had here."""
    table = score_table(samples)
    return [
        f"{name} has no figure here: it comes from a file or a script, which a report does not run. "
        "`spsbench score RUN --missing` computes it."
        for name, metric in corpora.items()
        if metric.value is None and not metric.figures and len(metric.counted(table))
    ]


def intervals(samples: pd.DataFrame, corpora: Mapping[str, CorpusMetric]) -> dict[str, MetricInterval]:
    """The 95% interval over prompts of each figure of an arm's finished samples, where sums tell it."""
    table = score_table(samples)
    found: dict[str, MetricInterval] = {}
    for name, metric in corpora.items():
        counted = metric.counted(table)
        if metric.value is not None and len(counted):
            low, high = pooled_interval([*by_prompt(samples, counted).to_numpy().T], metric.value)
            found[name] = {"low": low, "high": high}
    return found


def by_prompt(samples: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """Sums over the samples of each prompt, in the order of the samples."""
    return counted.groupby(samples["example_id"].loc[counted.index], sort=False).sum()
