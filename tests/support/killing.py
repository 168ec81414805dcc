"""Kill a run at random points, continue it, and compare it with one that nobody disturbed.

    python tests/support/killing.py KILLS FOLDER

Each attempt is a forked child of this process, so that it begins with everything imported; this process
computes nothing, since torch's threads would not survive the fork. A child is killed with SIGKILL after a
random time between nothing and what a whole run takes. A run is continued until it is complete, compared,
and the next is begun, until so many kills have hit.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.commandline import BRIEF, journal

FLAGS = (*map(str, BRIEF), "--limit", "3", "--max-new-tokens", "6", "--threads", "1", "--set", "trace=1")
SHOWN = (
    *("example_id", "sample_index", "arm", "order", "token_ids", "finish_reason"),
    *("losslessness", "trace", "token_evidence"),
)

# What a run imports on its way, so that a child spends its time on the run.
IMPORTED = (
    *("spsbench.runner", "spsbench.report.sections", "transformers.models.llama.modeling_llama"),
    *("transformers.generation.utils", "evaluate", "datasets", "rouge_score.rouge_scorer"),
    *("scipy.stats", "statsmodels.stats.weightstats", "statsmodels.stats.power"),
)


def run(directory: Path) -> int:
    """The command; its exit code."""
    from spsbench.cli.main import main

    return main(["run", "xsum", *FLAGS, "--set", "warmup=false", "--out", str(directory), "--quiet"])


def forked(command: Callable[[], int], is_due: Callable[[], bool]) -> int | None:
    """The exit code of a command in a child; None if it was killed, which is when that is due."""
    child = os.fork()
    if not child:
        os._exit(command())
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if is_due():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.002)


def attempt(directory: Path, kill_after_s: float | None) -> bool:
    """Run or continue in a child; whether it was killed before it ended."""
    deadline = math.inf if kill_after_s is None else time.monotonic() + kill_after_s
    code = forked(lambda: run(directory), lambda: time.monotonic() >= deadline)
    assert not code, f"ended with {code}"
    return code is None


def outputs(directory: Path) -> list[dict[str, Any]]:
    """What the run's outputs are, without their timings."""
    return [{name: row.get(name) for name in SHOWN} for row in journal(directory)]


def scores(directory: Path) -> Any:
    """The quality that the summary tells."""
    summary = json.loads((directory / "summary.json").read_text())
    return [(row["arm"], row["metrics"], row["sequences"], row["failed"]) for row in summary["rows"]]


def survive(kills: int, folder: Path, seed: int = 0) -> dict[str, float]:
    """Until ``kills`` have hit; AssertionError at the first difference."""
    gc.disable()  # imports leave no garbage, and what is frozen no child copies by looking for some
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    # A quarter of so small a run, in which a kill would hit nothing.
    importlib.import_module("spsbench.runner.execution").measured_bandwidth = lambda device: None  # type: ignore[attr-defined]
    started = time.monotonic()
    assert not attempt(folder / "whole", None)
    whole_s = time.monotonic() - started
    rng, hit, runs, torn = random.Random(seed), 0, 0, 0
    while hit < kills:
        directory = folder / f"run-{runs}"
        while attempt(directory, rng.uniform(0, whole_s) if hit < kills else None):
            hit += 1
        assert outputs(directory) == outputs(folder / "whole"), directory
        assert scores(directory) == scores(folder / "whole"), directory
        torn += (directory / "samples.jsonl.torn").exists()
        runs += 1
    return {"kills": hit, "runs": runs, "runs_with_a_torn_line": torn, "seconds": time.monotonic() - started}


if __name__ == "__main__":
    print(json.dumps(survive(int(sys.argv[1]), Path(sys.argv[2]))))
