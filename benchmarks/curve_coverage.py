"""How often do the intervals of an acceptance curve all cover the truth at once, from 80 prompts?

A population of prompts, whose own curve is the truth, is drawn from with replacement. Synthetic ones: the
chance of acceptance differs by prompt (Beta) and, in the last, by stretches of text, too; lengths are
log-normal. Beside the intervals of ``spsbench replay --curve`` stand those for each K alone, which do not
hold at once.

``--data`` adds populations from files of SpecDecode-Bench/simulator (per position acceptance of EAGLE).
Run by hand, some minutes on one core:

    python -m benchmarks.curve_coverage [--runs 2000] [--data combined_gsm8k.jsonl ...]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spsbench.stats.bootstrap import pooled_ratio, simultaneous_ratios

Floats = npt.NDArray[np.float64]
KS, PROMPTS, POPULATION = range(1, 17), 80, 3_000


def loops(accepted: Sequence[int], k: int) -> int:
    """Loops over a text of which each place says how many drafts would be accepted there."""
    place = found = 0
    while place < len(accepted):
        place += min(accepted[place], k) + 1
        found += 1
    return found


def runs_of(stands: npt.NDArray[np.bool_]) -> list[int]:
    """At each place the number of tokens from it on that would be accepted."""
    found, here = [], 0
    for each in stands[::-1]:
        here = here + 1 if each else 0
        found.append(here)
    return found[::-1]


def synthetic(spread: float, stretches: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """([prompts] tokens, [prompts, K] loops) of a population with mean alpha .7."""
    tokens = rng.lognormal(np.log(128), 0.6, POPULATION).clip(16, 512).astype(int)
    scale = 0.7 * 0.3 / spread**2 - 1
    found = np.zeros((POPULATION, len(KS)))
    for row, (n, alpha) in enumerate(
        zip(tokens, rng.beta(0.7 * scale, 0.3 * scale, POPULATION), strict=True)
    ):
        hard = np.cumsum(rng.random(n) < 0.05) % 2  # stretches of 20 tokens
        stands = rng.random(n) < np.clip(alpha + stretches * (0.5 - hard), 0, 1)
        ahead = runs_of(stands)
        found[row] = [loops(ahead, k) for k in KS]
    return tokens.astype(np.float64), found


def recorded(path: Path) -> tuple[Floats, Floats]:
    """The same of a file with a record for each request."""
    rows = [json.loads(line)["acc_eagle"]["acc_len"] for line in path.read_text().splitlines()]
    ahead = [[length - 1 for length in row] for row in rows if row]
    tokens = np.array([len(row) for row in ahead], np.float64)
    return tokens, np.array([[loops(row, k) for k in KS] for row in ahead], np.float64)


def covered(tokens: Floats, found: Floats, runs: int, rng: np.random.Generator) -> list[float]:
    """Shares of runs: all cover; some low end is above the truth; some high end below; all alone cover."""
    truth, shares = tokens.sum() / found.sum(0), np.zeros(4)
    for _ in range(runs):
        drawn = rng.integers(len(tokens), size=PROMPTS)
        over, under = tokens[drawn], found[drawn]
        ends = np.array([[each.low, each.high] for each in simultaneous_ratios(over, under)], np.float64)
        alone = [pooled_ratio(over, column) for column in under.T]
        each = np.array([[one.low, one.high] for one in alone], np.float64)
        above, below = (ends[:, 0] > truth).any(), (ends[:, 1] < truth).any()
        inside = ((each[:, 0] <= truth) & (truth <= each[:, 1])).all()
        shares += [not (above or below), above, below, inside]
    return [float(each) for each in shares / runs]


def main(arguments: list[str]) -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--data", type=Path, nargs="*", default=[])
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    populations = {
        "alpha .7 in every prompt": synthetic(0.001, 0.0, rng),
        "alpha .7, sd .1 between prompts": synthetic(0.1, 0.0, rng),
        "sd .2 between prompts, .4 between stretches": synthetic(0.2, 0.4, rng),
    } | {path.stem: recorded(path) for path in options.data}
    print(
        "| population | all K at once, % (low end too high, high end too low) | each K alone, all cover, % |"
    )
    print("| :-- | --: | --: |")
    for name, (tokens, found) in populations.items():
        own, above, below, alone = covered(tokens, found, options.runs, rng)
        print(f"| {name} | {own:.1%} ({above:.1%}, {below:.1%}) | {alone:.1%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
