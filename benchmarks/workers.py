"""What workers gain and what they cost on one machine: seconds of a run, and times of those that share it.

The same run by one process, and by one and more workers of a cluster that Ray starts with so many CPUs. Given
are the seconds from the command to its end (Ray's start and loading in every worker included), those that the
busiest worker measured, and each arm's time per token, which tells what workers take from each other.

Run by hand on a quiet machine:

    python benchmarks/workers.py [--workers 1,2] [--prompts 40] [--max-new-tokens 64]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import ray

from spsbench.api import Run
from spsbench.base.environment import describe_environment
from spsbench.base.records import SPENT, Sample
from spsbench.cli.main import main as spsbench
from spsbench.store import RunStore


def main(arguments: list[str]) -> int:
    """Measure every number of workers and print a line for each."""
    options = _options(arguments)
    facts = describe_environment()
    print(f"{facts['cpu']['model']}, {facts['cpu']['usable_threads']} cores, load {facts['load_1m']:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for workers in (0, *map(int, options.workers.split(","))):
            print(_measured(workers, Path(folder) / str(workers), options), flush=True)
    return 0


def _measured(workers: int, out: Path, options: argparse.Namespace) -> str:
    """A run by so many workers, or by this process alone if there are none, as a line."""
    limits = ("--limit", options.prompts, "--max-new-tokens", options.max_new_tokens, "--threads", "1")
    command = ["run", "xsum", *limits, "--no-score", "--no-proof", "--quiet", "--out", str(out)]
    began_s = time.perf_counter()
    if workers:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    with redirect_stdout(StringIO()):
        code = spsbench([*command, *(["--on", "ray"] if workers else [])])
    whole_s = time.perf_counter() - began_s
    if workers:
        ray.shutdown()
    if code:
        raise SystemExit(code)
    run = Run(out)
    with RunStore.open(out) as store:
        measured_s = _longest(list(store.samples()))
    rows: Any = run.summary["rows"]
    arms = ", ".join(f"{row['arm']} {row['ms_per_token']:.2f} ms/token" for row in rows)
    waited: Any = run.summary["contention"]["waited_share"]
    who = f"{workers} workers" if workers else "one process"
    return f"{who}: {whole_s:.1f} s, of them {measured_s:.1f} s of measuring; {arms}; waited {waited:.2f} s/s"


def _longest(samples: Sequence[Sample]) -> float:
    """Seconds of the worker that measured longest, the reading again of its outputs included."""
    spent_s: dict[float, float] = {}
    for sample in samples:
        worker = sample.conditions.get("worker", 0.0)
        spent_s[worker] = spent_s.get(worker, 0.0) + sample.conditions[SPENT]
    return max(spent_s.values())


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="1,2", help="numbers of workers")
    parser.add_argument("--prompts", default="40")
    parser.add_argument("--max-new-tokens", default="64")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
