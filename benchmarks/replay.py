"""The proof of replay: every cell predicted from one ArS run, then run for real on the same prompts.

    python -m benchmarks.replay [--pair mini|smollm2] [--prompts 40] [--max-new-tokens 128] [--budget 120]
        [--out results/replay]

A cell is a drafter with a K on one task and sampling. ArS runs first; replay reads its texts and times loops;
then ArS and every cell run side by side. Deviations are predicted over measured. Prompts are shared, texts of
SpS are others, and both sides are samples: beside a deviation stands its standard error. A speedup counts as
covered where the 95% interval of the quotient of both, taken as independent, holds 1; where other processes
had the CPU there is no interval. With ``--around`` replay times its loops once more behind the runs: what the
machine changed in between shows as the difference of the two, and their mean is judged too. The embedded
pair and its tasks are synthetic. Run it on a quiet machine: ten minutes on the embedded pair, half an hour
else.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.base.environment import describe_environment
from spsbench.report.tables import Table, left, right

_TASKS = {"mini": ("xsum", "humaneval"), "smollm2": ("humaneval", "examples/chat.jsonl")}
_DRAFTERS = {
    "mini": "model,lookup,bigram,union,quantised",
    "smollm2": "heads:bits=8,quantised,lookup,suffix,union:of=lookup+heads",
}
_KS = "2,5"
_SAMPLINGS: dict[str, tuple[str, ...]] = {"task": (), "T=1": ("--temperature", "1", "--top-p", "1")}
_MOST_LENGTH, _MOST_SPEED = 0.02, 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with the standard error of its logarithm, read off its 95% interval."""

    value: float
    error: float

    @classmethod
    def of(cls, value: float, low: float | None, high: float | None) -> Estimate:
        """From an interval; without one the error is not known."""
        error = math.nan if low is None or high is None else math.log(high / low) / (2 * 1.96)
        return cls(value, error)

    def over(self, other: Estimate) -> Estimate:
        """The quotient, both being independent."""
        return Estimate(self.value / other.value, math.hypot(self.error, other.error))

    @property
    def holds_1(self) -> bool:
        """Whether 1 lies in the 95% interval."""
        return abs(math.log(self.value)) <= 1.96 * self.error


@dataclass(frozen=True, slots=True)
class Proof:
    """One cell, predicted and measured."""

    task: str
    sampling: str
    drafter: str
    k: int
    length: tuple[Estimate, Estimate]
    speedup: tuple[Estimate, Estimate]
    after: Estimate | None

    def around(self) -> tuple[Estimate, Estimate]:
        """The speedup predicted by the timings before and behind the run, and the measured one."""
        before, measured = self.speedup
        assert self.after is not None, "timed once"
        # Both rest on the same texts, so the error of the mean is taken as that of one.
        error = (before.error + self.after.error) / 2
        return Estimate(math.sqrt(before.value * self.after.value), error), measured


def main() -> None:
    """Predict, run, compare, print."""
    given = _arguments()
    facts = describe_environment()
    print(
        f"{facts['cpu']['model']}, {given.threads} threads, load {facts['load_1m']:.1f}, pair {given.pair}\n"
    )
    proofs: list[Proof] = []
    spent = {"ArS": 0.0, "replay": 0.0, "grid": 0.0}
    for task in _TASKS[given.pair]:
        for sampling, flags in _SAMPLINGS.items():
            if sampling in given.samplings:
                proofs += _cells(given, task, sampling, flags, spent)
    print("\n".join(_table(proofs).as_markdown()))
    print("\n".join(_verdict(proofs, spent)))


def _cells(
    given: argparse.Namespace, task: str, sampling: str, flags: tuple[str, ...], spent: dict[str, float]
) -> Iterator[Proof]:
    out = given.out / given.pair / Path(task).stem / sampling
    common = (
        "--pair",
        given.pair,
        "--limit",
        given.prompts,
        "--max-new-tokens",
        given.max_new_tokens,
        *flags,
    )
    common += ("--threads", given.threads, "--no-score", "--no-proof", "--quiet")
    drafters = ("--drafter", _DRAFTERS[given.pair], "--k", _KS)
    spent["ArS"] += _called("run", task, *common, "--arms", "ars", "--out", out / "ars")[0]
    asked = ("--budget", given.budget, "--threads", given.threads, "--json", "--quiet")
    seconds, told = _called("replay", out / "ars", *drafters, *asked)
    spent["replay"] += seconds
    seconds, ran = _called("run", task, *common, *drafters, "--out", out / "live", "--json")
    spent["grid"] += seconds
    later: dict[tuple[str, int], Estimate] = {}
    if given.around:
        _, again = _called("replay", out / "ars", *drafters, *asked)
        later = {(c["drafter"], c["k"]): _speedup(c) for c in json.loads(again)["cells"]}
    arms = {(row["drafter"], row["k"]): row for row in json.loads(ran)["rows"] if row["method"] == "sps"}
    lengths = _lengths(out / "live")
    for cell in json.loads(told)["cells"]:
        row = arms[cell["drafter"], cell["k"]]
        speed = row["speedup"]
        yield Proof(
            task,
            sampling,
            cell["drafter"],
            cell["k"],
            (_read(cell["tokens_per_loop"]), lengths[row["arm"]]),
            (_speedup(cell), Estimate.of(speed["ratio"], speed["low"], speed["high"])),
            later.get((cell["drafter"], cell["k"])),
        )


def _lengths(run: Path) -> dict[str, Estimate]:
    """Tokens per loop of every arm, with its error over prompts."""
    import numpy as np

    from spsbench.stats.bootstrap import pooled_ratio
    from spsbench.store import read_frames

    found = {}
    for arm, loops in read_frames(run).loops.groupby("arm"):
        sums = loops.groupby("example_id")["emitted"].agg(["sum", "count"]).to_numpy(dtype=np.float64).T
        own = pooled_ratio(*sums)
        found[str(arm)] = Estimate.of(own.estimate, own.low, own.high)
    return found


def _speedup(cell: Mapping[str, Any]) -> Estimate:
    return _read(cell["predicted"]["speedup"])


def _read(told: Mapping[str, Any]) -> Estimate:
    return Estimate.of(told["estimate"], told["low"], told["high"])


def _called(*command: object) -> tuple[float, str]:
    """(seconds, what it printed) of a command of ours in a process of its own."""
    started = time.perf_counter()
    line = [sys.executable, "-m", "spsbench", *map(str, command)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - started, done.stdout


def _table(proofs: list[Proof]) -> Table:
    titles = ("tokens/loop", "measured", "off by", "speedup", "measured", "off by")
    rows = [
        [
            f"{Path(proof.task).stem}, {proof.sampling}",
            proof.drafter,
            str(proof.k),
            *_told(*proof.length, ""),
            *_told(*proof.speedup, "x"),
            _covered(proof.speedup[0].over(proof.speedup[1])),
        ]
        for proof in proofs
    ]
    return Table([left("task"), left("drafter"), right("K"), *map(right, titles), left("covered")], rows)


def _covered(off: Estimate) -> str:
    if math.isnan(off.error):
        return "-"
    return "yes" if off.holds_1 else "NO"


def _told(predicted: Estimate, measured: Estimate, unit: str) -> list[str]:
    off = predicted.over(measured)
    error = "" if math.isnan(off.error) else f" ± {off.error:.1%}"
    return [f"{predicted.value:.2f}{unit}", f"{measured.value:.2f}{unit}", f"{off.value - 1:+.1%}{error}"]


def _verdict(proofs: list[Proof], spent: Mapping[str, float]) -> list[str]:
    lines = ["", _judged("Tokens per loop", [proof.length for proof in proofs], _MOST_LENGTH)]
    lines.append(_judged("Speedup", [proof.speedup for proof in proofs], _MOST_SPEED))
    timed = [(proof.after, proof) for proof in proofs if proof.after is not None]
    if timed:
        behind = [(after, proof.speedup[1]) for after, proof in timed]
        lines.append(_judged("Speedup, timed behind the runs", behind, _MOST_SPEED))
        both = [proof.around() for _, proof in timed]
        lines.append(_judged("Speedup, timed before and behind", both, _MOST_SPEED))
        moved = [(proof.speedup[0], after) for after, proof in timed]
        lines.append(_judged("Timed before against timed behind", moved, _MOST_SPEED))
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in spent.items())
    return [*lines, f"Wall time: {times}."]


def _judged(what: str, pairs: list[tuple[Estimate, Estimate]], most: float) -> str:
    offs = [predicted.over(measured) for predicted, measured in pairs]
    within = sum(abs(off.value - 1) <= most for off in offs)
    return (
        f"{what}: {within} of {len(offs)} cells within {most:.0%}, median deviation {_median(offs):.1%}; "
        f"{_coverage(offs)}."
    )


def _coverage(offs: list[Estimate]) -> str:
    """Of the cells with an interval."""
    known = [off for off in offs if not math.isnan(off.error)]
    return f"{sum(off.holds_1 for off in known)} of {len(known)} covered"


def _median(offs: list[Estimate]) -> float:
    return statistics.median(abs(off.value - 1) for off in offs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", choices=list(_TASKS), default="mini")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for timing loops of a task")
    parser.add_argument("--samplings", default="task", help=f"of {', '.join(_SAMPLINGS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--around", action="store_true", help="time the loops behind the runs, too")
    parser.add_argument("--out", type=Path, default=Path("results/replay"))
    given = parser.parse_args()
    given.samplings = given.samplings.split(",")
    return given


if __name__ == "__main__":
    main()
