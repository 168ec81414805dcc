"""How soon does evidence of losslessness find a wrong sampler, and how narrow does it bound leakage?

Simulated engines write from known laws over random rows of a target and a draft; nothing of ours
generates. Two settings: ``flat``, every token possible, and ``nucleus`` .8 of sharp rows, which mostly
leaves one token. Compared are groups of e-values (a group's members are averaged, alarm at 1,000, looked
at after each sequence) and scores for the share lambda of the draft. Tokens of probability 0 are counted
apart and left out of every group, as for an engine whose rounding is coarser than ours.

Run by hand, some minutes on one core; all of it is synthetic:

    python benchmarks/leakage_power.py [--runs 100] [--sequences 400] [--null-runs 2000] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaln, logsumexp

from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.law.evidence import BINS, DRAFTED_SHARE, MIXTURES, POWERS, Sums, sums_of
from spsbench.stats.evidence_stats import SLOPES

Floats = npt.NDArray[np.float64]

VOCABULARY, ROWS, LENGTH = 200, 1000, 60
ALARM = math.log(1000)
BLOCK = 50  # simulated runs at a time: bounds memory
STAKES = (-0.3, -0.1, -0.03, 0.03, 0.1, 0.3)
TINY = 1e-300


@dataclass(frozen=True)
class Setting:
    """Random rows of a pair.

    Attributes:
        q, p, raw: [rows, tokens] target, draft, and the draft before warping.
    """

    q: Floats
    p: Floats
    raw: Floats

    @classmethod
    def make(cls, top_p: float, sharpness: float, noise: float, seed: int) -> Setting:
        """Rows of a sharpness (deviation of the logits) whose draft is off by a noise, in logits, too."""
        generator = torch.Generator().manual_seed(seed)
        shape = (ROWS, VOCABULARY)
        logits = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        noisy = logits + noise * torch.randn(shape, generator=generator, dtype=torch.float64)
        params = SamplingParams(top_p=top_p)
        return cls(warp(logits, params).numpy(), warp(noisy, params).numpy(), noisy.softmax(-1).numpy())

    @cached_property
    def possible(self) -> npt.NDArray[np.bool_]:
        """[rows, tokens] whether the target has the token."""
        return self.q > 0

    @cached_property
    def outside(self) -> Floats:
        """[rows, 1] mass of the draft where the target has none."""
        return np.asarray(np.where(self.possible, 0.0, self.p).sum(-1, keepdims=True))

    @cached_property
    def ratio(self) -> Floats:
        """[rows, tokens] draft over target."""
        return self.p / np.maximum(self.q, TINY)


def laws(s: Setting) -> dict[str, Floats]:
    """[rows, tokens] what right and wrong engines emit."""
    found = {f"lambda {share}": (1 - share) * s.q + share * s.p for share in (0.0, 0.01, 0.05)}
    accepted = np.minimum(s.p, s.q)
    return found | {
        "inverted ratio": _corrected(s, s.p * np.minimum(s.ratio, 1.0)),
        "no residual": accepted + (1 - accepted.sum(-1, keepdims=True)) * s.q,
        "raw draft": _corrected(s, s.raw * np.minimum(s.q / np.maximum(s.p, TINY), 1.0)),
    }


def _corrected(s: Setting, accepted: Floats) -> Floats:
    residual = np.maximum(s.q - s.p, 0.0)
    mass = residual.sum(-1, keepdims=True)
    residual = np.where(mass > 0, residual / np.maximum(mass, TINY), s.q)  # equal rows leave none
    return np.asarray(accepted + (1 - accepted.sum(-1, keepdims=True)) * residual)


def increments(s: Setting) -> dict[str, Floats]:
    """[rows, tokens] what a token adds to the log of each e-value that is a product; 0 where impossible."""
    choice = s.possible.sum(-1, keepdims=True) > 1
    bets = {f"mixture {share}": np.log1p(share * (s.ratio - 1)) for share in MIXTURES}
    bets = {name: np.where(choice, value, 0.0) for name, value in bets.items()}
    for share in MIXTURES:
        bets[f"within {share}"] = np.log1p(share * (s.ratio - 1)) - np.log1p(-share * s.outside)
    for power in POWERS:
        norm = np.log(np.where(s.possible, s.q**power, 0.0).sum(-1, keepdims=True))
        bets[f"power {power}"] = (power - 1) * np.log(np.maximum(s.q, TINY)) - norm
    wrong = laws(s)
    for name in ("no residual", "inverted ratio"):
        law = np.where(s.possible, wrong[name], 0.0) + TINY * s.q
        law /= law.sum(-1, keepdims=True)
        bets[f"{name.replace(' ', '-')} rule"] = np.log1p(DRAFTED_SHARE * (law / np.maximum(s.q, TINY) - 1))
    centred, _, _ = score(s, 0.5)
    bets |= {f"stake {stake}": np.log1p(stake * centred / 2) for stake in STAKES}
    return {name: np.where(s.possible, value, 0.0) for name, value in bets.items()}


def require_same(s: Setting) -> None:
    """What a token adds here is what ``spsbench.law.evidence`` sums up; else SystemExit."""
    tokens = np.asarray(s.q.argmax(-1))
    real: Sums = sums_of(torch.tensor(tokens), torch.tensor(s.q), torch.tensor(s.p), torch.rand(ROWS))
    mine = {name: float(table[np.arange(ROWS), tokens].sum()) for name, table in increments(s).items()}
    pairs = {f"within {share}": f"mixture_{share}" for share in MIXTURES}
    pairs |= {f"power {power}": f"power_{power}" for power in POWERS} | {"no-residual rule": "no_residual"}
    for own, theirs in pairs.items():
        if not math.isclose(mine[own], real[f"log_e_{theirs}"], rel_tol=1e-6, abs_tol=1e-6):
            raise SystemExit(f"{own}: {mine[own]} here, {real[f'log_e_{theirs}']} in spsbench")


def score(s: Setting, share: float) -> tuple[Floats, Floats, Floats]:
    """(centred score [rows, tokens], information [rows], variance [rows]) of the efficient score at a lambda.

    At 1/2 it is (p - q) / (p + q) but for a factor of 2.
    """
    mixed = (1 - share) * s.q + share * s.p
    value = np.where(mixed > 0, (s.p - s.q) / np.maximum(mixed, TINY), 0.0) * min(share, 1 - share)
    mean = (s.q * value).sum(-1)
    variance = (s.q * value**2).sum(-1) - mean**2
    return value - mean[:, None], ((s.p - s.q) * value).sum(-1), variance


def standard_errors(s: Setting) -> Iterator[tuple[str, float]]:
    """Of lambda at lambda 0, for 1,000 tokens."""
    choice = s.possible.sum(-1) > 1
    for share in (0.5, 0.2, 0.1, 0.05, 0.02):
        _, information, variance = score(s, share)
        for rows, which in (("rows with a choice", choice), ("all rows", np.ones_like(choice))):
            total = (information * which).mean()
            yield f"score at {share}, {rows}", math.sqrt((variance * which).mean() / 1000) / total


GROUPS = {
    "as it was": ("mixture", "power", "freedman", "transform"),
    "mixtures": ("mixture",),
    "mixtures, draft cut to the target's tokens": ("within",),
    "Freedman": ("freedman",),
    "stakes on a grid": ("stake",),
    "stake adapted (ONS)": ("ons",),
    "bet on no residual": ("no-residual",),
    "bet on the inverted ratio": ("inverted-ratio",),
    "draft cut": ("within", "power", "freedman", "transform"),
    "draft cut, no residual (spsbench)": ("within", "power", "freedman", "transform", "no-residual"),
    "draft cut, both rules": ("within", "power", "freedman", "transform", "no-residual", "inverted-ratio"),
}


class Simulation:
    """Runs of one setting under one law; of each run the logs of all e-values after each sequence."""

    def __init__(self, setting: Setting, law: Floats, seed: int) -> None:
        self._setting, self._bets = setting, increments(setting)
        self._centred, _, self._variance = score(setting, 0.5)
        self._cdf = (np.cumsum(law, -1) / law.sum(-1, keepdims=True) + np.arange(ROWS)[:, None]).ravel()
        self._rng = np.random.default_rng(seed)
        above = np.array([[row[row > x].sum() for x in row] for row in setting.q])
        self._above, self._tied = above, setting.q

    def logs(self, runs: int, sequences: int) -> tuple[dict[str, Floats], npt.NDArray[np.bool_]]:
        """({e-value: [runs, sequences] log}, [runs, sequences] whether an impossible token was seen)."""
        shape = (runs, sequences * LENGTH)
        row = self._rng.integers(ROWS, size=shape)
        flat = np.searchsorted(self._cdf, row + self._rng.random(shape)).clip(0, ROWS * VOCABULARY - 1)
        found = {name: _by_sequence(table.ravel()[flat]).cumsum(-1) for name, table in self._bets.items()}
        possible = self._setting.possible.ravel()[flat]
        steps = np.where(possible, self._centred.ravel()[flat], 0.0)
        variance = np.where(possible, self._variance[row], 0.0)
        found |= _freedman(_by_sequence(steps).cumsum(-1), _by_sequence(variance).cumsum(-1))
        found["ons"] = _ons(steps / 2)
        choice = possible & (self._setting.possible.sum(-1) > 1)[row]
        found["transform"] = self._transform(flat, choice)
        return found, ~(_by_sequence((~possible).astype(float)).cumsum(-1) == 0)

    def _transform(self, flat: npt.NDArray[np.int64], choice: npt.NDArray[np.bool_]) -> Floats:
        v = self._rng.random(flat.shape)
        place = self._above.ravel()[flat] + v * self._tied.ravel()[flat]
        cell = (place * BINS).astype(int).clip(0, BINS - 1)
        counts = np.stack([_by_sequence(1.0 * ((cell == i) & choice)).cumsum(-1) for i in range(BINS)])
        n = counts.sum(0)
        constant = gammaln(BINS) - gammaln(BINS + n) + n * math.log(BINS)
        return np.asarray(constant + gammaln(counts + 1.0).sum(0))


def _by_sequence(values: Floats) -> Floats:
    return np.asarray(values.reshape(len(values), -1, LENGTH).sum(-1))


def _freedman(total: Floats, variance: Floats) -> dict[str, Floats]:
    """As ``spsbench.stats.evidence_stats`` bets on the direction of the score."""
    stakes, b = np.asarray(SLOPES)[:, None, None], 2.0
    cost = (np.expm1(stakes * b) - stakes * b) / b**2 * variance
    both = {"favoured": total, "shunned": -total}
    return {
        f"freedman {name}": np.asarray(logsumexp(stakes * sign - cost, axis=0) - math.log(len(SLOPES)))
        for name, sign in both.items()
    }


def _ons(steps: Floats) -> Floats:
    """Log wealth of a stake in [-1/2, 1/2] that online Newton steps choose from the tokens before."""
    stake, curvature = np.zeros(len(steps)), np.ones(len(steps))
    wealth = np.zeros_like(steps)
    for t in range(steps.shape[1]):
        gain = 1 + stake * steps[:, t]
        wealth[:, t] = np.log(gain)
        slope = -steps[:, t] / gain
        curvature += slope**2
        stake = np.clip(stake - 2 / (2 - math.log(3)) * slope / curvature, -0.5, 0.5)
    return _by_sequence(wealth).cumsum(-1)


def grouped(logs: Mapping[str, Floats], heads: tuple[str, ...]) -> Floats:
    """Log of the mean of the e-values whose name begins with one of the heads."""
    chosen = [value for name, value in logs.items() if name.split()[0] in heads]
    return np.asarray(logsumexp(chosen, axis=0) - math.log(len(chosen)))


def first_alarms(simulation: Simulation, runs: int, sequences: int) -> dict[str, Floats]:
    """By group, and for the first impossible token: sequences until the alarm of each run, or infinity."""
    found: dict[str, list[Floats]] = {}
    for start in range(0, runs, BLOCK):
        logs, impossible = simulation.logs(min(BLOCK, runs - start), sequences)
        reached = {name: grouped(logs, heads) >= ALARM for name, heads in GROUPS.items()}
        for name, hits in (reached | {"first impossible token": impossible}).items():
            first = np.where(hits.any(-1), hits.argmax(-1) + 1.0, np.inf)
            found.setdefault(name, []).append(first)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def main(arguments: list[str]) -> int:
    """Print a table of standard errors and one of alarms for each setting."""
    options = _options(arguments)
    settings = {"flat": Setting.make(1.0, 2.0, 0.7, 1), "nucleus .8": Setting.make(0.8, 50.0, 5.0, 2)}
    for name, setting in settings.items():
        require_same(setting)
        print(f"## {name}\n\n{_described(setting)}\n")
        print("| lambda's standard error at 1,000 tokens | |\n| :-- | --: |")
        for what, error in standard_errors(setting):
            print(f"| {what} | {error:.4f} |")
        print()
        _print_alarms(setting, options)
    return 0


def _described(s: Setting) -> str:
    overlap, choice = np.minimum(s.p, s.q).sum(-1).mean(), (s.possible.sum(-1) > 1).mean()
    return f"{choice:.0%} of rows leave a choice; alpha {overlap:.2f}; draft outside {s.outside.mean():.3f}"


def _print_alarms(setting: Setting, options: argparse.Namespace) -> None:
    print(f"Median sequences of {LENGTH} tokens until the alarm (share of runs with one)\n")
    columns: dict[str, dict[str, Floats]] = {}
    for index, (name, law) in enumerate(laws(setting).items()):
        runs = options.null_runs if name == "lambda 0.0" else options.runs
        simulation = Simulation(setting, law, options.seed + index)
        columns[name] = first_alarms(simulation, runs, options.sequences)
    print(f"| | {' | '.join(columns)} |\n| :-- |{' --: |' * len(columns)}")
    for group in next(iter(columns.values())):
        print(f"| {group} | {' | '.join(_cell(column[group]) for column in columns.values())} |", flush=True)
    print()


def _cell(first: Floats) -> str:
    median = float(np.median(first))
    return (
        f"{median:.0f} ({np.isfinite(first).mean():.4g})"
        if math.isfinite(median)
        else (f"- ({np.isfinite(first).mean():.4g})")
    )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--sequences", type=int, default=400)
    parser.add_argument("--null-runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
