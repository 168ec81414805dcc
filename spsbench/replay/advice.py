"""Which drafter and which K: chosen on one half of the prompts, judged on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.predict.recommend import FEWEST_PROMPTS, halves
from spsbench.records import Interval
from spsbench.replay.prediction import Timed, faster
from spsbench.replay.study import Found, Study


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cell on the judging half.

    Attributes:
        found: the cell; None for ArS.
        speedup: over ArS.
        slower: how many times the advised one's time a token it takes; 1 for that one.
    """

    found: Found | None
    speedup: Interval
    slower: Interval


@dataclass(frozen=True, slots=True)
class Advice:
    """What to use.

    Attributes:
        best: the advised cell; ArS where nothing was faster on the choosing half.
        others: the best K of every other drafter and ArS, the fastest first, by the choosing half.
        close: further K of the advised drafter that are not clearly slower.
        choosing, judging: names of prompts.
    """

    best: Candidate
    others: tuple[Candidate, ...]
    close: tuple[int, ...]
    choosing: tuple[str, ...]
    judging: tuple[str, ...]


def advise(study: Study) -> Advice:
    """Choose among the cells of a study that was timed.

    Raises:
        ValueError: nothing was timed, or there are fewer than ``FEWEST_PROMPTS`` prompts.
    """
    names = list(dict.fromkeys(text.name for text in study.written.texts))
    if study.ars is None or len(names) < FEWEST_PROMPTS:
        raise ValueError(f"{len(names)} prompts are too few to choose and to judge on, or nothing was timed")
    sides = halves(names)
    choosing, judging = ([names.index(name) for name in side] for side in sides)
    ranked = sorted(_timed(study), key=lambda pair: pair[1].part(choosing).mean_s())
    best, best_timed = ranked[0]
    ars = study.ars.part(judging)

    def candidate(found: Found | None, timed: Timed) -> Candidate:
        own = timed.part(judging)
        return Candidate(found, faster(ars, own), faster(own, best_timed.part(judging)))

    first: dict[str, Candidate] = {}
    close: list[int] = []
    for found, timed in ranked[1:]:
        name = _name(found)
        if name == _name(best):
            assert found is not None
            low = faster(timed.part(judging), best_timed.part(judging)).low
            close += [found.cell.k] if low is None or low <= 1 else []
        elif name not in first:
            first[name] = candidate(found, timed)
    return Advice(
        candidate(best, best_timed), tuple(first.values()), tuple(sorted(close)), *map(tuple, sides)
    )


def _timed(study: Study) -> Sequence[tuple[Found | None, Timed]]:
    assert study.ars is not None
    cells = [(one, one.timed) for one in study.found if one.timed is not None]
    return [(None, study.ars), *cells]


def _name(found: Found | None) -> str:
    return "ArS" if found is None else found.cell.name
