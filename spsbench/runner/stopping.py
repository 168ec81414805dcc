"""When a run ends before its last prompt: every speedup is precise enough, or its time is used up.

Times decide how many prompts are run and nothing else. Prompts keep their order and a prompt is run whole,
so the tokens of a run that ends early are the first ones of the run that does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from spsbench.base.paths import results_dir
from spsbench.base.records import Sample
from spsbench.runner.forecast import expectation, of_earlier_run, spent_s
from spsbench.runner.messages import EndsAfter, Expectation, ExpectedByEarlierRun, ExpectedLater
from spsbench.runner.planning import Plan, Watcher
from spsbench.runner.turns import Turn, all_turns
from spsbench.stats.anytime import EXPECTABLE, Timings, anytime_speedup, relative_half_width
from spsbench.stats.speedup import PairedTimes
from spsbench.store import RunStore
from spsbench.store.summary_types import StoppedArm, Stopping


def due_turns(plan: Plan, store: RunStore, rule: StoppingRule | None = None) -> list[Turn]:
    done = store.done()
    missing = [turn for turn in all_turns(plan) if turn.key not in done]
    rule = rule or stopping_rule(plan, store)
    return missing if rule is None else rule.due(missing)


def proof_is_due(store: RunStore) -> bool:
    """Return whether a proof was begun and not finished."""
    return store.run_info().get("proof", "none was begun") is None


_Compared = tuple[str, str, PairedTimes]
"""(arm, baseline, times)."""


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
        self._compared: list[_Compared] | None = None
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Count a sequence that was finished or failed."""
        if sample.example_id not in self._planned:
            return
        if sample.condition != self._condition:
            self._condition = sample.condition
            self._timings.forget_times()
        made = sample.generation
        tokens = len(sample.generation.tokens)
        timing = (made.decode_s, tokens) if sample.error is None and tokens else None
        self._timings.add(*sample.key, timing)
        self._begun.add(sample.wave or sample.example_id)
        self._spent_s[sample.key] = spent_s(sample.conditions, made.prefill_s, made.decode_s)
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
        """Return why the run is over, None while it is not; precision comes first where several hold."""
        if self._is_precise():
            return "precision"
        if self.prompts >= len(self._planned):
            return "prompts"
        budget_s = self._config.budget_s
        used_up = budget_s is not None and self.prompts > 0 and self.measured_s >= budget_s
        return "budget" if used_up else None

    def due(self, missing: Sequence[Turn]) -> list[Turn]:
        """Return the missing turns that are to be run: if the run is over, only those of begun prompts."""
        over = self.reason() is not None
        return [turn for turn in missing if not over or turn.unit in self._begun]

    def until_over(self, groups: Iterable[list[Turn]]) -> Iterator[list[Turn]]:
        """Yield groups of turns until the run is over; a begun prompt or wave is always run as a whole.

        The samples of a group must have been added before the next group is taken.
        """
        is_over = False
        for group in groups:
            if group[0].unit in self._begun:
                yield group
                continue
            is_over = is_over or self.reason() is not None
            if not is_over:
                yield group

    def expectation(self) -> Expectation | None:
        """Return how many prompts the run will take; None while too few are there to say."""
        return expectation(self._config, self._arms(), len(self._planned), self.prompts, self.measured_s)

    def note(self, store: RunStore, *, ended: bool) -> None:
        before = store.run_info().get("stopping") or {}
        record: Stopping = {
            "until": self._config.until_ci,
            "precision": self._config.precision,
            "budget_s": self._config.budget_s,
            "reason": self.reason() if ended else None,
            "prompts": self.prompts,
            "pool": len(self._planned),
            "measured_s": self.measured_s,
            # Once looked at, always looked at.
            "anytime": bool(before.get("anytime")) or self._config.precision is not None,
            "arms": list(self._recorded()),
        }
        # What each arm owes: sequences of all prompts, or of those that were run.
        owed = self._plan.samples * (self.prompts if ended else len(self._planned))
        store.note(stopping=record, expected_sequences=owed)

    def _arms(self) -> list[_Compared]:
        if self._compared is None:
            self._compared = self._timings.compared(self._plan.arms)
        return self._compared

    def _is_precise(self) -> bool:
        precision = self._config.precision
        if precision is None:
            return False
        speedups = [anytime_speedup(times) for _, _, times in self._arms()]
        widths = [None if speedup is None else relative_half_width(speedup) for speedup in speedups]
        return bool(widths) and all(width is not None and width <= precision for width in widths)

    def _recorded(self) -> Iterator[StoppedArm]:
        for arm, baseline, times in self._arms():
            if (speedup := anytime_speedup(times)) is not None:
                yield {
                    "arm": arm,
                    "baseline": baseline,
                    "prompts": len(times),
                    "ratio": speedup.ratio,
                    "low": speedup.low,
                    "high": speedup.high,
                    "half_width": relative_half_width(speedup),
                }


def stopping_rule(plan: Plan, store: RunStore) -> StoppingRule | None:
    """Return the rule of a run that may end early, or once could; None for any other."""
    limited = plan.config.until is not None
    return StoppingRule(plan, store.samples()) if limited or store.run_info().get("stopping") else None


def foretell(plan: Plan, store: RunStore, rule: StoppingRule, watcher: Watcher) -> None:
    """Report at the start how many prompts a run is expected to take."""
    sequences = plan.samples * len(plan.arms)
    if (so_far := rule.expectation()) is not None:
        watcher.expecting(so_far.prompts * sequences, str(so_far))
    elif (earlier := of_earlier_run(plan, results_dir(), store.directory)) is not None:
        expected, directory = earlier
        watcher.expecting(expected.prompts * sequences, str(ExpectedByEarlierRun(expected, directory)))
    elif plan.config.precision is not None:
        watcher.expecting(None, str(ExpectedLater(EXPECTABLE)))
    elif plan.config.budget_s is not None:
        watcher.expecting(None, str(EndsAfter(plan.config.budget_s)))


def follow(plan: Plan, rule: StoppingRule, sample: Sample, watcher: Watcher) -> None:
    """Count a sequence, and after a whole prompt report how many are expected by now."""
    before = rule.prompts
    rule.add(sample)
    if rule.prompts > before and (expected := rule.expectation()) is not None:
        forecast = str(expected) if rule.prompts == EXPECTABLE else ""
        watcher.expecting(expected.prompts * plan.samples * len(plan.arms), forecast)
