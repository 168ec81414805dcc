"""Is it the process or the minute: several processes measure the same run, in turns prompt by prompt.

Each group starts so many processes anew; every one loads the pair and warms up for itself, then they take
each prompt in turn, in shuffled order, so that what the machine does within a minute meets all of them alike.
A process's speedup is the pooled ratio over its prompts, as a run has it. Given are, of its logarithm, the
standard deviation between the processes of a group beyond what prompts explain (it is the process), and
between the groups' means beyond what their processes explain (it is the minute).

With ``--minutes`` one process measures all prompts again and again. Given are the speedup of every pass, the
Allan deviation of its logarithm by the number of passes that are averaged (flat: 1/f noise), and the
autocorrelation.

Run by hand on a quiet machine; by default some eight minutes:

    python -m benchmarks.processes [--groups 8] [--processes 4] [--prompts 40] [--k 4] [--threads auto]
    python -m benchmarks.processes --minutes 8
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.base.environment import describe_environment
from spsbench.config import resolve
from spsbench.runner import plan
from spsbench.runner.engines import EngineFactory
from spsbench.runner.execute import load, measure, request_of, warm_up
from spsbench.runner.stopping import all_turns, together


def main(arguments: list[str]) -> int:
    """Measure all groups, printing each as it is done, then what explains the spread."""
    options = _options(arguments)
    facts = describe_environment()
    print(f"{facts['cpu']['model']}, {facts['cpu']['usable_threads']} threads, load {facts['load_1m']:.1f}")
    if options.minutes:
        print(_of_one_process(options))
        return 0
    groups = []
    for number in range(options.groups):
        found = _group(options, number)
        groups.append(found)
        ratios = [_log_ratio(times.sum(0)) for times in found]
        shown = " ".join(f"{math.exp(ratio):.3f}" for ratio in ratios)
        print(f"group {number + 1}: {shown}", flush=True)
    if options.out:
        Path(options.out).write_text(json.dumps([group.tolist() for group in groups]), encoding="utf-8")
    print(_components(np.stack(groups)))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--threads", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--out", default=None, help="a file for all times, as JSON")
    return parser.parse_args(arguments)


def _of_one_process(options: argparse.Namespace) -> str:
    """Passes over all prompts for so many minutes, and how their speedups hang together."""
    ready = plan(resolve(_settings(options)))
    models = load(ready)
    engines = EngineFactory(models, ready.slots).all(ready.arms)
    turns = list(all_turns(ready))
    warm_up(ready, engines, turns[0])
    passes, ends_s = [], time.monotonic() + 60 * options.minutes
    while time.monotonic() < ends_s:
        sums = {arm: [0.0, 0.0] for arm in ready.arms}
        for turn in turns:
            made = engines[turn.arm].generate(request_of(ready, turn))
            sums[turn.arm][0] += made.decode_s
            sums[turn.arm][1] += len(made.tokens)
        passes.append(_log_ratio([value for arm in ready.arms for value in sums[arm]]))
        print(f"{math.exp(passes[-1]):.3f}", end=" ", flush=True)
    found = np.array(passes)
    lines = [f"\n{len(found)} passes, standard deviation {found.std(ddof=1):.4f}"]
    for size in (2**power for power in range(8)):
        if (count := len(found) // size) < 3:
            break
        means = found[: count * size].reshape(count, size).mean(1)
        lines.append(f"  Allan deviation over {size}: {math.sqrt(np.square(np.diff(means)).mean() / 2):.4f}")
    rest = found - found.mean()
    shares = [float((rest[lag:] * rest[: len(rest) - lag]).sum() / (rest**2).sum()) for lag in range(1, 6)]
    return "\n".join([*lines, f"  autocorrelation {' '.join(f'{share:.2f}' for share in shares)}"])


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    own = {"k": options.k, "score": False, "limit": options.prompts, "threads": options.threads}
    return own | {"pair": options.pair}


def _group(options: argparse.Namespace, number: int) -> Any:
    """[processes, prompts, 4] seconds and tokens of ArS, then of SpS."""
    context = multiprocessing.get_context("spawn")
    settings = _settings(options)
    links, members = [], []
    for _ in range(options.processes):
        here, there = context.Pipe()
        member = context.Process(target=_member, args=(there, settings), daemon=True)
        member.start()
        links.append(here)
        members.append(member)
    count = min(link.recv() for link in links)
    found = np.zeros((options.processes, count, 4))
    rng = random.Random(number)
    for prompt in range(count):
        for place in rng.sample(range(options.processes), options.processes):
            links[place].send(prompt)
            found[place, prompt] = links[place].recv()
    for link, member in zip(links, members, strict=True):
        link.send(None)
        member.join()
    return found


def _member(link: Connection, settings: dict[str, Any]) -> None:
    """Load and warm up, then measure the prompts that come."""
    ready = plan(resolve(settings))
    models = load(ready)
    engines = EngineFactory(models, ready.slots).all(ready.arms)
    turns = list(all_turns(ready))
    warm_up(ready, engines, turns[0])
    link.send(len(ready.prompts))
    while (place := link.recv()) is not None:
        own = [turn for turn in turns if turn.prompt is ready.prompts[place]]
        times = {arm: [0.0, 0.0] for arm in ready.arms}
        for turn, sample in zip(own, measure(ready, engines, together(own), models), strict=True):
            times[turn.arm][0] += sample.generation.decode_s
            times[turn.arm][1] += len(sample.generation.tokens)
        link.send([value for arm in ready.arms for value in times[arm]])


def _log_ratio(sums: Any) -> float:
    return math.log(sums[0] / sums[1] / (sums[2] / sums[3]))


def _components(found: Any) -> str:
    """Standard deviations of the log speedup: within a process, between processes, between groups.

    ``found``: [groups, processes, prompts, 4]. The error of a process's ratio, its prompts taken as given, is
    the jackknife's over prompts of its distance from its group's mean.
    """
    groups, processes, prompts, _ = found.shape
    ratios = np.array([[_log_ratio(own.sum(0)) for own in group] for group in found])
    within = []
    for group in found:
        left_out = np.array(
            [[_log_ratio(own.sum(0) - own[prompt]) for prompt in range(prompts)] for own in group]
        )
        apart = left_out - left_out.mean(0)
        within.append(((prompts - 1) ** 2 / prompts * apart.var(1, ddof=1)).sum() / max(processes - 1, 1))
    prompt = float(np.mean(within))
    process = float(ratios.var(1, ddof=1).mean()) if processes > 1 else math.nan
    minute = float(ratios.mean(1).var(ddof=1)) if groups > 1 else math.nan
    return "\n".join(
        [
            f"log speedup over {groups} groups of {processes} processes, {prompts} prompts each:",
            f"  of one process, by its prompts' noise: {math.sqrt(prompt):.4f}",
            f"  between processes of a group: {math.sqrt(process):.4f}, "
            f"beyond the noise {_root(process - prompt)}",
            f"  between groups' means: {math.sqrt(minute):.4f}, "
            f"beyond their processes {_root(minute - process / processes)}",
        ]
    )


def _root(variance: float) -> str:
    return f"{math.sqrt(variance):.4f}" if variance > 0 else "0"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
