"""How long ``spsbench report`` takes on a run of a million loops (simulated; nothing in it was measured).

    python -m benchmarks.report [--prompts 11305] [--directory DIR]

The run is as large as the paper's XSum: 11,305 prompts, ArS and SpS. It is made once and kept in DIR.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from spsbench.base.records import VERIFICATION_RULE, Arm, Generation, Loop, Prompt, Sample, SamplingParams
from spsbench.store import RunStore

TOKENS, K, ALPHA = 64, 4, 0.7
TARGET_S, DRAFT_S = 14.1e-3, 1.8e-3
NUCLEUS = SamplingParams(top_p=0.8)
ARMS = (Arm("ars", 0, "eager", "nucleus", NUCLEUS), Arm("sps", K, "eager", "nucleus", NUCLEUS))


def make(directory: Path, prompts: int) -> int:
    """Write the run; answers its number of loops."""
    rng = np.random.default_rng(0)
    asked = [Prompt(f"doc-{i}", "A prompt.", (1, 2, 3), "A reference.") for i in range(prompts)]
    arms = [{"arm": arm.name, **arm.axes()} for arm in ARMS]
    info = {
        "task": "xsum",
        "task_label": "xsum-simulated",
        "synthetic": True,
        "pair": "simulated",
        "headline_metric": "rouge2",
        "verification_rule": VERIFICATION_RULE,
        "arms": arms,
        "environment": {},
        "expected_sequences": prompts,
    }
    loops = 0
    with RunStore.create(directory, identity={"task": "xsum"}, config={}, info=info, prompts=asked) as store:
        for prompt in asked:
            for arm in ARMS:
                sample = _sample(rng, prompt, arm)
                loops += len(sample.generation.loops or ())
                store.append(sample)
        store.write_parquet()  # as every run does that comes to its end
    return loops


def _sample(rng: np.random.Generator, prompt: Prompt, arm: Arm) -> Sample:
    loops: list[Loop] = []
    left = TOKENS
    while left > 0:
        accepted = int(np.cumprod(rng.random(arm.k) < ALPHA).sum()) if arm.k else 0
        emitted = min(accepted + 1, left)
        left -= emitted
        tested = min(accepted + 1, arm.k)
        noise = float(rng.lognormal(0, 0.05))
        seconds = (arm.k * DRAFT_S * noise, TARGET_S * noise, 2e-4, 1e-4)
        cut = accepted + 1 - emitted
        loops.append(Loop(arm.k, accepted, emitted, tested, ALPHA * tested, cut, *seconds, sum(seconds)))
    total = sum(loop.loop_s for loop in loops)
    generation = Generation([7] * TOKENS, "text", loops, 0.01, total, "length", None, _sums(rng, arm))
    scores = {"rouge2": float(rng.beta(1, 6))}
    sample = Sample(prompt.example_id, 0, arm.name, 3, generation)
    sample.scores = scores
    return sample


def _sums(rng: np.random.Generator, arm: Arm) -> dict[str, float]:
    """As many sums as a real sequence keeps; their values are noise around a clean sampler."""
    positions = 40.0
    sums = {
        "positions": positions,
        "tokens": float(TOKENS),
        "impossible": 0.0,
        "edge": 0.0,
        "log_score": float(rng.normal(0, 5)),
        "log_score_var": 25.0,
        **{f"transform_{i}": float(rng.integers(2, 7)) for i in range(10)},
    }
    if arm.k:
        sums |= {"drafted_positions": positions, "leak_score": float(rng.normal(0, 3)), "leak_var": 9.0}
        sums |= {"leak_information": 9.0, "log_e_mixture_0.1": -0.02, "log_e_flat": -0.02}
    return sums


def main() -> None:
    """Make the run if need be, then time the command in a process of its own, twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=int, default=11_305)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "spsbench-million")
    options = parser.parse_args()
    if not (options.directory / "run.json").is_file():
        print(f"{make(options.directory, options.prompts)} loops in {options.directory}", flush=True)
    command = [sys.executable, "-m", "spsbench", "report", str(options.directory), "--json", "--quiet"]
    for _ in range(2):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"spsbench report: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
