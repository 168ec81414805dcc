"""A replay from start to end: texts, drafters and K in, the prediction for each cell out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spsbench.axes import EAGER, FIXED
from spsbench.drafters.registry import DRAFT, drafter_kind
from spsbench.engines.local import Engine
from spsbench.engines.rescore import teacher_force
from spsbench.law.text_loops import Floats, TextLoops
from spsbench.models.pair import Pair
from spsbench.records import Arm, Generation, Request, Spec
from spsbench.replay.prediction import Cell, Even, Predicted, Timed, break_even, cell, predict, work_of
from spsbench.replay.reading import NO_READERS, Readers, Replayed, model_bytes, replay
from spsbench.replay.texts import AsRun, Ran, Written
from spsbench.replay.times import LEAST_ROUNDS, Calibration, LoopTimes, rehearse
from spsbench.runner.engines import EngineFactory

Told = Callable[[str], None]
TimesOf = Callable[["Sought", Floats, int], LoopTimes]
DrafterPolicy = tuple[Spec, Spec]


@dataclass(frozen=True, eq=False, slots=True)
class Sought:
    """A drafter to replay."""

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
        bytes: of weights and caches, the target's among them, at the longest text.
    """

    cell: Cell
    timed: Timed | None
    measured: float | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Study:
    """Every cell.

    Attributes:
        ars_bytes: of the target's weights and cache at the longest text.
    """

    written: Written
    found: tuple[Found, ...]
    ars: Timed | None
    ars_bytes: int
    policy_times: Mapping[DrafterPolicy, LoopTimes]
    ran: Mapping[AsRun, Ran]

    def predicted(self, one: Found) -> Predicted | None:
        """Of a cell, over all texts."""
        return None if one.timed is None or self.ars is None else predict(one.timed, self.ars)

    def even(self, one: Found) -> Even | None:
        """Where a cell would be as fast as ArS."""
        return None if one.timed is None or self.ars is None else break_even(one.timed, self.ars, one.cell.k)


def study(
    written: Written,
    sought: Sequence[Sought],
    ks: Sequence[int],
    times: float | Calibration,
    told: Told,
    readers: Readers = NO_READERS,
    under: Sequence[DrafterPolicy] = (),
) -> Study:
    """Replay every drafter with every K, and give each the time of its loops.

    Args:
        times: seconds for timing loops of all cells here, 0 for none; or times of another machine.
    """
    told(f"Reading {len(written.texts)} texts with {', '.join(map(str, _drafters(sought)))}")
    replayed = _replayed(written, sought, max(ks), readers)
    laws = _laws(replayed, ks)
    cells = {key: _cell(written, key, own) for key, own in laws.items()}
    taken: Mapping[_Key | None, LoopTimes] = {}
    adapting: dict[DrafterPolicy, _Key] = {}
    if isinstance(times, Calibration):
        _require_models(times, sought)
        taken = {None: times.ars()} | {key: times.loops(key.sought.drafter, key.k) for key in cells}
    elif times > 0:
        told(f"Timing loops for {times:g} s")
        adapting = {each: _under(sought, *each, max(ks)) for each in under}
        taken = _times(written, cells, times, list(adapting.values()))
    return _study(written, replayed, laws, cells, taken, adapting)


def study_of(
    written: Written, replayed: Mapping[Sought, Replayed], ks: Sequence[int], ars: LoopTimes, times: TimesOf
) -> Study:
    """A study of what was read and timed already."""
    laws = _laws(replayed, ks)
    cells = {key: _cell(written, key, own) for key, own in laws.items()}
    taken: dict[_Key | None, LoopTimes] = {None: ars}
    for key, own in laws.items():
        taken[key] = times(key.sought, replayed[key.sought].shares(own, key.k), key.k)
    return _study(written, replayed, laws, cells, taken, {})


def _study(
    written: Written,
    replayed: Mapping[Sought, Replayed],
    laws: Mapping[_Key, Sequence[TextLoops]],
    cells: Mapping[_Key, Cell],
    taken: Mapping[_Key | None, LoopTimes],
    adapting: Mapping[DrafterPolicy, _Key],
) -> Study:
    sought = list(replayed)
    ars_bytes = model_bytes(sought[0].pair.target, written.longest)
    found = tuple(
        Found(
            own,
            _timed(written, taken.get(key), laws[key]),
            _measured(written, key),
            ars_bytes + replayed[key.sought].bytes,
        )
        for key, own in cells.items()
    )
    policy_times = {each: taken[key] for each, key in adapting.items()}
    return Study(
        written, found, _timed(written, taken.get(None)), ars_bytes, policy_times, _ran(written, sought)
    )


class _Key(NamedTuple):
    """What loops are timed of; ArS is None where times are kept."""

    sought: Sought
    k: int
    policy: Spec = Spec(FIXED)


def _laws(replayed: Mapping[Sought, Replayed], ks: Sequence[int]) -> dict[_Key, Sequence[TextLoops]]:
    return {_Key(each, k): list(own.loops(k)) for each, own in replayed.items() for k in ks}


def _under(sought: Sequence[Sought], drafter: Spec, policy: Spec, k: int) -> _Key:
    return _Key(next(each for each in sought if each.drafter == drafter), k, policy)


def _require_models(times: Calibration, sought: Sequence[Sought]) -> None:
    for each in sought:
        models = {"target": each.pair.target} | ({"draft": each.pair.draft} if each.needs_draft else {})
        times.require_models({role: model.parameters for role, model in models.items()})


def _drafters(sought: Sequence[Sought]) -> list[Spec]:
    return list(dict.fromkeys(each.drafter for each in sought))


def _replayed(written: Written, sought: Sequence[Sought], k: int, readers: Readers) -> dict[Sought, Replayed]:
    """Each over every text; the drafters of one pair read the texts together."""
    found: dict[Sought, Replayed] = {}
    for pair in {id(each.pair): each.pair for each in sought}.values():
        own = [each for each in sought if each.pair is pair]
        drafters = [each.drafter for each in own]
        read = replay(written.texts, pair, written.sampling, drafters, k, readers=readers)
        found |= zip(own, read, strict=True)
    return found


def _cell(written: Written, key: _Key, laws: Sequence[TextLoops]) -> Cell:
    return cell(key.sought.drafter, key.sought.draft, key.k, written.texts, laws)


def _measured(written: Written, key: _Key) -> float | None:
    """Tokens per loop of the run's own arm like this, if it had this draft."""
    ran = _ran(written, [key.sought]).get((str(key.sought.drafter), key.k, str(key.policy)))
    return None if ran is None else ran.tokens_per_loop


def _ran(written: Written, sought: Sequence[Sought]) -> dict[AsRun, Ran]:
    """What the run's own arms did, of drafters that are sought with the run's own draft."""
    own = {str(each.drafter) for each in sought if not each.needs_draft or _has_draft_of(written, each.pair)}
    return {name: ran for name, ran in written.ran.items() if name[0] in own}


def _has_draft_of(written: Written, pair: Pair) -> bool:
    if written.identity is None:
        return False
    return bool(written.identity["draft"]["fingerprint"] == pair.info["draft"]["fingerprint"])


def _times(
    written: Written, cells: Mapping[_Key, Cell], budget_s: float, more: Sequence[_Key]
) -> Mapping[_Key | None, LoopTimes]:
    """Loops of ArS, of the cells and of more, run here in turns."""
    pairs = {id(key.sought.pair): key.sought.pair for key in cells}
    models = [model for pair in pairs.values() for model in (pair.target, pair.draft)]
    first = next(iter(pairs.values()))
    draft = None if first.is_one else first.draft

    def room(prompt: Sequence[int]) -> int:
        return min(model.room_behind(prompt) for model in models)

    def read(request: Request, generation: Generation) -> None:
        teacher_force(first.target, draft, request.prompt_ids, generation.tokens, request.sampling)

    engines = _engines(written, [*cells, *more], pairs, min(model.context_window for model in models))
    most = {key: 1 if key is None else key.k + 1 for key in engines}
    law, seed = written.sampling, written.config.seed
    return rehearse(engines, most, written.texts, law, room, budget_s, read, seed, LEAST_ROUNDS)


def _engines(
    written: Written, keys: Sequence[_Key], pairs: Mapping[int, Pair], window: int
) -> dict[_Key | None, Engine]:
    """Of ArS and of every cell."""
    corpus = tuple({text.prompt: None for text in written.texts})
    backends = {number: EngineFactory(pair, window, corpus=corpus) for number, pair in pairs.items()}
    name, sampling = written.sampling_name, written.sampling
    ars = Arm("ars", 0, EAGER, name, sampling)
    engines: dict[_Key | None, Engine] = {None: next(iter(backends.values())).build(ars)}
    for key in keys:
        arm = Arm("sps", key.k, EAGER, name, sampling, key.sought.drafter, policy=key.policy)
        engines[key] = backends[id(key.sought.pair)].build(arm)
    return engines


def _timed(
    written: Written, times: LoopTimes | None, laws: Iterable[TextLoops] | None = None
) -> Timed | None:
    """The work of loops, or that of ArS without any, with its times if there are any."""
    return None if times is None else Timed(work_of(written.texts, laws), times)
