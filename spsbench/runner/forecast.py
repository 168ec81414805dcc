"""How many prompts a run is expected to take, and how long, by what it or an earlier run has measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spsbench.base.errors import SpsbenchError
from spsbench.base.files import plain
from spsbench.base.records import SPENT
from spsbench.config import RunConfig
from spsbench.runner.messages import Expectation
from spsbench.runner.planning import Plan
from spsbench.stats.anytime import EXPECTABLE, Timings, prompts_needed
from spsbench.stats.speedup import PairedTimes, finished
from spsbench.store import RunStore, differences

_OTHERWISE = ("seed", "prompt_sha256", "shard")
"""Keys of an identity that change tokens and not how much prompts differ; the seed also chooses the examples
in a prompt."""


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
                expected = _expectation_by_run(plan, store) if same else None
        except (SpsbenchError, OSError):
            continue  # a run that cannot be read says nothing, and is not this one's concern
        if expected is not None:
            return expected, path.parent
    return None


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key not in _OTHERWISE}


def _expectation_by_run(plan: Plan, store: RunStore) -> Expectation | None:
    done = finished(store.frames().samples)
    timings, measured_s = Timings(due=0), 0.0
    rows: Iterator[Any] = done.itertuples()
    for row in rows:
        timing = (float(row.decode_s), int(row.new_tokens))
        timings.add(str(row.example_id), int(row.sample_index), str(row.arm), timing)
        measured_s += spent_s(row.conditions, row.prefill_s, row.decode_s)
    compared = timings.compared(plan.arms)
    return expectation(plan.config, compared, len(plan.prompts), len(timings.complete), measured_s)


def spent_s(conditions: Mapping[str, float] | None, prefill_s: float, decode_s: float) -> float:
    """Return the seconds that a sequence took; those of its forwards where the whole was not timed."""
    whole_s = conditions.get(SPENT) if isinstance(conditions, Mapping) else None
    return float(prefill_s + decode_s) if whole_s is None else float(whole_s)
