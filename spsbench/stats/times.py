"""Whether the times of arms can be: each held against its own loops, and none left out without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.base.messages import Message
from spsbench.stats.messages import full_name
from spsbench.stats.messages.timings import PromptsUntimed, TimesContradictLoops
from spsbench.stats.speedup import column, finished, in_both, matched_by
from spsbench.store.summary_types import ArmRow

if TYPE_CHECKING:
    import pandas as pd

SLACK = 0.05
"""Share by which an arm's seconds may leave those of its loops."""

SLACK_LOOPS = 0.5
"""Mean loops that a sequence may have beyond: the clock runs on before its first loop and after its last one.
On a CPU that others used, too, that were 60 microseconds of loops of 12 ms."""


def doubts(
    samples: Mapping[str, pd.DataFrame], loops: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> list[str]:
    """What must stand before any speedup: times that contradict the loops, and prompts without one."""
    return [
        str(said)
        for row in rows
        if (own := samples.get(row["arm"])) is not None
        for said in (
            *_against_loops(row, finished(own), loops.get(row["arm"])),
            *_without_a_time(row, own, samples),
        )
    ]


def _against_loops(row: ArmRow, done: pd.DataFrame, loops: pd.DataFrame | None) -> Iterator[Message]:
    """Where an arm's decoding seconds are not those of its loops, as far as these are seen.

    An engine that is watched from outside has the prompt's seconds in its first loop.
    """
    if loops is None or loops.empty or done.empty:
        return
    both = _with_loops(done, loops)
    both = both[np.isfinite(both["in_loops_s"])]
    if both.empty:
        return
    decode_s, prefill_s, loop_s = (column(both, name) for name in ("decode_s", "prefill_s", "in_loops_s"))
    over = np.maximum(0.0, np.maximum(decode_s - loop_s, loop_s - decode_s - prefill_s))
    granted = SLACK + SLACK_LOOPS * len(done) / len(loops)
    if over.sum() <= granted * loop_s.sum():
        return
    worst = both.iloc[int(over.argmax())]
    yield TimesContradictLoops(
        full_name(row),
        decode_s.sum(),
        loop_s.sum(),
        worst["example_id"],
        worst["decode_s"],
        worst["in_loops_s"],
    )


def _with_loops(done: pd.DataFrame, loops: pd.DataFrame) -> pd.DataFrame:
    """Sequences with the seconds of their loops, ``in_loops_s``; NaN where these are not seen."""
    key = matched_by(done, loops)
    rows = done[[*key, "decode_s", "prefill_s"]]
    seconds = column(loops, "loop_s")
    counts = column(done, "loop_count").astype(np.int64)
    starts = np.cumsum(counts) - counts
    # As a run is written: each sequence's loops together, in the order of the sequences.
    if counts.all() and counts.sum() == len(loops):
        first = loops[key].iloc[starts]
        if all((first[name].to_numpy() == rows[name].to_numpy()).all() for name in key):
            return rows.assign(in_loops_s=np.add.reduceat(seconds, starts))
    unseen = loops[key].assign(in_loops_s=seconds, unseen=np.isnan(seconds))
    sums = unseen.groupby(key, sort=False)[["in_loops_s", "unseen"]].sum().reset_index()
    sums.loc[sums["unseen"] > 0, "in_loops_s"] = np.nan
    return rows.merge(sums.drop(columns="unseen"), on=key)


def _without_a_time(row: ArmRow, own: pd.DataFrame, samples: Mapping[str, pd.DataFrame]) -> Iterator[Message]:
    """Where a speedup leaves out prompts: their times are missing on one of its sides."""
    base = samples.get(row["baseline"] or "")
    if base is None or row["speedup"] is None:
        return
    paired = {*in_both(base, own)[1]["example_id"]}
    asked = dict.fromkeys((*base["example_id"], *own["example_id"]))
    lacking = tuple(str(name) for name in asked if name not in paired)
    if lacking:
        yield PromptsUntimed(full_name(row), lacking, len(asked))
