"""Which drafter and which K: chosen on one half of the prompts, evaluated on the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.errors import UsageError
from spsbench.predict.halves import FEWEST_PROMPTS, halves
from spsbench.records import Interval
from spsbench.replay.objective import MEAN
from spsbench.replay.prediction import Even, Timed, faster
from spsbench.replay.study import Found, Study

_TAIL = 0.99


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cell on the judging half.

    Attributes:
        p99_s: seconds that 99% of the sequences stay below.
        bytes: of weights and caches.
    """

    found: Found | None
    speedup: Interval
    slower: Interval
    p99_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What to use."""

    best: Candidate
    others: tuple[Candidate, ...]
    close: tuple[int, ...]
    choosing: tuple[str, ...]
    judging: tuple[str, ...]
    even: Even | None
    too_large: tuple[str, ...]


def advise(study: Study, objective: str = MEAN, memory_bytes: float = math.inf) -> Advice:
    """Choose among the cells of a study that was timed.

    Args:
        memory_bytes: cells that hold more are left out.
    """
    names = list(dict.fromkeys(text.name for text in study.written.texts))
    if study.ars is None or len(names) < FEWEST_PROMPTS:
        raise ValueError(f"{len(names)} prompts are too few to choose and to judge on, or nothing was timed")
    sides = halves(names)
    choosing, judging = ([names.index(name) for name in side] for side in sides)
    _require_room(study, memory_bytes)

    def worth(pair: tuple[Found | None, Timed]) -> float:
        own = pair[1].part(choosing)
        return own.mean_s() if objective == MEAN else own.quantile_s(_TAIL)

    ranked = sorted(_timed(study, memory_bytes), key=worth)
    best, best_timed = ranked[0]
    ars = study.ars.part(judging)

    def candidate(found: Found | None, timed: Timed) -> Candidate:
        own = timed.part(judging)
        slower = faster(own, best_timed.part(judging))
        size = study.ars_bytes if found is None else found.bytes
        return Candidate(found, faster(ars, own), slower, own.quantile_s(_TAIL), size)

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
        candidate(best, best_timed),
        tuple(first.values()),
        tuple(sorted(close)),
        tuple(sides[0]),
        tuple(sides[1]),
        None if best is None else study.even(best),
        tuple(dict.fromkeys(one.cell.name for one in study.found if one.bytes > memory_bytes)),
    )


def _require_room(study: Study, memory_bytes: float) -> None:
    if study.ars_bytes > memory_bytes:
        raise UsageError(
            f"the target alone needs {study.ars_bytes / 1e9:.2f} GB with its cache.",
            flag="--memory",
            remedy="Give more, or a smaller target.",
        )


def _timed(study: Study, memory_bytes: float) -> Sequence[tuple[Found | None, Timed]]:
    assert study.ars is not None
    fitting = [one for one in study.found if one.bytes <= memory_bytes]
    cells = [(one, one.timed) for one in fitting if one.timed is not None]
    return [(None, study.ars), *cells]


def _name(found: Found | None) -> str:
    return "ArS" if found is None else found.cell.name
