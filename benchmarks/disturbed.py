"""Verdicts on a machine that others use: the default command beside processes that spin, in five ways.

| kind | what the others do |
| :-- | :-- |
| quiet | nothing |
| steady | on every core 3% of the time, in pieces of 3 ms |
| bursts | on every core 100 ms in each second |
| long bursts | on every core 3 s in every 20 s |
| one core | one core always |
| half | on every core half of the time, in pieces of 50 ms |

Each run is a process of its own with the same prompts and seed; kinds come in shuffled order, so that what
the machine does by itself meets all of them. The truth is the speedup of one quiet run of many prompts for
each number of threads (``--truth`` prompts); beside it stands the common mean of the quiet runs, which a
run's interval should hold too. Given are, by kind: verdicts, the share of intervals that hold the truth,
wrong verdicts, the mean half-width, and the time of a run.

    python -m benchmarks.disturbed [--runs 40] [--truth 400] [--kinds quiet,steady] [--out DIR] [-- OPTION...]

A run takes about a minute; what is in ``--out`` from before is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spsbench.base.environment import describe_environment

KINDS: dict[str, tuple[float, float] | None] = {
    "quiet": None,
    "steady": (0.003, 0.1),
    "bursts": (0.1, 1.0),
    "long bursts": (3.0, 20.0),
    "one core": (1.0, 1.0),
    "half": (0.05, 0.1),
}
"""Seconds of spinning in so many seconds, by kind."""

_SPIN = """
import os, sys, time
busy_s, every_s, seed = map(float, sys.argv[1:])
time.sleep(seed * every_s)
parent = os.getppid()
while os.getppid() == parent:  # it ends with whoever measures
    until = time.monotonic() + busy_s
    while time.monotonic() < until:
        pass
    if every_s > busy_s:
        time.sleep(every_s - busy_s)
"""


@contextmanager
def beside(kind: str) -> Iterator[None]:
    """The others of a kind meanwhile."""
    how = KINDS[kind]
    cores = 0 if how is None else 1 if kind == "one core" else os.cpu_count() or 1
    spinning = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", _SPIN, *map(str, how or ()), str(core / 7)])
        for core in range(cores)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def measured(out: Path, options: Sequence[str]) -> dict[str, Any]:
    """What a run says, in a process of its own; read where it is there."""
    kept = out / "result.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    began_s = time.monotonic()
    command = [sys.executable, "-m", "spsbench", "run", "xsum", "--k", "4", *options, "--quiet"]
    subprocess.run([*command, "--out", str(out / "run")], check=True)
    spent_s = time.monotonic() - began_s
    summary = json.loads((out / "run" / "summary.json").read_text())
    run = json.loads((out / "run" / "run.json").read_text())
    row = next(row for row in summary["rows"] if row["method"] == "sps")
    verdict = (summary["verdict"] or [{"outcome": None}])[0]
    found = {
        "speedup": row["speedup"],
        "outcome": verdict["outcome"],
        "leaning": verdict.get("leaning"),
        "contention": summary["contention"],
        "threads": run["models"]["threads"],
        "seconds": spent_s,
    }
    kept.write_text(json.dumps(found))
    return found


def main(arguments: list[str]) -> int:
    """Measure all runs, printing each as it is done, then the table."""
    options, given = _options(arguments)
    facts = describe_environment()
    print(f"{facts['cpu']['model']}, {facts['cpu']['usable_threads']} CPUs, load {facts['load_1m']:.1f}")
    kinds = options.kinds.split(",")
    plan = [(kind, number) for kind in kinds for number in range(options.runs)]
    random.Random(options.seed).shuffle(plan)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for kind, number in plan:
        with beside(kind):
            one = measured(options.out / kind.replace(" ", "-") / str(number), given)
        found[kind].append(one)
        ratio, low, high = (one["speedup"][name] for name in ("ratio", "low", "high"))
        ends = "no interval" if low is None else f"[{low:.3f}, {high:.3f}]"
        print(f"{kind} {number}: {ratio:.3f} {ends}, {one['outcome']}, {one['seconds']:.0f} s", flush=True)
    threads = sorted({one["threads"] for own in found.values() for one in own})
    truths = {}
    for count in threads:
        place = options.out / f"truth-{count}"
        many = ["--limit", str(options.truth), "--threads", str(count), "--remeasure", "0", "--no-score"]
        truths[count] = measured(place, many)["speedup"]
        shown = truths[count]
        print(f"{options.truth} prompts, {count} threads: {shown['ratio']:.3f}")
    print("\n".join(_table(found, truths)))
    return 0


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--truth", type=int, default=400)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/disturbed"))
    return parser.parse_args(arguments[:at]), arguments[at + 1 :]


def _table(found: dict[str, list[dict[str, Any]]], truths: dict[int, dict[str, float]]) -> Iterator[str]:
    by_threads: dict[int, list[float]] = {}
    for one in (one for runs in found.values() for one in runs):
        by_threads.setdefault(one["threads"], []).append(math.log(one["speedup"]["ratio"]))
    means = {count: math.exp(sum(own) / len(own)) for count, own in by_threads.items()}
    yield "\n| others | runs | verdicts | hold the truth | hold the common mean | wrong | half-width | time |"
    yield "| :-- | --: | --: | --: | --: | --: | --: | --: |"
    for kind, runs in found.items():
        bounded = [one for one in runs if one["speedup"]["low"] is not None]
        hold = [_holds(one, truths[one["threads"]]["ratio"]) for one in bounded]
        wrong = [one for one in runs if _is_wrong(one, truths[one["threads"]]["ratio"])]
        widths = [
            math.log(one["speedup"]["high"] / one["speedup"]["low"]) / 2
            for one in bounded
            if math.isfinite(one["speedup"]["high"])
        ]
        decided = sum(one["outcome"] in ("pays", "does not pay") for one in runs)
        cells = [
            *(kind, len(runs), decided),
            f"{sum(hold)} of {len(hold)}",
            f"{sum(_holds(one, means[one['threads']]) for one in bounded)} of {len(bounded)}",
            len(wrong),
            f"{100 * sum(widths) / max(len(widths), 1):.1f}%",
            f"{sum(one['seconds'] for one in runs) / max(len(runs), 1):.0f} s",
        ]
        yield f"| {' | '.join(map(str, cells))} |"
    yield "\n" + ", ".join(
        f"{count} threads: {len(own)} runs, mean {means[count]:.3f}, standard deviation {_spread(own):.1%}"
        for count, own in sorted(by_threads.items())
    )


def _spread(logs: Sequence[float]) -> float:
    return statistics.stdev(logs) if len(logs) > 1 else math.nan


def _holds(one: dict[str, Any], truth: float) -> bool:
    return bool(one["speedup"]["low"] <= truth <= one["speedup"]["high"])


def _is_wrong(one: dict[str, Any], truth: float) -> bool:
    return (one["outcome"] == "pays" and truth < 1) or (one["outcome"] == "does not pay" and truth > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
