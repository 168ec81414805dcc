"""Metrics with one figure for a corpus, not a mean over its outputs: BLEU, and others of ``evaluate``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.stats.bootstrap import finite, pooled_interval
from spsbench.stats.messages.runs import NoFigure
from spsbench.stats.speedup import conversation_of
from spsbench.store.summary_types import MetricInterval
from spsbench.tasks.metrics.kind import OUTPUTS, MetricKind
from spsbench.tasks.metrics.registry import installed

if TYPE_CHECKING:
    import pandas as pd


def score_table(samples: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sample under its own index, one column per score; NaN where a sample lacks it."""
    import pandas as pd

    # Parquet gives a struct with None for keys that a row does not have.
    known = (json.loads(value) if isinstance(value, str) else value for value in samples["scores"])
    scores = [scores_of if isinstance(scores_of, Mapping) else {} for scores_of in known]
    rows = [{str(name): score for name, score in one.items() if score is not None} for one in scores]
    return pd.DataFrame(rows, index=samples.index)


class RecordedFigure(MetricInterval):
    """The figure of some outputs in ``run.json``; without an interval where no sum gives the figure."""

    figure: float


Recorded = Mapping[str, Mapping[str, RecordedFigure]]
"""Figures of a metric by arm, and by ``outputs_sha256`` of the outputs that each of them covers."""


def outputs_sha256(keys: Iterable[tuple[str, int]]) -> str:
    """Return which outputs of an arm a figure covers: a hash of (example_id, sample_index) in any order."""
    lines = sorted(json.dumps([str(example), int(index)]) for example, index in keys)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def shared_prompts(scored: Mapping[str, Collection[str]]) -> set[str] | None:
    """Return the prompts that every arm has scored outputs of; None where all arms have the same ones."""
    scored_prompts = [set(prompts) for prompts in scored.values() if prompts]
    shared = set.intersection(*scored_prompts) if scored_prompts else set()
    return None if all(prompts == shared for prompts in scored_prompts) else shared


@dataclass(frozen=True, slots=True)
class CommonFigures:
    """Recorded figures of the prompts that all arms have."""

    prompts: int
    by_arm: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CorpusMetric:
    """How the figure of a corpus follows from what the run kept of its outputs.

    Attributes:
        value: from sums of the columns, [columns, m], to figures, [m]; None where no sum gives it, or where
            the metric is neither ours nor an installed package's.
        recorded: where ``value`` is None, what scoring computed.
        least, most: of ``value``'s figures.
    """

    columns: tuple[str, ...]
    value: Callable[[Floats], Floats] | None = None
    recorded: Recorded = field(default_factory=dict)
    least: float = -math.inf
    most: float = math.inf

    @property
    def summed(self) -> bool:
        """Whether the figure follows from sums, be its function at hand or not."""
        return not self.columns[0].endswith(f":{OUTPUTS}")

    def counted(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the sums of each output that was scored, from a ``score_table``."""
        import pandas as pd

        if not set(self.columns) <= set(table.columns):
            return pd.DataFrame(columns=list(self.columns), dtype=np.float64)
        return table[list(self.columns)].astype("float64").dropna()

    def of_record(self, samples: pd.DataFrame, arm: str | None) -> RecordedFigure | None:
        """Return the recorded figure of exactly these finished samples of an arm; None if it is of others."""
        figures = self.recorded.get(arm) if arm is not None else None
        return figures.get(outputs_sha256(_keys(samples))) if figures else None

    def figure(self, samples: pd.DataFrame, table: pd.DataFrame, arm: str | None = None) -> float | None:
        counted = self.counted(table)
        if not len(counted):
            return None
        if self.value is None:
            record = self.of_record(samples, arm)
            return None if record is None else record["figure"]
        return finite(self.value(counted.to_numpy().sum(axis=0)[:, None])[0])

    def interval(self, samples: pd.DataFrame, table: pd.DataFrame, arm: str) -> MetricInterval | None:
        """Return the 95% interval of the figure over prompts; None where no sum gives it."""
        counted = self.counted(table)
        if not len(counted):
            return None
        if self.value is not None:
            loose = pooled_interval([*by_prompt(samples, counted).to_numpy().T], self.value)
            low, high = (None if end is None else min(max(end, self.least), self.most) for end in loose)
            return {"low": low, "high": high}
        record = self.of_record(samples, arm)
        return {"low": record["low"], "high": record["high"]} if record is not None and self.summed else None

    def on_common(self, by_arm: Mapping[str, pd.DataFrame]) -> CommonFigures:
        """Read the recorded figures of the prompts that all arms have, and count these prompts."""
        shared, prompts = self._shared(by_arm)
        kept = {arm: samples for arm, samples in _on(by_arm, shared).items() if arm in prompts}
        recorded = {arm: self.of_record(samples, arm) for arm, samples in kept.items()}
        figures = {arm: figure["figure"] for arm, figure in recorded.items() if figure is not None}
        return CommonFigures(len(set.intersection(*prompts.values())) if prompts else 0, figures)

    def computed(self, by_arm: Mapping[str, pd.DataFrame]) -> Recorded:
        """Return figures and intervals of each arm, and of the prompts that all arms have; for ``value``."""
        shared, _ = self._shared(by_arm)
        by_arm_and_outputs: dict[str, dict[str, RecordedFigure]] = {}
        for prompts in (None,) if shared is None else (None, shared):
            for arm, samples in _on(by_arm, prompts).items():
                table = score_table(samples)
                figure = self.figure(samples, table)
                ends = self.interval(samples, table, arm)
                if figure is not None and ends is not None:
                    by_arm_and_outputs.setdefault(arm, {})[outputs_sha256(_keys(samples))] = {
                        "figure": figure,
                        **ends,
                    }
        return by_arm_and_outputs

    def _shared(self, by_arm: Mapping[str, pd.DataFrame]) -> tuple[set[str] | None, dict[str, set[str]]]:
        """(``shared_prompts``, the prompts of each arm that has scored outputs)."""
        counted = {arm: self.counted(score_table(samples)) for arm, samples in by_arm.items()}
        prompts = {
            arm: set(by_arm[arm]["example_id"].loc[rows.index]) for arm, rows in counted.items() if len(rows)
        }
        return shared_prompts(prompts), prompts


def _keys(samples: pd.DataFrame) -> Iterator[tuple[str, int]]:
    return zip(samples["example_id"], samples["sample_index"], strict=True)


def _on(by_arm: Mapping[str, pd.DataFrame], prompts: set[str] | None) -> dict[str, pd.DataFrame]:
    if prompts is None:
        return dict(by_arm)
    return {arm: samples[samples["example_id"].isin(prompts)] for arm, samples in by_arm.items()}


def corpus_metrics(info: Mapping[str, Any], kinds: Iterable[MetricKind] = ()) -> dict[str, CorpusMetric]:
    """Return the metrics of a run that are not means, by name."""
    at_hand = {kind.name: kind for kind in kinds}
    recorded = info.get("corpus_figures") or {}
    metrics = {}
    for name, about in (info.get("metrics") or {}).items():
        if columns := tuple(about.get("columns") or ()):
            kind = at_hand.get(name) or installed(name)
            sums = None if kind is None or kind.columns != columns else kind.sums
            metric = CorpusMetric(columns, recorded=recorded.get(name) or {})
            if sums is not None:
                metric = replace(metric, value=sums.value, least=sums.least, most=sums.most)
            metrics[name] = metric
    return metrics


def without_figure(samples: pd.DataFrame, corpora: Mapping[str, CorpusMetric]) -> list[NoFigure]:
    """Which metrics have scored outputs but lack an arm's figure here."""
    by_arm = {str(arm): arm_samples for arm, arm_samples in samples.groupby("arm", sort=False)}
    found = []
    for name, metric in corpora.items():
        arms = tuple(
            arm
            for arm, arm_samples in by_arm.items()
            if metric.value is None
            and metric.of_record(arm_samples, arm) is None
            and len(metric.counted(score_table(arm_samples)))
        )
        if arms:
            found.append(NoFigure(name, arms))
    return found


def intervals(
    samples: pd.DataFrame, corpora: Mapping[str, CorpusMetric], arm: str
) -> dict[str, MetricInterval]:
    """Return the 95% interval over prompts of each figure of an arm's finished samples, if sums give it."""
    table = score_table(samples)
    by_metric = {name: metric.interval(samples, table, arm) for name, metric in corpora.items()}
    return {name: ends for name, ends in by_metric.items() if ends is not None}


def by_prompt(samples: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """Return sums over the samples of each prompt, in the order of the samples."""
    return counted.groupby(conversation_of(samples).loc[counted.index], sort=False).sum()
