"""A/A: ArS against ArS. The speedup's 95% interval must cover 1.000 in about 95% of runs.

Two arms that are the same but for their name are measured as a real run measures them: by the real
engine, interleaved per prompt in shuffled order, each with seeds of its own. Whatever differs is
noise, so an interval that leaves out 1 is a false finding. Repeats use other prompts and seeds but
share one process: what differs between processes is not in them.

Run by hand on a quiet machine; by default 1,200 sequences of at most 20 tokens, some minutes:

    python benchmarks/aa.py [--repeats 20] [--prompts 30] [--max-new-tokens 20] [--task xsum] [--pair mini]
        [--threads auto]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd
from scipy.stats import binomtest

from spsbench.base.environment import describe_environment, taken, taken_since
from spsbench.base.records import Arm, Request, Speedup
from spsbench.config import resolve
from spsbench.engines.local import Engine
from spsbench.runner import Plan, plan
from spsbench.runner.engines import EngineFactory
from spsbench.runner.execution import load
from spsbench.runner.turns import Turn, interleaved
from spsbench.stats.conditions import contention
from spsbench.stats.speedup import pair as pair_times
from spsbench.stats.speedup import speedup_over_prompts


@dataclass(frozen=True, slots=True)
class Repeat:
    """One A/A run: the ratio of the two equal arms, its size, and whether a run would trust its times."""

    result: Speedup
    tokens: int
    trusted: bool

    @property
    def covers(self) -> bool:
        """Whether the interval holds 1; without an interval nothing is covered."""
        low, high = self.result.low, self.result.high
        return low is not None and high is not None and low <= 1.0 <= high


def main(arguments: list[str]) -> int:
    """Measure all repeats, printing each as it is done, then the coverage."""
    options = _options(arguments)
    settings = {"task": options.task, "k": 0, "score": False, "seed": options.seed}
    settings |= {"max_new_tokens": options.max_new_tokens, "threads": options.threads}
    limit = options.repeats * options.prompts
    ready = plan(resolve(settings | {"limit": limit, "pair": options.pair}))
    print(f"A/A on {ready.task.name}, pair {options.pair}: {_machine()}\n")
    print("| repeat | tokens | ratio | 95% interval | covers 1 |\n| --: | --: | --: | :-- | :-- |")
    repeats = []
    for number, repeat in enumerate(_repeats(ready, options), 1):
        repeats.append(repeat)
        low, high = repeat.result.low, repeat.result.high
        interval = "-" if low is None or high is None else f"[{low:.4f}, {high:.4f}]"
        covers = ("yes" if repeat.covers else "NO") + ("" if repeat.trusted else ", NOT TRUSTED")
        print(
            f"| {number} | {repeat.tokens} | {repeat.result.ratio:.4f} | {interval} | {covers} |", flush=True
        )
    print("\n" + _conclusion(repeats))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=30, help="per repeat")
    parser.add_argument("--max-new-tokens", type=int, default=20)
    parser.add_argument("--task", default="xsum")
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=lambda text: text if text == "auto" else int(text), default="auto")
    return parser.parse_args(arguments)


def _machine() -> str:
    facts = describe_environment()
    return f"{facts['cpu']['model']}, load {facts['load_1m']:.1f}"


def _repeats(ready: Plan, options: argparse.Namespace) -> Iterator[Repeat]:
    """The repeats, each over its own prompts (from the start again when they run out) and seeds."""
    models = load(ready)
    arms = _twins(ready)
    engines = EngineFactory(models, ready.slots).all(arms)
    for number in range(options.repeats):
        first = number * options.prompts
        places = dict.fromkeys(place % len(ready.prompts) for place in range(first, first + options.prompts))
        chosen = tuple(ready.prompts[place] for place in places)
        order = list(interleaved(chosen, 1, arms, options.seed + number))
        if number == 0:  # warm up, thrown away
            _generate(order[:2], engines, ready)
        yield _judge(pd.DataFrame(_generate(order, engines, ready)), arms)


def _twins(ready: Plan) -> tuple[Arm, Arm]:
    """The run's ArS arm twice, under two names."""
    arm = ready.arms[0]
    return arm, replace(arm, engine=f"{arm.engine}-again")


def _generate(order: list[Turn], engines: dict[Arm, Engine], ready: Plan) -> list[dict[str, object]]:
    """Rows with the columns of ``samples.parquet`` that a speedup is made of."""
    rows: list[dict[str, object]] = []
    for turn in order:
        request = Request(turn.prompt.ids, ready.max_new_tokens, ready.stop, turn.arm.sampling, turn.seed)
        before = taken()
        generation = engines[turn.arm].generate(request)
        lost = {"conditions": taken_since(before)}
        row = {"example_id": turn.prompt.example_id, "sample_index": turn.sample_index, "arm": turn.arm.name}
        times = {"prefill_s": generation.prefill_s, "decode_s": generation.decode_s, "error": None}
        reason = {"finish_reason": generation.finish_reason, "new_tokens": len(generation.tokens)}
        rows.append(row | times | reason | lost)
    return rows


def _judge(rows: pd.DataFrame, arms: tuple[Arm, Arm]) -> Repeat:
    one, other = (rows[rows["arm"] == arm.name] for arm in arms)
    result = speedup_over_prompts(pair_times(one, other))
    assert result is not None  # every prompt has run in both arms, or an exception has ended this
    return Repeat(result, int(rows["new_tokens"].sum()), contention(rows, {})["trusted"])


def _conclusion(repeats: list[Repeat]) -> str:
    """Coverage with its own exact interval, and how far equal arms lay apart.

    A run prints no interval where others had the CPU; such repeats are counted apart.
    """
    printed = [repeat for repeat in repeats if repeat.trusted]
    apart = (
        f"{len(repeats) - len(printed)} of {len(repeats)} repeats were not to be trusted, and a run says so. "
    )
    if not printed:
        return apart
    return (apart if len(printed) < len(repeats) else "") + _coverage(printed)


def _coverage(repeats: list[Repeat]) -> str:
    hits = sum(repeat.covers for repeat in repeats)
    interval = binomtest(hits, len(repeats)).proportion_ci(0.95)
    ratios = [repeat.result.ratio for repeat in repeats]
    spread = statistics.stdev(map(math.log, ratios)) if len(ratios) > 1 else math.nan
    return (
        f"{hits} of {len(repeats)} intervals cover 1.000: {hits / len(repeats):.0%} "
        f"[{interval.low:.0%}, {interval.high:.0%}] where 95% is claimed. "
        f"Ratios: mean {statistics.fmean(ratios):.4f}, standard deviation {spread:.4f}, "
        f"furthest from 1: {max(ratios, key=lambda ratio: abs(math.log(ratio))):.4f}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
