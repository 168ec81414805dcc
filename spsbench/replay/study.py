"""A replay from one end to the other: texts, drafters and K in, what each cell would give out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spsbench.axes import FIXED, MODIFIED_REJECTION
from spsbench.decode.replay import TextLoops
from spsbench.engines.base import Engine
from spsbench.engines.rescore import teacher_force
from spsbench.models.pair import Pair
from spsbench.records import Arm, Generation, Request, Spec
from spsbench.replay.cells import Cell, cell
from spsbench.replay.prediction import Predicted, Timed, predict, work_of
from spsbench.replay.rehearsal import LoopTimes, rehearse
from spsbench.replay.replaying import replay
from spsbench.replay.texts import Written
from spsbench.runner.backends import EAGER, Backends
from spsbench.store import read_frames

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """One drafter with one K.

    Attributes:
        cell: its loops over the texts.
        timed: its work with times of loops here; None if nothing was timed.
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
    written: Written, pair: Pair, drafters: Sequence[Spec], ks: Sequence[int], budget_s: float, told: Told
) -> Study:
    """Replay every drafter with every K, and time loops of each.

    Args:
        written: the texts.
        pair: the models.
        drafters: each once.
        ks: lookaheads from 1.
        budget_s: for timing loops of all cells; 0 times none.
        told: hears what begins.

    Raises:
        UsageError: a drafter cannot be replayed.
    """
    told(f"Reading {len(written.texts)} texts with {', '.join(map(str, drafters))}")
    replayed = replay(written.texts, pair, written.sampling, drafters, max(ks))
    laws = {(each.drafter, k): list(each.loops(k)) for each in replayed for k in ks}
    cells = {key: cell(*key, written.texts, own) for key, own in laws.items()}
    measured = measured_lengths(written)
    times: dict[str, LoopTimes] = {}
    if budget_s > 0:
        told(f"Timing loops for {budget_s:g} s")
        times = _times(written, pair, list(cells.values()), budget_s)
    found = tuple(
        Found(own, _timed(written, own, times, laws[key]), measured.get((str(own.drafter), own.k)))
        for key, own in cells.items()
    )
    return Study(written, found, _timed(written, None, times))


def measured_lengths(written: Written) -> dict[tuple[str, int], float]:
    """Tokens per loop of the run's own SpS arms under this sampling, by drafter and K."""
    loops = read_frames(written.directory).loops
    found = {}
    for arm in written.info["arms"]:
        plain = (arm["rule"], arm["policy"], arm["engine"]) == (MODIFIED_REJECTION, FIXED, EAGER)
        if arm["method"] == "sps" and plain and arm["sampling"] == written.sampling_name:
            own = loops[loops["arm"] == arm["arm"]]
            if len(own):
                found[str(arm["drafter"]), int(arm["k"])] = float(own["emitted"].mean())
    return found


def _arm(written: Written, cell: Cell | None = None) -> Arm:
    name, sampling = written.sampling_name, written.sampling
    if cell is None:
        return Arm("ars", 0, EAGER, name, sampling)
    return Arm("sps", cell.k, EAGER, name, sampling, cell.drafter)


def _times(written: Written, pair: Pair, cells: Sequence[Cell], budget_s: float) -> dict[str, LoopTimes]:
    window = min(pair.target.context_window, pair.draft.context_window)
    backends = Backends(pair, window, corpus=tuple({text.prompt: None for text in written.texts}))
    arms = [_arm(written), *(_arm(written, cell) for cell in cells)]
    engines: dict[str, Engine] = {arm.name: backends.build(arm) for arm in arms}
    most = {arm.name: arm.k + 1 for arm in arms}

    def read(request: Request, generation: Generation) -> None:
        teacher_force(pair.target, pair.draft, request.prompt_ids, generation.tokens, request.sampling)

    seed = written.config.seed
    return rehearse(engines, most, written.texts, written.sampling, window, budget_s, read, seed)


def _timed(
    written: Written,
    cell: Cell | None,
    times: dict[str, LoopTimes],
    laws: Iterable[TextLoops] | None = None,
) -> Timed | None:
    """A cell's work, or that of ArS without one, with its times if there are any."""
    own = times.get(_arm(written, cell).name)
    return None if own is None else Timed(work_of(written.texts, laws), own)
