"""A replay from one end to the other: texts, drafters and K in, what each cell would give out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spsbench.decode.replay import TextLoops
from spsbench.drafters.kind import DRAFT
from spsbench.drafters.registry import drafter_kind
from spsbench.engines.base import Engine
from spsbench.engines.rescore import teacher_force
from spsbench.models.pair import Pair
from spsbench.records import Arm, Generation, Request, Spec
from spsbench.replay.calibration import Calibration
from spsbench.replay.cells import Cell, cell
from spsbench.replay.prediction import Predicted, Timed, predict, work_of
from spsbench.replay.rehearsal import LoopTimes, rehearse
from spsbench.replay.replaying import replay
from spsbench.replay.texts import Written
from spsbench.runner.backends import EAGER, Backends

Told = Callable[[str], None]


@dataclass(frozen=True, eq=False, slots=True)
class Sought:
    """A drafter to replay.

    Attributes:
        drafter: what it is.
        pair: what it is built from.
        draft: the name of the draft model, where several are compared; else empty.
    """

    drafter: Spec
    pair: Pair
    draft: str = ""

    @property
    def needs_draft(self) -> bool:
        """Whether the draft model makes a difference to it."""
        return DRAFT in drafter_kind(self.drafter.name).needs_of(self.drafter)


@dataclass(frozen=True, slots=True)
class Found:
    """One drafter with one K.

    Attributes:
        cell: its loops over the texts.
        timed: its work with times of loops; None if there are none.
        measured: tokens per loop of the run's own arm like it; None if it has none.
    """

    cell: Cell
    timed: Timed | None
    measured: float | None


@dataclass(frozen=True, slots=True)
class Study:
    """Every cell.

    Attributes:
        written: the texts.
        found: in the order of drafters and K.
        ars: the baseline's work with its times; None if nothing was timed.
    """

    written: Written
    found: tuple[Found, ...]
    ars: Timed | None

    def predicted(self, one: Found) -> Predicted | None:
        """Of a cell, over all texts."""
        return None if one.timed is None or self.ars is None else predict(one.timed, self.ars)


def study(
    written: Written,
    sought: Sequence[Sought],
    ks: Sequence[int],
    times: float | Calibration,
    told: Told,
) -> Study:
    """Replay every drafter with every K, and give each the time of its loops.

    Args:
        written: the texts.
        sought: each once; their pairs share the target.
        ks: lookaheads from 1.
        times: seconds for timing loops of all cells here, 0 for none; or times of another machine.
        told: hears what begins.

    Raises:
        UsageError: a drafter cannot be replayed, or another machine's times say nothing of it.
    """
    told(f"Reading {len(written.texts)} texts with {', '.join(map(str, _drafters(sought)))}")
    laws = _laws(written, sought, ks)
    cells = {key: _cell(written, key, own) for key, own in laws.items()}
    taken: Mapping[_Key | None, LoopTimes] = {}
    if isinstance(times, Calibration):
        _require_models(times, sought)
        taken = {None: times.ars()} | {key: times.loops(*_asked(key)) for key in cells}
    elif times > 0:
        told(f"Timing loops for {times:g} s")
        taken = _times(written, list(cells), times)
    found = tuple(
        Found(own, _timed(written, taken.get(key), laws[key]), _measured(written, key))
        for key, own in cells.items()
    )
    return Study(written, found, _timed(written, taken.get(None)))


_Key = tuple[Sought, int]
"""A drafter and a K; ArS is None where times are kept."""


def _asked(key: _Key) -> tuple[Spec, int]:
    sought, k = key
    return sought.drafter, k


def _require_models(times: Calibration, sought: Sequence[Sought]) -> None:
    for each in sought:
        models = {"target": each.pair.target} | ({"draft": each.pair.draft} if each.needs_draft else {})
        times.require_models({role: model.parameters for role, model in models.items()})


def _drafters(sought: Sequence[Sought]) -> list[Spec]:
    return list(dict.fromkeys(each.drafter for each in sought))


def _laws(written: Written, sought: Sequence[Sought], ks: Sequence[int]) -> dict[_Key, list[TextLoops]]:
    """Of every cell; the drafters of one pair read the texts together."""
    found: dict[_Key, list[TextLoops]] = {}
    for pair in {id(each.pair): each.pair for each in sought}.values():
        own = [each for each in sought if each.pair is pair]
        replayed = replay(written.texts, pair, written.sampling, [each.drafter for each in own], max(ks))
        for each, texts in zip(own, replayed, strict=True):
            found |= {(each, k): list(texts.loops(k)) for k in ks}
    return {(each, k): found[each, k] for each in sought for k in ks}


def _cell(written: Written, key: _Key, laws: Sequence[TextLoops]) -> Cell:
    sought, k = key
    return cell(sought.drafter, sought.draft, k, written.texts, laws)


def _measured(written: Written, key: _Key) -> float | None:
    """Tokens per loop of the run's own arm like this, if it had this draft."""
    sought, k = key
    if sought.needs_draft and written.identity is not None:
        ran, here = written.identity["draft"], sought.pair.info["draft"]
        if ran["fingerprint"] != here["fingerprint"]:
            return None
    return written.measured.get((str(sought.drafter), k))


def _times(written: Written, cells: Sequence[_Key], budget_s: float) -> dict[_Key | None, LoopTimes]:
    """Loops of ArS and of every cell, run here in turns."""
    pairs = {id(sought.pair): sought.pair for sought, _ in cells}
    window = min(model.context_window for pair in pairs.values() for model in (pair.target, pair.draft))
    corpus = tuple({text.prompt: None for text in written.texts})
    backends = {number: Backends(pair, window, corpus=corpus) for number, pair in pairs.items()}
    first = cells[0][0].pair
    engines: dict[_Key | None, Engine] = {None: backends[id(first)].build(_arm(written))}
    for key in cells:
        sought, k = key
        engines[key] = backends[id(sought.pair)].build(_arm(written, sought.drafter, k))
    most = {key: 1 if key is None else key[1] + 1 for key in engines}

    def read(request: Request, generation: Generation) -> None:
        teacher_force(first.target, first.draft, request.prompt_ids, generation.tokens, request.sampling)

    seed = written.config.seed
    return rehearse(engines, most, written.texts, written.sampling, window, budget_s, read, seed)


def _arm(written: Written, drafter: Spec | None = None, k: int = 0) -> Arm:
    name, sampling = written.sampling_name, written.sampling
    if drafter is None:
        return Arm("ars", 0, EAGER, name, sampling)
    return Arm("sps", k, EAGER, name, sampling, drafter)


def _timed(
    written: Written, times: LoopTimes | None, laws: Iterable[TextLoops] | None = None
) -> Timed | None:
    """The work of loops, or that of ArS without any, with its times if there are any."""
    return None if times is None else Timed(work_of(written.texts, laws), times)
