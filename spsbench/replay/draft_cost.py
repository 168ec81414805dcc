"""c of several drafts: the time of one draft run over that of one target run (Leviathan et al. 2022, 3.3)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from spsbench.axes import EAGER
from spsbench.engines.base import Engine
from spsbench.engines.rescore import teacher_force
from spsbench.models.pair import Pair
from spsbench.records import Arm, Generation, Request, SamplingParams
from spsbench.replay.texts import TargetText
from spsbench.runner.engines import EngineFactory

ROUNDS, TOKENS = 8, 32
"""Each engine writes so many tokens in a round; the first round is not counted."""

_K = 4
_TARGET = ""


def draft_costs(
    texts: Sequence[TargetText],
    pairs: Mapping[str, Pair],
    sampling: SamplingParams,
    seed: int,
    rounds: int | None = None,
) -> dict[str, float]:
    """Measure c of every draft, in turns with the target alone.

    On a CPU it is the time of drafting a token within loops over that of a target step, as a run measures it;
    elsewhere, where the phases of a loop are not seen, of a token that the draft writes alone.

    Returns:
        by draft the median over rounds of its seconds over the target's in the same round.
    """
    engines = _engines(pairs, sampling)
    shuffler, order = random.Random(seed), list(engines)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    models = [model for pair in pairs.values() for model in (pair.target, pair.draft)]
    for number in range(-1, rounds or ROUNDS):
        prompt = shuffler.choice(texts).prompt
        room = min(model.room_behind(prompt) for model in models) - _K - 1
        limit = max(1, min(TOKENS, room))
        shuffler.shuffle(order)
        for name in order:
            request = Request(prompt, limit, (), sampling, seed=seed + number + 1, fixed_length=True)
            made = engines[name].generate(request)
            if number >= 0:
                seconds[name].append(_run_s(made))
            # As in a run, so that the next model finds the caches as it does there.
            teacher_force(models[0], None, prompt, made.tokens, sampling)
    base = np.array(seconds[_TARGET])
    return {name: float(np.median(np.array(seconds[name]) / base)) for name in pairs}


def _engines(pairs: Mapping[str, Pair], sampling: SamplingParams) -> dict[str, Engine]:
    """The target's, and one of every draft."""
    first = next(iter(pairs.values()))
    window = first.target.context_window  # no engine here has a fixed shape
    engines = {_TARGET: EngineFactory(first, window).build(Arm("ars", 0, EAGER, "timed", sampling))}
    for name, pair in pairs.items():
        in_loops = Arm("sps", _K, EAGER, "timed", sampling)
        alone = Arm("draft", 0, EAGER, "timed", sampling)
        engines[name] = EngineFactory(pair, window).build(in_loops if pair.device.type == "cpu" else alone)
    return engines


def _run_s(made: Generation) -> float:
    """Seconds of a run of the draft where it drafted, else of the model that wrote the text."""
    loops = made.loops or []
    drafted = sum(loop.drafted for loop in loops)
    if drafted:
        return sum(loop.draft_s or 0.0 for loop in loops) / drafted
    steps = [loop.verify_s for loop in loops]
    seen = [step for step in steps if step is not None]
    return sum(seen) / len(seen) if seen else made.decode_s / len(made.tokens)
