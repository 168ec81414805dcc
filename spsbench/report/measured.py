"""What a report is made from: the run's tables, its summary and its own record, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.base import axes
from spsbench.stats.speedup import finished
from spsbench.store.summary_types import ArmRow, Summary

if TYPE_CHECKING:
    import pandas as pd


_KEY = ["arm", "example_id", "sample_index"]


@dataclass(frozen=True)
class Series:
    """The arms that one line of a plot connects: those that differ in K alone, with their ArS. Its ``label``
    is, e.g., ``nucleus, lookup @graphed``."""

    label: str
    rows: tuple[ArmRow, ...]

    @property
    def speculative(self) -> tuple[ArmRow, ...]:
        """Rows with K above 0."""
        return tuple(row for row in self.rows if row["k"] > 0)

    @property
    def counting_tokens(self) -> tuple[ArmRow, ...]:
        """Speculative rows whose loops count tokens: those of a beam search count its steps."""
        return tuple(row for row in self.speculative if not axes.is_beam(row))


def series_name(row: axes.Row) -> str:
    """Return what the arms of a row's series have in common, as far as it is unusual: ``nucleus, lookup``."""
    engine = "" if row["engine"] == axes.EAGER else f" @{axes.shown_engine(row['engine'])}"
    batch = [] if row.get("batch", 1) == 1 else [f"B={row['batch']}"]
    return ", ".join([row["sampling"], *batch, *axes.unusual(row)]) + engine


@dataclass(frozen=True)
class Measured:
    """A run as figures, trace and pages see it, with its tables, see ``spsbench.store.Frames``."""

    name: str
    summary: Summary
    run: Mapping[str, Any]
    samples: pd.DataFrame
    loops: pd.DataFrame
    tokens: pd.DataFrame

    @cached_property
    def series(self) -> tuple[Series, ...]:
        """The rows that differ in K alone, in the order of the summary; the draft alone is in none."""
        rows = [row for row in self.summary["rows"] if row["method"] in ("ars", "sps") and row["sequences"]]
        groups = axes.series(rows)
        drafting = [next((row for row in group if row["method"] == "sps"), group[0]) for group in groups]
        return tuple(
            Series(series_name(row), tuple(sorted(group, key=lambda row: row["k"])))
            for row, group in zip(drafting, groups, strict=True)
        )

    @cached_property
    def ks(self) -> tuple[int, ...]:
        """Every K that was measured, 0 for ArS."""
        return tuple(sorted({row["k"] for series in self.series for row in series.rows}))

    @property
    def fixed_length(self) -> int | None:
        """Tokens of every output, where EOS and stops were ignored; else None."""
        identity = self.run.get("identity") or {}
        length = identity.get("max_new_tokens")
        return int(length) if identity.get("fixed_length") and length else None

    @cached_property
    def sequences(self) -> dict[str, pd.DataFrame]:
        """By arm: ``new_tokens``, ``decode_s`` and ``loops`` (NaN where unseen) of finished sequences."""
        done = finished(self.samples)[[*_KEY, "new_tokens", "decode_s"]]
        if len(self.loops):
            counts = self.loops.groupby(_KEY, sort=False).size().rename("loops").reset_index()
            done = done.merge(counts, on=_KEY, how="left", sort=False)
        else:
            done = done.assign(loops=np.nan)
        return {str(arm): part for arm, part in done.groupby("arm", sort=False)}

    @cached_property
    def loops_by_arm(self) -> dict[str, pd.DataFrame]:
        """The loops of each arm, with ``start``: tokens of the output before the loop."""
        if not len(self.loops):
            return {}
        emitted = self.loops["emitted"].to_numpy(dtype=np.int64)
        before = np.cumsum(emitted) - emitted
        first = self.loops["loop"].to_numpy() == 0
        sequence = np.maximum(np.cumsum(first) - 1, 0)
        whole = self.loops.assign(start=before - before[np.flatnonzero(first)][sequence])
        return {str(arm): part for arm, part in whole.groupby("arm", sort=False)}
