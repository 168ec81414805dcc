"""Whether the times of arms can be: each held against its own loops, and none left out without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.base.axes import label
from spsbench.stats.speedup import column, finished, in_both, matched_by
from spsbench.store.summary_types import ArmRow

if TYPE_CHECKING:
    import pandas as pd

SLACK = 0.05
"""Share by which an arm's seconds may leave those of its loops."""

SLACK_LOOPS = 0.5
"""Mean loops that a sequence may have beyond: the clock runs on before its first loop and after its last one.
On a CPU that others used, too, that were 60 microseconds of loops of 12 ms."""

_NAMED = 3


def doubts(
    samples: Mapping[str, pd.DataFrame], loops: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> list[str]:
    """Return what must stand before any speedup: times that contradict the loops, and prompts without one."""
    return [
        sentence
        for row in rows
        if (own := samples.get(row["arm"])) is not None
        for sentence in (
            *_against_loops(row, finished(own), loops.get(row["arm"])),
            *_without_a_time(row, own, samples),
        )
    ]


def _against_loops(row: ArmRow, done: pd.DataFrame, loops: pd.DataFrame | None) -> Iterator[str]:
    """Yield a sentence where an arm's decoding seconds are not those of its loops, as far as these are seen.

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
    yield (
        f"The times of {label(row)}, {row['sampling']}, contradict its loops: {decode_s.sum():.4g} s, of "
        f"which loops took {loop_s.sum():.4g} s; most of all in {worst['example_id']} "
        f"({worst['decode_s']:.4g} s and {worst['in_loops_s']:.4g} s). Do not use its speedup."
    )


def _with_loops(done: pd.DataFrame, loops: pd.DataFrame) -> pd.DataFrame:
    """Return sequences with the seconds of their loops, ``in_loops_s``; NaN where these are not seen."""
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


def _without_a_time(row: ArmRow, own: pd.DataFrame, samples: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Yield a sentence where a speedup leaves out prompts: their times are missing on one of its sides."""
    base = samples.get(row["baseline"] or "")
    if base is None or row["speedup"] is None:
        return
    paired = {*in_both(base, own)[1]["example_id"]}
    asked = dict.fromkeys((*base["example_id"], *own["example_id"]))
    lacking = [str(name) for name in asked if name not in paired]
    if lacking:
        names = ", ".join(lacking[:_NAMED]) + f" and {len(lacking) - _NAMED} more" * (len(lacking) > _NAMED)
        yield (
            f"{len(lacking)} of {len(asked)} prompts were not timed by both {label(row)}, {row['sampling']}, "
            f"and its baseline: the speedup is without {names}."
        )
