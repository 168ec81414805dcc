"""Arms in turns: each once a round, in shuffled order, and without the rounds that others disturbed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from spsbench.base import watch
from spsbench.store import least_disturbed

Arm = TypeVar("Arm", bound=Hashable)
Made = TypeVar("Made")


def budgeted_rounds(budget_s: float, least: int = 5, most: float = 200) -> Iterator[int]:
    """Yield round numbers from -1, the warm-up: ``least`` rounds, and more while the budget lasts."""
    started, number = time.perf_counter(), -1
    while number < least or (number < most and time.perf_counter() - started < budget_s):
        yield number
        number += 1


def in_turns(
    arms: Mapping[Arm, Callable[[int], Made]], rounds: Iterable[int], seed: int
) -> dict[Arm, list[Made]]:
    """Return what every arm makes in each round, in shuffled order; -1 is the number of a warm-up.

    Rounds that others disturbed are left out, as far as enough are left.
    """
    return turns_watched(arms, rounds, seed)[0]


def turns_watched(
    arms: Mapping[Arm, Callable[[int], Made]], rounds: Iterable[int], seed: int
) -> tuple[dict[Arm, list[Made]], float]:
    """Return the same, and the mean share that CPU contention took of the remaining rounds."""
    shuffler = random.Random(seed)
    order = list(arms)
    made_by: dict[Arm, list[Made]] = {arm: [] for arm in arms}
    lost: list[float] = []
    for number in rounds:
        lost_share = watch()
        shuffler.shuffle(order)
        for arm in order:
            made = arms[arm](number)
            if number >= 0:
                made_by[arm].append(made)
        if number >= 0:
            lost.append(lost_share())
    kept = least_disturbed(lost)
    share = float(np.mean(np.array(lost)[kept]))
    return {arm: [made[number] for number in kept] for arm, made in made_by.items()}, share
