"""Time again what CPU contention disturbed, and a run that is shorter than what a machine's state lasts.

A sequence is deterministic, so a further timing of it is a timing of the same work. What counts is decided
by CPU contention meanwhile (``store.timings``). How fast a machine is also changes within tens of seconds
by what no counter shows, its neighbours' memory traffic for one: a run of a few seconds meets one such
state, and is timed until it has met several, which its interval then holds (``stats.certainty``; decision
0048).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from spsbench.base.records import Arm, Generation, Sample
from spsbench.engines.arms import is_peer, is_repeatable
from spsbench.runner.engines import Attempt, reason_of
from spsbench.runner.messages import OTHER_TOKENS
from spsbench.runner.planning import Plan, Watcher
from spsbench.runner.turns import Turn, all_turns, derive_seed, together
from spsbench.store import RunStore
from spsbench.store.summary_types import Remeasured, RemeasuringEnd
from spsbench.store.timings import CLEAN, Round, Timing, disturbed, shares_lost

LEAST_S = 30.0
"""A run that measured for fewer seconds is timed for so many more."""

FEWEST_PROMPTS = 20
"""Below, prompts decide how wide an interval is, and a longer look at the machine adds little."""

_HOPELESS = 40
"""After so many rounds in a row of which none came out clean the rest is left as it is."""

Read = Callable[[Turn, Attempt], Sample]
Generate = Callable[[Iterable[list[Turn]], Read], Iterator[Sample]]
"""Has turns generated, each group at once, and makes samples of the answers."""


class Remeasuring:
    """Which rounds of a run are timed again, until when, and what came of it."""

    def __init__(self, plan: Plan, store: RunStore, condition: int, arms: Collection[Arm]) -> None:
        self._plan, self._store, self._condition = plan, store, condition
        self._differing = list((store.run_info().get("remeasured") or {}).get("differing", []))
        done = store.done() if all(map(is_repeatable, plan.arms)) else set()
        self._rounds: dict[Round, list[Turn]] = {}
        for turn in all_turns(plan) if done else ():
            if turn.key in done:
                self._rounds.setdefault(turn.round, []).append(turn)
        # An arm whose engine does not run now cannot be timed, and the others not without it.
        able = {*arms}
        for place, turns in [*self._rounds.items()]:
            if not {turn.arm for turn in turns} <= able:
                del self._rounds[place]
        timings = store.timings()
        self._measured_s = sum(timing.spent_s for timing in timings if timing.attempt == 1)
        self._spent_s = sum(timing.spent_s for timing in timings if timing.attempt > 1)

    @property
    def budget_s(self) -> float:
        """Seconds for all further timings; by default as many as the first took, ``LEAST_S`` for a short
        run."""
        wanted_s = self._plan.config.remeasure_s
        if wanted_s is not None:
            return wanted_s
        # An interval that a run was stopped by holds prompts alone: nothing is gained by a longer look.
        looks = self._plan.config.precision is None and len(self._plan.prompts) >= FEWEST_PROMPTS
        return LEAST_S if looks and self._measured_s < LEAST_S else self._measured_s

    @property
    def _is_short(self) -> bool:
        """Whether the run has seen few states of its machine so far."""
        left = self.budget_s > max(self._spent_s, self._measured_s)
        return left and self._plan.config.remeasure_s is None

    def is_due(self) -> bool:
        """Return whether there is a round to be timed again, and time for it."""
        return bool(self._due_rounds())

    def carry_out(self, generate: Generate, watcher: Watcher) -> None:
        """Time rounds again, each timing into the store at once."""
        ended: RemeasuringEnd | None = None
        hopeless, announced = 0, set[bool]()
        while ended is None:
            wanted = self._due_rounds()
            if not wanted:
                ended = "budget"
            elif self._is_short not in announced:
                announced.add(self._is_short)
                watcher.remeasuring(len(wanted), short=self._is_short)
            for place, attempt in wanted:
                if self._spent_s >= self.budget_s:
                    ended = "budget"
                    break
                if hopeless >= _HOPELESS:
                    ended = "hopeless"
                    break
                made: list[Timing] = []
                for sample in generate(
                    self._shuffled_groups(place, attempt), partial(self._retimed_sample, attempt)
                ):
                    sample.condition = self._condition
                    made.append(self._store.append(sample))
                    self._spent_s += made[-1].spent_s
                clean = all(share is None or share <= CLEAN for share in shares_lost(made))
                hopeless = 0 if clean else hopeless + 1
                watcher.remeasured()
        self._note_further_timings(ended)

    def _due_rounds(self) -> list[tuple[Round, int]]:
        """With their next attempts' numbers: disturbed ones, or all of a short run."""
        if self.budget_s <= self._spent_s:
            return []
        timings = [timing for timing in self._store.timings() if timing.condition == self._condition]
        attempts: dict[Round, int] = {}
        for timing in timings:
            attempts[timing.round] = max(attempts.get(timing.round, 1), timing.attempt)
        chosen = attempts if self._is_short else disturbed(timings)
        return [(place, attempts[place] + 1) for place in chosen if place in self._rounds]

    def _shuffled_groups(self, place: Round, attempt: int) -> Iterator[list[Turn]]:
        arms: dict[Arm, list[Turn]] = {}
        for turn in self._rounds[place]:
            arms.setdefault(turn.arm, []).append(turn)
        shuffled = [*arms]
        purpose = f"order of attempt {attempt}"
        random.Random(derive_seed(self._plan.config.seed, place[0], place[1] or 0, purpose)).shuffle(shuffled)
        turns = (replace(turn, order=order) for order, arm in enumerate(shuffled) for turn in arms[arm])
        return together(turns)

    def _retimed_sample(self, attempt: int, turn: Turn, answer: Attempt) -> Sample:
        """With an answer's times and all else as it was written before."""
        before = self._store.first(turn.key)
        sample = replace(before, attempt=attempt, order=turn.order, error=None, conditions={}, scores={})
        if not isinstance(answer, Generation):
            empty = Generation([], "", None, 0.0, 0.0, "error")
            return replace(sample, generation=empty, error=reason_of(answer))
        kept = before.generation
        if answer.tokens != kept.tokens:
            self._differing.append(f"{turn.prompt.example_id} {turn.arm.name}")
            if is_peer(turn.arm):  # its timings are of its own text
                return replace(sample, generation=replace(answer, kept_rows=None))
            sample.error = OTHER_TOKENS
            self._rounds.pop(turn.round, None)  # once is enough
        same = replace(kept, prefill_s=answer.prefill_s, decode_s=answer.decode_s)
        same.latency_s, same.loops = answer.latency_s, answer.loops
        return replace(sample, generation=same)

    def _note_further_timings(self, ended: RemeasuringEnd) -> None:
        timings = self._store.timings()
        again = [timing for timing in timings if timing.attempt > 1]
        left = disturbed(timings)
        if not again and not left:
            return
        record: Remeasured = {
            "timings": len(timings) - len(again),
            "again": len(again),
            "replaced": len(again) and self._store.replaced(),
            "disturbed": len(left),
            "seconds": self._spent_s,
            "budget_s": self.budget_s,
            "ended": ended if left else "clean",
            "differing": self._differing,
        }
        self._store.note(remeasured=record)


def is_due(plan: Plan, store: RunStore) -> bool:
    """Return whether a run that has all of its sequences is to be timed further, in its latest conditions."""
    info = store.run_info()
    wanted_s = plan.config.remeasure_s
    before = info.get("remeasured")
    if info.get("interval") is None or not store.timings():
        return False
    if before is not None and (wanted_s is None or wanted_s <= before["seconds"]):
        return False
    latest = len(info.get("conditions") or [None]) - 1
    return Remeasuring(plan, store, latest, plan.arms).is_due()
