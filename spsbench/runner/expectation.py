"""How many prompts a run is expected to take, by its own first ones or by an earlier run of the same arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.config import RunConfig
from spsbench.errors import SpsbenchError
from spsbench.runner.plan import Plan
from spsbench.stats.anytime import EXPECTABLE, prompts_needed
from spsbench.stats.speedup import PairedTimes, finished
from spsbench.stats.timings import Timing, Timings
from spsbench.store import RunStore, differences, plain

SPENT = "spent_s"
"""Among a sample's conditions: seconds from its start until it was read again."""

_OTHERWISE = ("seed", "prompt_sha256", "shard")
"""Keys of an identity that change tokens and not how much prompts differ; the seed also chooses the examples
in a prompt."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run will take, as far as it is known.

    Attributes:
        precision: half-width that was asked for; None without ``until``.
        prompt_s: seconds of a prompt.
    """

    precision: float | None
    needed: int | None
    budget_s: float | None
    affordable: int | None
    pool: int
    prompt_s: float

    @property
    def prompts(self) -> int:
        """After how many the run will end."""
        return min(self.pool, *(n for n in (self.needed, self.affordable) if n is not None))

    def sentence(self) -> str:
        """E.g. ``About 120 of 500 prompts expected for ±1%: 4 min of measuring.``"""
        told = []
        if self.precision is not None and self.needed is not None:
            asked = f"±{100 * self.precision:g}%"
            if self.needed > self.pool:
                told.append(f"About {self.needed} prompts expected for {asked}; the run has {self.pool}.")
            else:
                told.append(f"About {self.needed} of {self.pool} prompts expected for {asked}.")
        if self.affordable is not None and self.affordable <= self.prompts < self.pool:
            told.append(
                f"The budget of {duration(self.budget_s or 0)} is expected to end it after {self.prompts}."
            )
        elif told:
            told.append(f"{duration(self.prompts * self.prompt_s)} of measuring.")
        return " ".join(told)


def duration(seconds: float) -> str:
    """``45 s``, ``5 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"


def expectation(
    config: RunConfig, times: Sequence[PairedTimes], pool: int, prompts: int, measured_s: float
) -> Expectation | None:
    """Expect of a run what some prompts have shown.

    Args:
        measured_s: seconds that they took.
    """
    if prompts < EXPECTABLE:
        return None
    precision, budget_s, prompt_s = config.precision, config.budget_s, measured_s / prompts
    arms = [] if precision is None else [prompts_needed(own, precision) for own in times]
    # An arm without an answer, e.g. one that mostly fails, may take all there are.
    needed = max((pool if n is None else n for n in arms), default=None)
    # A begun prompt is run whole.
    affordable = None if budget_s is None or not prompt_s > 0 else int(budget_s / prompt_s) + 1
    return Expectation(precision, needed, budget_s, affordable, pool, prompt_s)


def of_earlier_run(plan: Plan, results: Path, but: Path) -> tuple[Expectation, Path] | None:
    """What the latest run of the same task, pair and arms lets expect, and which run that is."""
    wanted = _comparable(plain(plan.identity()))
    for path in sorted(results.glob("*/run.json"), key=lambda path: path.parent.name, reverse=True):
        if path.parent.resolve() == but.resolve():
            continue
        try:
            with RunStore.open(path.parent) as store:
                same = not differences(_comparable(store.run_info().get("identity") or {}), wanted)
                found = _shown(plan, store) if same else None
        except (SpsbenchError, OSError):
            continue  # a run that cannot be read says nothing, and is not this one's concern
        if found is not None:
            return found, path.parent
    return None


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key not in _OTHERWISE}


def _shown(plan: Plan, store: RunStore) -> Expectation | None:
    """What an earlier run of the same arms lets expect."""
    done = finished(store.frames().samples)
    timings = Timings(due=0)
    named = ("example_id", "sample_index", "arm", "decode_s", "new_tokens")
    for example, index, arm, decode_s, tokens in zip(*(done[name] for name in named), strict=True):
        timings.add(str(example), int(index), str(arm), Timing(float(decode_s), int(tokens)))
    seconds = zip(done["conditions"], done["prefill_s"], done["decode_s"], strict=True)
    measured_s = sum(spent(told, prefill_s, decode_s) for told, prefill_s, decode_s in seconds)
    times = [one.times for one in timings.compared(plan.arms)]
    return expectation(plan.config, times, len(plan.prompts), len(timings.complete), measured_s)


def spent(conditions: Mapping[str, float] | None, prefill_s: float, decode_s: float) -> float:
    """Seconds that a sequence took; of one that was not timed as a whole those of its forwards."""
    told = conditions.get(SPENT) if isinstance(conditions, Mapping) else None
    return float(prefill_s + decode_s) if told is None else float(told)
