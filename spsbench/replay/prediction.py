"""From loops over texts and the times of loops here to milliseconds a token, and to a speedup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.decode.replay import Floats, TextLoops
from spsbench.records import Interval
from spsbench.replay.rehearsal import LoopTimes
from spsbench.replay.texts import TargetText
from spsbench.stats.bootstrap import LEVEL, RESAMPLES, SEED


@dataclass(frozen=True)
class Work:
    """What decoding the texts takes, by prompt.

    Attributes:
        tokens: [prompts] of its texts.
        loops: [prompts] expected.
        contexts: [prompts] tokens before a loop, summed over its loops.
    """

    tokens: Floats
    loops: Floats
    contexts: Floats

    def per_token(self, counts: Floats, line: tuple[float, float]) -> float:
        """Seconds a token, if each prompt counts so often and a loop takes what a line says."""
        at_zero, slope = line
        seconds = at_zero * (counts @ self.loops) + slope * (counts @ self.contexts)
        return float(seconds / (counts @ self.tokens))


def work_of(texts: Sequence[TargetText], laws: Iterable[TextLoops] | None = None) -> Work:
    """Of loops over texts; of ArS, a loop a token, without laws."""
    names = list(dict.fromkeys(text.name for text in texts))
    sums = np.zeros((3, len(names)))
    starts = ([np.ones(len(text.tokens)) for text in texts]) if laws is None else [law.starts for law in laws]
    for text, begun in zip(texts, starts, strict=True):
        before = len(text.prompt) + np.arange(len(text.tokens))
        sums[:, names.index(text.name)] += np.array([len(text.tokens), begun.sum(), begun @ before])
    return Work(*sums)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a cell.

    Attributes:
        ms_per_token: with its interval.
        speedup: over ArS, likewise; prompts and rounds of timing are resampled together.
    """

    ms_per_token: Interval
    speedup: Interval


def predict(own: Work, ars: Work, own_times: LoopTimes, ars_times: LoopTimes) -> Predicted:
    """Predict one cell.

    Args:
        own, ars: of the same texts.
        own_times, ars_times: of the same rounds.
    """
    prompts, rounds = len(own.tokens), int(ars_times.rounds.max()) + 1
    everything = np.ones(prompts), np.ones(rounds)
    rng = np.random.default_rng(SEED)
    draws = [_both(own, ars, own_times, ars_times, *everything)]
    for _ in range(RESAMPLES):
        counted = (
            np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64) for n in (prompts, rounds)
        )
        draws.append(_both(own, ars, own_times, ars_times, *counted))
    point, drawn = np.array(draws[0]), np.array(draws[1:])
    ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    found = [Interval(float(point[i]), float(ends[0, i]), float(ends[1, i])) for i in range(2)]
    return Predicted(*found)


def _both(
    own: Work, ars: Work, own_times: LoopTimes, ars_times: LoopTimes, prompts: Floats, rounds: Floats
) -> tuple[float, float]:
    """(ms/token of the cell, its speedup)."""
    ours = own.per_token(prompts, own_times.line(rounds))
    theirs = ars.per_token(prompts, ars_times.line(rounds))
    return 1e3 * ours, theirs / ours
