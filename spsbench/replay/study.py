"""A replay from one end to the other: texts, drafters and K in, what each cell would give out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spsbench.axes import FIXED, MODIFIED_REJECTION
from spsbench.engines.base import Engine
from spsbench.models.pair import Pair
from spsbench.records import Arm, Spec
from spsbench.replay.cells import Cell, cell
from spsbench.replay.prediction import Predicted, Work, predict, work_of
from spsbench.replay.rehearsal import LoopTimes, rehearse
from spsbench.replay.replaying import Replayed, replay
from spsbench.replay.texts import Written
from spsbench.runner.backends import EAGER, Backends
from spsbench.store import read_frames

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """One drafter with one K.

    Attributes:
        cell: its loops over the texts.
        predicted: its times here; None if nothing was timed.
        measured: tokens per loop of the run's own arm like it; None if it has none.
    """

    cell: Cell
    predicted: Predicted | None
    measured: float | None


def study(
    written: Written, pair: Pair, drafters: Sequence[Spec], ks: Sequence[int], budget_s: float, told: Told
) -> list[Found]:
    """Predict every drafter with every K.

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
    cells = [(found, cell(found, written.texts, k)) for found in replayed for k in ks]
    measured = measured_lengths(written)
    times: dict[str, LoopTimes] = {}
    if budget_s > 0:
        told(f"Timing loops for {budget_s:g} s")
        times = _times(written, pair, [cell for _, cell in cells], budget_s)
    ars = work_of(written.texts)
    return [
        Found(
            cell,
            _predicted(written, found, cell, ars, times) if times else None,
            measured.get((str(cell.drafter), cell.k)),
        )
        for found, cell in cells
    ]


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
    return rehearse(engines, most, written.texts, written.sampling, window, budget_s, written.config.seed)


def _predicted(
    written: Written, found: Replayed, cell: Cell, ars: Work, times: dict[str, LoopTimes]
) -> Predicted:
    own = work_of(written.texts, found.loops(cell.k))
    return predict(own, ars, times[_arm(written, cell).name], times[_arm(written).name])
