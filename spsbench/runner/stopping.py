"""When a run ends before its last prompt: every speedup is precise enough, or its time is used up.

Times decide how many prompts are run and nothing else. Prompts keep their order and a prompt is run whole,
so the tokens of a run that ends early are the first ones of the run that does not.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

from spsbench.base.errors import SpsbenchError
from spsbench.base.files import plain
from spsbench.base.paths import results_dir
from spsbench.base.records import SPENT, Arm, Prompt, Sample
from spsbench.config import RunConfig
from spsbench.runner.plan import Plan, Watcher
from spsbench.stats.anytime import EXPECTABLE, Timings, anytime_speedup, prompts_needed, relative_half_width
from spsbench.stats.speedup import PairedTimes, finished
from spsbench.store import RunStore, differences
from spsbench.store.summary_types import StoppedArm, Stopping
from spsbench.store.timings import Round

_FILLS = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence to generate; ``wave``: see ``Sample.wave``."""

    prompt: Prompt
    sample_index: int
    arm: Arm
    order: int
    seed: int
    wave: str | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        return self.prompt.example_id, self.sample_index, self.arm.name

    @property
    def round(self) -> Round:
        """What is timed together."""
        index = None if self.wave is not None else self.sample_index
        return self.wave or self.prompt.example_id, index

    @property
    def unit(self) -> str:
        """What is run as a whole or not at all: its wave, or its prompt where there are none."""
        return self.wave or self.prompt.example_id


def turns(prompts: Sequence[Prompt], samples: int, arms: Sequence[Arm], root_seed: int) -> Iterator[Turn]:
    """Yield every sequence of a run, the arms of a prompt next to each other in shuffled order.

    Interleaving makes a drift of the machine hit all arms alike; the shuffle keeps one arm from
    always running on what another left in the caches. With batches the arms take turns by waves of whole
    prompts, which fill the largest batch about ``_FILLS`` times; every arm then has the same waves, so that
    batches can be compared, too. Of a conversation an earlier turn always comes before a later one.
    """
    widest = max(arm.batch for arm in arms)
    size = -(-_FILLS * widest // samples)  # prompts of a wave, rounded up
    if widest == 1:
        waves = [([prompt], [index]) for prompt in prompts for index in range(samples)]
    else:  # what is less than half a wave at the end goes with the last
        starts = [at for at in range(0, len(prompts), size) if not at or 2 * (len(prompts) - at) >= size]
        ends = zip(starts, [*starts[1:], len(prompts)], strict=True)
        waves = [(list(prompts[start:end]), list(range(samples))) for start, end in ends]
    for wave, indices in waves:
        name = wave[0].example_id
        shuffled = list(arms)
        random.Random(derive_seed(root_seed, name, indices[0], "order")).shuffle(shuffled)
        wave.sort(key=lambda prompt: prompt.turn)
        for order, arm in enumerate(shuffled):
            for prompt, index in product(wave, indices):
                seed = derive_seed(root_seed, prompt.example_id, index, arm.alone.name)
                yield Turn(prompt, index, arm, order, seed, name if widest > 1 else None)


def all_turns(plan: Plan) -> Iterator[Turn]:
    return turns(plan.prompts, plan.samples, plan.arms, plan.config.seed)


def due_turns(plan: Plan, store: RunStore, rule: StoppingRule | None = None) -> list[Turn]:
    done = store.done()
    missing = [turn for turn in all_turns(plan) if turn.key not in done]
    rule = rule or stopping_rule(plan, store)
    return missing if rule is None else rule.due(missing)


def together(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Yield groups of consecutive turns that an engine answers at once: an arm's wave, else one turn.

    Later turns of its conversations are answered when the earlier ones are there.
    """
    for _, run in groupby(turns, key=lambda turn: (turn.wave, turn.arm, turn.prompt.turn)):
        group = list(run)
        if group[0].arm.batch > 1:
            yield group
        else:
            yield from ([turn] for turn in group)


def derive_seed(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
    """Return a seed of 63 bits from what it is for alone, so that sharding and resuming change nothing."""
    text = f"{root_seed}\0{example_id}\0{sample_index}\0{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


_OTHERWISE = ("seed", "prompt_sha256", "shard")
"""Keys of an identity that change tokens and not how much prompts differ; the seed also chooses the examples
in a prompt."""


_Compared = tuple[str, str, PairedTimes]
"""(arm, baseline, times)."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run will take, as far as it is known: ``prompt_s`` a prompt; ``precision`` is the half-width
    that was asked for, None without one."""

    precision: float | None
    needed: int | None
    budget_s: float | None
    affordable: int | None
    pool: int
    prompt_s: float

    @property
    def prompts(self) -> int:
        """After how many prompts the run will end."""
        return min(self.pool, *(n for n in (self.needed, self.affordable) if n is not None))

    def sentence(self) -> str:
        """E.g. ``About 120 of 500 prompts expected for ±1%: 4 min of measuring.``"""
        sentences = []
        if self.precision is not None and self.needed is not None:
            width = f"±{100 * self.precision:g}%"
            if self.needed > self.pool:
                sentences.append(
                    f"About {self.needed} prompts expected for {width}; the run has {self.pool}."
                )
            else:
                sentences.append(f"About {self.needed} of {self.pool} prompts expected for {width}.")
        if self.affordable is not None and self.affordable <= self.prompts < self.pool:
            sentences.append(
                f"The budget of {duration(self.budget_s or 0)} is expected to end it after {self.prompts}."
            )
        elif sentences:
            sentences.append(f"{duration(self.prompts * self.prompt_s)} of measuring.")
        return " ".join(sentences)


def duration(seconds: float) -> str:
    """Return ``45 s``, ``5 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"


def expectation(
    config: RunConfig,
    arms: Iterable[tuple[str, str, PairedTimes]],
    pool: int,
    prompts: int,
    measured_s: float,
) -> Expectation | None:
    """Estimate a run's end from prompts so far, which took ``measured_s`` seconds."""
    if prompts < EXPECTABLE:
        return None
    precision = config.precision
    budget_s = config.budget_s
    prompt_s = measured_s / prompts
    needed = [] if precision is None else [prompts_needed(times, precision) for _, _, times in arms]
    # An arm without an answer, e.g. one that mostly fails, may take all there are.
    most = max((pool if n is None else n for n in needed), default=None)
    # A begun prompt is run whole.
    affordable = None if budget_s is None or not prompt_s > 0 else int(budget_s / prompt_s) + 1
    return Expectation(precision, most, budget_s, affordable, pool, prompt_s)


def of_earlier_run(plan: Plan, results: Path, but: Path) -> tuple[Expectation, Path] | None:
    """Return the expectation by the latest run of the same task, pair and arms, and that run's directory."""
    wanted = _comparable(plain(plan.identity()))
    for path in sorted(results.glob("*/run.json"), key=lambda path: path.parent.name, reverse=True):
        if path.parent.resolve() == but.resolve():
            continue
        try:
            with RunStore.open(path.parent) as store:
                same = not differences(_comparable(store.run_info().get("identity") or {}), wanted)
                expected = _expectation_of(plan, store) if same else None
        except (SpsbenchError, OSError):
            continue  # a run that cannot be read says nothing, and is not this one's concern
        if expected is not None:
            return expected, path.parent
    return None


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key not in _OTHERWISE}


def _expectation_of(plan: Plan, store: RunStore) -> Expectation | None:
    """Return the expectation that an earlier run of the same arms gives."""
    done = finished(store.frames().samples)
    timings, measured_s = Timings(due=0), 0.0
    rows: Iterator[Any] = done.itertuples()
    for row in rows:
        timing = (float(row.decode_s), int(row.new_tokens))
        timings.add(str(row.example_id), int(row.sample_index), str(row.arm), timing)
        measured_s += _sequence_s(row.conditions, row.prefill_s, row.decode_s)
    compared = timings.compared(plan.arms)
    return expectation(plan.config, compared, len(plan.prompts), len(timings.complete), measured_s)


def _sequence_s(conditions: Mapping[str, float] | None, prefill_s: float, decode_s: float) -> float:
    """Return the seconds that a sequence took; those of its forwards where the whole was not timed."""
    spent_s = conditions.get(SPENT) if isinstance(conditions, Mapping) else None
    return float(prefill_s + decode_s) if spent_s is None else float(spent_s)


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
        self._spent_s[sample.key] = _sequence_s(sample.conditions, made.prefill_s, made.decode_s)
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
        """Record in run.json how far a run is."""
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
        watcher.expecting(so_far.prompts * sequences, so_far.sentence())
    elif (earlier := of_earlier_run(plan, results_dir(), store.directory)) is not None:
        expected, directory = earlier
        forecast = f"{expected.sentence()} This is by {directory}." if expected.sentence() else ""
        watcher.expecting(expected.prompts * sequences, forecast)
    elif plan.config.precision is not None:
        watcher.expecting(None, f"How many prompts it takes is known after {EXPECTABLE} prompts.")
    elif plan.config.budget_s is not None:
        watcher.expecting(None, f"Measuring ends after {duration(plan.config.budget_s)}.")


def follow(plan: Plan, rule: StoppingRule, sample: Sample, watcher: Watcher) -> None:
    """Count a sequence, and after a whole prompt report how many are expected by now."""
    before = rule.prompts
    rule.add(sample)
    if rule.prompts > before and (expected := rule.expectation()) is not None:
        forecast = expected.sentence() if rule.prompts == EXPECTABLE else ""
        watcher.expecting(expected.prompts * plan.samples * len(plan.arms), forecast)
