"""When a run ends before its last prompt: every speedup is precise enough, or its time is used up.

Times decide how many prompts are run and nothing else. Prompts keep their order and a prompt is run whole,
so the tokens of a run that ends early are the first ones of the run that does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from spsbench.records import Sample
from spsbench.runner.expectation import Expectation, expectation, spent
from spsbench.runner.plan import Plan
from spsbench.runner.schedule import Turn
from spsbench.stats.anytime import anytime_speedup, relative_half_width
from spsbench.stats.timings import ComparedTimes, Timing, Timings
from spsbench.store import RunStore
from spsbench.summary_types import StoppedArm, Stopping

Reason = Literal["precision", "budget", "prompts"]


class StoppingRule:
    """What a run has measured so far, and whether it is over.

    A prompt counts once each of its sequences was tried. What failed is left out of the speedups, as in every
    table; an arm that never finished together with its baseline has none, and nothing waits for it. Lossy
    arms count as others do. Where conditions changed, speedups are those of the latest: no table pools them.
    """

    def __init__(self, plan: Plan, samples: Iterable[Sample]) -> None:
        self._plan, self._config = plan, plan.config
        self._planned = {prompt.example_id for prompt in plan.prompts}
        self._timings = Timings(plan.samples * len(plan.arms))
        self._begun: set[str] = set()
        self._spent_s: dict[tuple[str, int, str], float] = {}
        self._condition = 0
        self._compared: list[ComparedTimes] | None = None
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Count a sequence that was finished or failed."""
        if sample.example_id not in self._planned:
            return
        if sample.condition != self._condition:
            self._condition = sample.condition
            self._timings.forget_times()
        made, tokens = sample.generation, len(sample.generation.tokens)
        timing = Timing(made.decode_s, tokens) if sample.error is None and tokens else None
        self._timings.add(*sample.key, timing)
        self._begun.add(sample.wave or sample.example_id)
        self._spent_s[sample.key] = spent(sample.conditions, made.prefill_s, made.decode_s)
        self._compared = None

    def leave_out(self, arms: int) -> None:
        """Expect nothing more of so many arms, whose engines cannot be started."""
        self._timings.expect(self._plan.samples * (len(self._plan.arms) - arms))

    @property
    def prompts(self) -> int:
        """How many prompts were run whole."""
        return len(self._timings.complete)

    @property
    def measured_s(self) -> float:
        """Seconds of all sequences, with reading them again."""
        return sum(self._spent_s.values())

    def reason(self) -> Reason | None:
        """Why the run is over, None while it is not; precision comes first where several hold."""
        if self._is_precise():
            return "precision"
        if self.prompts >= len(self._planned):
            return "prompts"
        budget_s = self._config.budget_s
        used_up = budget_s is not None and self.prompts > 0 and self.measured_s >= budget_s
        return "budget" if used_up else None

    def due(self, missing: Sequence[Turn]) -> list[Turn]:
        """The missing turns that are to be run: if the run is over, those of begun prompts alone."""
        over = self.reason() is not None
        return [turn for turn in missing if not over or self._is_begun(turn)]

    def until_over(self, groups: Iterable[list[Turn]]) -> Iterator[list[Turn]]:
        """Turns that are run together, until the run is over; a begun prompt or wave is always run whole.

        The samples of a group must have been added before the next group is taken.
        """
        over = False
        for group in groups:
            if not self._is_begun(group[0]):
                over = over or self.reason() is not None
                if over:
                    continue
            yield group

    def _is_begun(self, turn: Turn) -> bool:
        return turn.unit in self._begun

    def expectation(self) -> Expectation | None:
        """How many prompts the run will take; None while too few are there to say."""
        times = [one.times for one in self._arms()]
        return expectation(self._config, times, len(self._planned), self.prompts, self.measured_s)

    def record(self, *, ended: bool, anytime: bool = False) -> Stopping:
        """What run.json keeps under ``stopping``."""
        return {
            "until": self._config.until,
            "precision": self._config.precision,
            "budget_s": self._config.budget_s,
            "reason": self.reason() if ended else None,
            "prompts": self.prompts,
            "pool": len(self._planned),
            "measured_s": self.measured_s,
            "anytime": anytime or self._config.until is not None,
            "arms": list(self._recorded()),
        }

    def expected_sequences(self, *, ended: bool) -> int:
        """Sequences that each arm owes: of all prompts, or of those that were run."""
        return self._plan.samples * (self.prompts if ended else len(self._planned))

    def _arms(self) -> list[ComparedTimes]:
        if self._compared is None:
            self._compared = self._timings.compared(self._plan.arms)
        return self._compared

    def _is_precise(self) -> bool:
        asked = self._config.precision
        if asked is None:
            return False
        found = [anytime_speedup(one.times) for one in self._arms()]
        widths = [None if speedup is None else relative_half_width(speedup) for speedup in found]
        return bool(widths) and all(width is not None and width <= asked for width in widths)

    def _recorded(self) -> Iterator[StoppedArm]:
        for arm, baseline, times in self._arms():
            if (found := anytime_speedup(times)) is not None:
                yield {
                    "arm": arm,
                    "baseline": baseline,
                    "prompts": len(times),
                    "ratio": found.ratio,
                    "low": found.low,
                    "high": found.high,
                    "half_width": relative_half_width(found),
                }


def stopping_rule(plan: Plan, store: RunStore) -> StoppingRule | None:
    """The rule of a run that may end early, or that once could; None for any other."""
    limited = plan.config.until is not None or plan.config.budget_s is not None
    return StoppingRule(plan, store.samples()) if limited or store.run_info().get("stopping") else None


def note(rule: StoppingRule, store: RunStore, *, ended: bool) -> None:
    """Bring run.json up to date with how far a run is."""
    before = store.run_info().get("stopping") or {}
    store.note(
        stopping=rule.record(ended=ended, anytime=bool(before.get("anytime"))),
        expected_sequences=rule.expected_sequences(ended=ended),
    )
