"""How often do the 95% intervals of the speedup, and the 95% bound of leakage, cover the truth?

Speedups: ArS with 5% of normal noise, SpS twice as fast with times of a law of its own. Beside
``stats.speedup.speedup`` stand the BCa bootstrap that it had until decision 0033, by scipy, and the jackknife
with Student's quantile alone. With spikes (1 prompt in 20 takes ten times as long) no interval can cover
where none was met, in .95^n of runs.

Leakage: engines that take a fifth of the tokens from the draft, in every prompt alike, or four fifths in a
random quarter of the prompts, over random rows of a target and a draft, 60 tokens a prompt.

Run by hand, some minutes on one core; all of it is synthetic:

    python -m benchmarks.coverage [--runs 2000] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.stats import bootstrap, t

from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.stats.bootstrap import pseudo_values
from spsbench.stats.evidence_stats import leakage
from spsbench.stats.speedup import PairedTimes, ratio_of_sums, speedup_over_prompts

Floats = npt.NDArray[np.float64]
Ends = tuple[float | None, float | None]

TRUTH, LEAK, TOKENS = 2.0, 0.2, 60
VOCABULARY, ROWS = 200, 1000
SIZES = (8, 12, 20, 40)

LAWS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal, 20%": lambda rng, n: rng.normal(1.0, 0.2, n).clip(0.05),
    "log-normal .5": lambda rng, n: rng.lognormal(-0.125, 0.5, n),
    "log-normal 1": lambda rng, n: rng.lognormal(-0.5, 1.0, n),
    "5% spikes": lambda rng, n: rng.normal(1.0, 0.05, n) * np.where(rng.random(n) < 0.05, 10, 1) / 1.45,
}
"""Of the times of an arm, with mean 1."""


def ours(times: PairedTimes) -> Ends:
    """The interval of every table."""
    found = speedup_over_prompts(times)
    return (None, None) if found is None else (found.low, found.high)


def student(times: PairedTimes) -> Ends:
    """The jackknife of the log ratio without the skewness term."""
    values = pseudo_values(times.columns(), lambda sums: np.log(ratio_of_sums(sums)))
    half = float(t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return math.exp(values.mean() - half), math.exp(values.mean() + half)


def bca(times: PairedTimes) -> Ends:
    """The interval until decision 0033."""
    found = bootstrap(
        (times.baseline_s, times.arm_s),
        lambda base, arm, axis: base.sum(axis) / arm.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=2_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    return float(found.low), float(found.high)


def covered(way: Callable[[PairedTimes], Ends], law: str, n: int, runs: int, seed: int = 0) -> Floats:
    """Shares of runs whose interval covers the truth, overstates it, and understates it."""
    rng = np.random.default_rng(seed)
    tokens, found = np.full(n, 50.0), np.zeros(3)
    for _ in range(runs):
        base, arm = rng.normal(1.0, 0.05, n), LAWS[law](rng, n) / TRUTH
        low, high = way(PairedTimes(base, tokens, arm, tokens))
        if low is not None and high is not None:
            found += low <= TRUTH <= high, low > TRUTH, high < TRUTH
    return found / runs


@dataclass(frozen=True)
class Setting:
    """Random rows of a pair, warped: target q and draft p, [rows, tokens]."""

    q: Floats
    p: Floats

    @classmethod
    def make(cls, top_p: float, sharpness: float, noise: float, seed: int) -> Setting:
        """Rows of a sharpness (deviation of the logits) whose draft is off by a noise, in logits, too."""
        generator = torch.Generator().manual_seed(seed)
        shape = (ROWS, VOCABULARY)
        logits = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        noisy = logits + noise * torch.randn(shape, generator=generator, dtype=torch.float64)
        params = SamplingParams(top_p=top_p)
        return cls(warp(logits, params).numpy(), warp(noisy, params).numpy())

    def score(self) -> tuple[Floats, Floats, Floats]:
        """Of (p - q) / (p + q), centred [rows, tokens]; information and variance of each row."""
        both = self.p + self.q
        value = np.where(both > 0, (self.p - self.q) / np.where(both > 0, both, 1.0), 0.0)
        mean = (self.q * value).sum(-1)
        variance = (self.q * value**2).sum(-1) - mean**2
        return value - mean[:, None], ((self.p - self.q) * value).sum(-1), variance


def bounded(setting: Setting, concentrated: bool, n: int, runs: int, seed: int = 0) -> tuple[float, float]:
    """(share of runs whose bound is not below the leak, median bound)."""
    rng, (centred, information, variance) = np.random.default_rng(seed), setting.score()
    places = [(np.cumsum(law, -1) / law.sum(-1, keepdims=True)) for law in (setting.q, setting.p)]
    target, draft = ((place + np.arange(ROWS)[:, None]).ravel() for place in places)
    bounds = []
    for _ in range(runs):
        share = np.where(rng.random(n) < 0.25, 4 * LEAK, 0.0) if concentrated else np.full(n, LEAK)
        row = rng.integers(ROWS, size=(n, TOKENS))
        drawn, leaks = row + rng.random(row.shape), rng.random(row.shape) < share[:, None]
        cells = np.where(leaks, np.searchsorted(draft, drawn), np.searchsorted(target, drawn))
        sums = {
            "leak_score": centred.ravel()[cells.clip(0, ROWS * VOCABULARY - 1)].sum(-1),
            "leak_information": information[row].sum(-1),
            "leak_var": variance[row].sum(-1),
        }
        found = leakage(pd.DataFrame(sums))
        bounds.append(math.nan if found is None else found["bound"])
    return float(np.mean(np.array(bounds) >= LEAK)), float(np.median(bounds))


def main(arguments: list[str]) -> int:
    """Print a table of the speedup and one of the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    ways = {"BCa": bca, "jackknife, Student": student, "spsbench": ours}
    print("95% intervals of the speedup: covered (overstated, understated), %\n")
    print(f"| times | prompts | {' | '.join(ways)} |\n| :-- | --: |{' --: |' * len(ways)}")
    for law in LAWS:
        for n in SIZES:
            shares = (100 * covered(way, law, n, options.runs, options.seed) for way in ways.values())
            cells = " | ".join(f"{one[0]:.1f} ({one[1]:.1f}, {one[2]:.1f})" for one in shares)
            print(f"| {law} | {n} | {cells} |", flush=True)
    print("\nThe bound of leakage: not below the leak, % (median bound, %)\n")
    print("| rows | prompts | in every prompt | in a quarter |\n| :-- | --: | --: | --: |")
    for name, setting in {
        "flat": Setting.make(1, 2, 0.7, 1),
        "nucleus .8": Setting.make(0.8, 50, 5, 2),
    }.items():
        for n in SIZES:
            both = (bounded(setting, where, n, options.runs, options.seed) for where in (False, True))
            cells = " | ".join(f"{100 * share:.1f} ({100 * bound:.0f})" for share, bound in both)
            print(f"| {name} | {n} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
