"""Two runs compared arm by arm, paired over prompts, and what keeps them from being compared.

Prompts are paired, so that texts of other lengths or difficulty cannot pass for a change of speed.
The runs themselves were not interleaved: a drift of the machine between them is in the ratio and not
in its interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np

from spsbench.base import axes
from spsbench.base.arrays import Floats
from spsbench.base.axes import ArmIdentity
from spsbench.base.errors import UsageError
from spsbench.base.messages import Message
from spsbench.base.records import Speedup
from spsbench.stats.bootstrap import plain, pooled_interval
from spsbench.stats.conditions import contention
from spsbench.stats.corpus import by_prompt, corpus_metrics, score_table
from spsbench.stats.losslessness import identity
from spsbench.stats.messages import comparison
from spsbench.stats.parity import PASSED, Units, Value, differences, figure, per_prompt
from spsbench.stats.speedup import (
    finished,
    hidden,
    pair,
    paired_sums,
    ratio_of_sums,
    shown,
    speedup_over_prompts,
)
from spsbench.store.summary_types import Contention, MetricInterval, RatioInterval, TokenIdentity

if TYPE_CHECKING:
    import pandas as pd


Run = Mapping[str, Any]


Reason = Message | str


@dataclass(frozen=True, slots=True)
class Reasons:
    """What keeps two runs from being compared, what the machines explain, and what to know besides."""

    refusals: tuple[Reason, ...]
    machine: tuple[Reason, ...]
    warnings: tuple[Reason, ...]


def reasons(a: Run, b: Run, arms: Sequence[str]) -> Reasons:
    """Compare two runs' records."""
    identities, environments = _of_both(a, b, "identity"), _of_both(a, b, "environment")
    libraries = _of_both(*environments, "libraries")
    gpus = [[gpu.get("name") for gpu in side.get("gpus") or []] for side in environments]
    used = _of_both(a, b, "gpu")
    both = all(used)
    commits = [side.get("commit") for side in _of_both(*environments, "git")]
    return Reasons(
        (*_differing(comparison.RULES, *identities), *_rules(a, b), *_samplings(*identities, arms)),
        (
            *_differing(comparison.CPU, *_of_both(*environments, "cpu")),
            *([comparison.GPU_DIFFERS] if gpus[0] != gpus[1] and not both else []),
            *(_differing(comparison.GPU, *used) if both else []),
            *_differing(comparison.DEVICE, *identities),
        ),
        (
            *_differing(comparison.SETTINGS, *identities),
            *(
                comparison.MetricsUnlike(name, *signatures)
                for name, signatures in _unlike_signatures(a, b).items()
            ),
            *_differing(comparison.SOFTWARE, *environments),
            *_differing({name: name for name in libraries[0]}, *libraries),
            *([comparison.COMMIT_DIFFERS] if commits[0] != commits[1] else []),
            *_differing(comparison.THREADS, *_of_both(a, b, "models")),
            *(_differing(comparison.GPU_SOFTWARE, *used) if both else []),
            *(
                comparison.StoppedByWidth(name)
                for name, run in (("A", a), ("B", b))
                if (run.get("stopping") or {}).get("anytime")
            ),
        ),
    )


def _of_both(a: Run, b: Run, key: str) -> tuple[Any, Any]:
    return a.get(key) or {}, b.get(key) or {}


def _differing(titles: Mapping[str, str], a: Run, b: Run) -> Iterator[comparison.Differs]:
    for key, title in titles.items():
        if a.get(key) != b.get(key):
            yield comparison.Differs.of(title, a.get(key), b.get(key))


def _rules(a: Run, b: Run) -> Iterator[comparison.Differs]:
    ours, theirs = _of_both(a, b, "verification_rule")
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        yield from _differing(comparison.ANY_RULE, a, b)
        return
    yield from _differing(
        {arm: f"{comparison.ANY_RULE['verification_rule']} of {arm}" for arm in ours if arm in theirs},
        ours,
        theirs,
    )


def _samplings(a: Run, b: Run, arms: Sequence[str]) -> Iterator[comparison.SamplingDiffers]:
    """Where two arms of one name warp differently (--top-p and others)."""
    ours, theirs = (
        {
            str(arm.get("sampling_name")): arm.get("sampling")
            for arm in run.get("arms") or []
            if isinstance(arm, Mapping)
        }
        for run in (a, b)
    )
    for name in ours:
        if name in theirs and ours[name] != theirs[name] and any(f"-{name}" in arm for arm in arms):
            yield comparison.SamplingDiffers(name)


def _unlike_signatures(a: Run, b: Run) -> dict[str, tuple[Any, Any]]:
    """Both runs' metric signatures where they differ: another tokenizer, version or script."""
    ours, theirs = _of_both(a, b, "metrics")
    pairs = {
        name: (about.get("signature"), theirs[name].get("signature"))
        for name, about in ours.items()
        if name in theirs
    }
    return {name: (mine, other) for name, (mine, other) in pairs.items() if mine != other}


class MetricDifference(MetricInterval):
    """One metric in both runs, on the same prompts; ``difference`` is B - A."""

    metric: str
    prompts: int
    a: float
    b: float
    difference: float


class ArmComparison(ArmIdentity):
    """One arm of A against one of B; ``time_ratio`` is B over A: above 1, B is slower.

    ``b_arm``: the arm of B, where it has another name. ``speedup_ratio``: B's speedup over A's, each over
    ArS of its own run, which takes out a drift of the machine between the runs; null without ArS.
    """

    b_arm: str
    speedup_ratio: RatioInterval | None
    a_tokens_per_loop: float | None
    b_tokens_per_loop: float | None
    prompts: int
    a_ms_per_token: float
    b_ms_per_token: float
    time_ratio: RatioInterval
    a_speedup: float | None
    b_speedup: float | None
    metrics: list[MetricDifference]
    tokens: TokenIdentity | None


class Unfinished(TypedDict):
    """An arm that finished fewer of the shared prompts in B than in A, or none in one of them.

    ``reason``: what most of the others ended with; null where they were never asked.
    """

    arm: str
    b_arm: str
    a_finished: int
    b_finished: int
    reason: str | None


class RunComparison(TypedDict):
    """Two runs compared, see ``compare``."""

    a: str
    b: str
    tags: NotRequired[dict[str, dict[str, str]]]
    refusals: list[str]
    machine: list[str]
    warnings: list[str]
    prompts: int
    only_a: list[str]
    only_b: list[str]
    unfinished: list[Unfinished]
    arms: list[ArmComparison]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    name: str
    run: Run
    prompts: Mapping[str, str]
    samples: pd.DataFrame
    loops: pd.DataFrame | None = None

    def arms(self) -> dict[str, ArmIdentity]:
        """Return what each arm is that has samples, by its name."""
        measured = set(self.samples["arm"])
        arms = (axes.identity(entry) for entry in self.run.get("arms") or [])
        return {arm["arm"]: arm for arm in arms if arm["arm"] in measured}

    def kept(self, examples: Sequence[str]) -> Side:
        """Return the same with the samples of some prompts only."""
        samples, loops = (
            None if frame is None else frame[frame["example_id"].isin(examples)]
            for frame in (self.samples, self.loops)
        )
        assert samples is not None
        return Side(self.name, self.run, self.prompts, samples, loops)

    def declared(self) -> set[str]:
        """Return the names of the arms that were to be measured."""
        return {str(axes.identity(entry)["arm"]) for entry in self.run.get("arms") or []}

    def finished_prompts(self, arm: str) -> tuple[int, str | None]:
        """Return how many prompts an arm has a time of, of every sequence, and why most others have none."""
        samples = self.of(arm)
        timed = samples["decode_s"].map(lambda seconds: math.isfinite(seconds) and seconds > 0)
        good = timed.astype(bool) & samples.index.isin(finished(samples).index)
        errors = samples["error"][~good].dropna()
        reason = comparison.NO_TIMES if not len(errors) and not good.all() else None
        if len(errors):
            reason = str(errors.mode().iloc[0])
        return int(good.groupby(samples["example_id"]).all().sum()), reason

    def of(self, arm: str) -> pd.DataFrame:
        """Return the samples of one arm."""
        return self.samples[self.samples["arm"] == arm]

    def baseline(self, arm: ArmIdentity) -> str | None:
        """Return the fastest ArS arm of the same sampling and batch; None for ArS itself, and without one."""
        if arm["method"] == "ars":
            return None
        ground = arm["sampling"], arm["batch"]
        ratios = {
            name: pair(self.of(name), self.of(arm["arm"])).ratio()
            for name, other in self.arms().items()
            if other["method"] == "ars" and (other["sampling"], other["batch"]) == ground
        }
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        return min(known, key=known.__getitem__, default=None)

    def speedup(self, arm: ArmIdentity) -> float | None:
        """Return the speedup over ``baseline``, within one run."""
        base = self.baseline(arm)
        return None if base is None else pair(self.of(base), self.of(arm["arm"])).ratio()

    def tokens_per_loop(self, arm: str) -> float | None:
        """Return emitted tokens over loops; None where loops were not seen."""
        if self.loops is None or not len(arm_loops := self.loops[self.loops["arm"] == arm]):
            return None
        return float(arm_loops["emitted"].sum()) / len(arm_loops)


def matched(a: Side, b: Side, named: Mapping[str, str]) -> dict[str, str]:
    """Return which arm of B each arm of A is compared with.

    The one of the same name; those that were named; and where each run has one SpS arm, these, if they have
    one sampling and batch.

    Raises:
        UsageError: a named arm is not there.
    """
    ours, theirs = a.arms(), b.arms()
    for arms, side, chosen in ((ours, "A", named.keys()), (theirs, "B", named.values())):
        for arm in chosen:
            if arm not in arms:
                remedy = f"{side} has {', '.join(arms)}."
                raise UsageError(f"{arm} is not an arm of {side}.", flag="--arm", remedy=remedy)
    other_of = {arm: arm for arm in ours if arm in theirs and arm not in named} | dict(named)
    drafting = [[arm for arm in arms.values() if arm["method"] == "sps"] for arms in (ours, theirs)]
    if not named and all(len(each) == 1 for each in drafting):
        (one,), (other,) = drafting
        if (one["sampling"], one["batch"]) == (other["sampling"], other["batch"]):
            other_of[one["arm"]] = other["arm"]
    return other_of


def compare(a: Side, b: Side, named: Mapping[str, str] | None = None) -> RunComparison:
    """Compare B with A on the prompts that both asked in the same words; ``named``: see ``matched``."""
    shared = [example for example in a.prompts if a.prompts[example] == b.prompts.get(example)]
    names = a.arms(), b.arms()
    pairs = matched(a, b, named or {})
    common = [arm for arm, other in pairs.items() if arm == other]
    differences_of_runs = reasons(a.run, b.run, common)
    refusals, warnings = _prompt_reasons(a, b, len(shared), bool(pairs))
    lost = [contention(side.samples, side.run) for side in (a, b)]
    held = [
        comparison.ContentionHeld(side.name, tuple(taken["reasons"]))
        for side, taken in zip((a, b), lost, strict=True)
        if taken["reasons"]
    ]
    hides = any(share >= 1.0 for taken in lost for share in taken.get("lost_by_arm", {}).values())
    kept_a = a.kept(shared)
    kept_b = b.kept(shared)
    arms = [_arm(names[0][arm], names[1][other], kept_a, kept_b, lost) for arm, other in pairs.items()]
    result: RunComparison = {
        "a": a.name,
        "b": b.name,
        "refusals": [*map(str, (*differences_of_runs.refusals, *refusals))],
        "machine": [*map(str, (*differences_of_runs.machine, *(held if hides else [])))],
        "warnings": [*map(str, (*differences_of_runs.warnings, *warnings, *([] if hides else held)))],
        "prompts": len(shared),
        "only_a": [arm for arm in names[0] if arm not in pairs],
        "only_b": [arm for arm in names[1] if arm not in pairs.values()],
        "unfinished": [*_unfinished(kept_a, kept_b, pairs)],
        "arms": sorted(filter(None, arms), key=lambda arm: (arm["sampling"], arm["engine"], arm["k"])),
    }
    if tags := {name: side.run["tags"] for name, side in (("a", a), ("b", b)) if side.run.get("tags")}:
        result["tags"] = tags
    return plain(result)


def _unfinished(a: Side, b: Side, pairs: Mapping[str, str]) -> Iterator[Unfinished]:
    """The arms that the prompts' times cannot stand for, see ``Unfinished``."""
    unmeasured = {arm: arm for arm in a.arms() if arm in b.declared() - {*b.arms()} and arm not in pairs}
    for arm, other in {**pairs, **unmeasured}.items():
        (ours, a_reason), (theirs, b_reason) = a.finished_prompts(arm), b.finished_prompts(other)
        if not ours or theirs < ours:
            yield {
                "arm": arm,
                "b_arm": other,
                "a_finished": ours,
                "b_finished": theirs,
                "reason": b_reason if ours else a_reason,
            }


def slower(compared: RunComparison, allowed: float) -> list[comparison.Slower]:
    """The arms of B that are surely slower than in A by more than ``allowed`` (0.02: 2%).

    An arm fails if the lower end of the interval of its time ratio is above 1 + ``allowed``, so that
    noise alone seldom fails it; without an interval (one prompt) the ratio itself counts.
    """
    found = []
    for arm in compared["arms"]:
        ratio = arm["time_ratio"]
        low = ratio["ratio"] if ratio["low"] is None else ratio["low"]
        if low > 1.0 + allowed:
            found.append(comparison.Slower(axes.both_arms(arm), ratio["ratio"]))
    return found


def undecided(compared: RunComparison, allowed: float) -> list[str]:
    """The arms whose interval holds more and less than ``allowed``: the gate passes them unproved."""
    names = []
    for arm in compared["arms"]:
        low, high = arm["time_ratio"]["low"], arm["time_ratio"]["high"]
        if low is not None and high is not None and low <= 1.0 + allowed < high:
            names.append(axes.both_arms(arm))
    return names


def _prompt_reasons(a: Side, b: Side, shared: int, any_arm: bool) -> tuple[list[Reason], list[Reason]]:
    """Refusals, and warnings."""
    both = sum(example in b.prompts for example in a.prompts)
    refusals: list[Reason] = [] if any_arm else [comparison.NO_COMMON_ARM]
    warnings: list[Reason] = []
    if not shared:
        refusals.append(comparison.EVERY_PROMPT_DIFFERS if both else comparison.NO_COMMON_PROMPT)
    elif both > shared:
        warnings.append(comparison.PromptsReworded(both - shared))
    left_out = len(a.prompts) + len(b.prompts) - 2 * both
    if shared and left_out:
        warnings.append(comparison.PromptsOfOneRun(left_out))
    return refusals, warnings


def speedup_ratio(a: Sequence[pd.DataFrame], b: Sequence[pd.DataFrame]) -> Speedup | None:
    """Return B's speedup over A's with its 95% interval over prompts.

    ``a`` and ``b`` each hold samples of ArS and of the arm.
    """
    import pandas as pd

    sums = pd.concat([paired_sums(*a), paired_sums(*b)], axis=1, join="inner").to_numpy(np.float64).T
    if not sums.size or not (sums.sum(1) > 0).all():
        return None

    def statistic(columns: Floats) -> Floats:
        return np.asarray(ratio_of_sums(columns[4:]) / ratio_of_sums(columns[:4]))

    point = float(statistic(sums.sum(1, keepdims=True))[0])
    return Speedup(point, *pooled_interval([*sums], statistic, log=True))


def _arm(
    entry: ArmIdentity, other: ArmIdentity, a: Side, b: Side, lost: Sequence[Contention]
) -> ArmComparison | None:
    """Compare one arm of A with one of B; None where no sequence was finished in both."""
    name, its = entry["arm"], other["arm"]
    a_samples, b_samples = a.of(name), b.of(its)
    times = pair(b_samples, a_samples)
    shares = [each.get("lost_by_arm", {}) for each in lost]
    plain = speedup_over_prompts(times)
    if plain is None:
        return None
    # B's time over A's: CPU contention of B may hide that B is faster, and of A that A is.
    low, high = hidden((plain.low, plain.high), shares[1].get(its, 0.0), shares[0].get(name, 0.0))
    return {
        **entry,
        "b_arm": its,
        "speedup_ratio": shown(_speedup_ratio(entry, other, a, b, shares)),
        "a_tokens_per_loop": a.tokens_per_loop(name),
        "b_tokens_per_loop": b.tokens_per_loop(its),
        "prompts": len(times),
        "a_ms_per_token": 1e3 * float(times.arm_s.sum() / times.arm_tokens.sum()),
        "b_ms_per_token": 1e3 * float(times.baseline_s.sum() / times.baseline_tokens.sum()),
        "time_ratio": {"ratio": plain.ratio, "low": low, "high": high},
        "a_speedup": a.speedup(entry),
        "b_speedup": b.speedup(other),
        "metrics": list(_metric_differences(a_samples, b_samples, a.run, b.run)),
        "tokens": identity(a_samples, b_samples)
        if name == its and _should_be_identical(a.run, b.run, name)
        else None,
    }


def _speedup_ratio(
    entry: ArmIdentity, other: ArmIdentity, a: Side, b: Side, lost: Sequence[Mapping[str, float]]
) -> Speedup | None:
    """None where a run has no ArS beside the arms."""
    bases = a.baseline(entry), b.baseline(other)
    if bases[0] is None or bases[1] is None:
        return None
    arms = (bases[0], entry["arm"]), (bases[1], other["arm"])
    ratio = speedup_ratio((a.of(arms[0][0]), a.of(arms[0][1])), (b.of(arms[1][0]), b.of(arms[1][1])))
    if ratio is None:
        return None
    # At worst others delayed A's ArS and B's arm alone, or the other two.
    (base_a, arm_a), (base_b, arm_b) = (
        [each.get(arm, 0.0) for arm in of] for each, of in zip(lost, arms, strict=True)
    )
    lower = 1.0 - (1.0 - arm_a) * (1.0 - base_b)
    upper = 1.0 - (1.0 - base_a) * (1.0 - arm_b)
    return Speedup(ratio.ratio, *hidden((ratio.low, ratio.high), lower, upper))


def _should_be_identical(a: Run, b: Run, arm: str) -> bool:
    """By the same seeds, or greedily.

    Greedy by the sampling's parameters: its name is the task's to choose. A beam search draws nothing either.
    """
    ours, theirs = _of_both(a, b, "identity")
    if ours.get("seed") == theirs.get("seed"):
        return True
    names = {entry.get("sampling") for entry in a.get("arms") or [] if entry.get("arm") == arm}
    named = (entry.get("sampling") for entry in ours.get("arms") or [] if entry.get("sampling_name") in names)
    return any(
        isinstance(sampling, Mapping) and (sampling.get("greedy") is True or sampling.get("beam") is not None)
        for sampling in named
    )


def _metric_differences(a: pd.DataFrame, b: pd.DataFrame, of_a: Run, of_b: Run) -> Iterator[MetricDifference]:
    """Of every score that both have, and every corpus figure that sums give: B minus A, by prompt."""
    done = [finished(samples) for samples in (a, b)]
    tables = [score_table(samples) for samples in done]
    corpora = (corpus_metrics(of_a), corpus_metrics(of_b))
    counted = {column for side in corpora for metric in side.values() for column in metric.columns}
    units: dict[str, tuple[list[Units], Value | None]] = {}
    for name in tables[0].columns:
        if name in tables[1] and name not in counted:
            means = [per_prompt(*side, str(name)) for side in zip(done, tables, strict=True)]
            units["pass@1" if name == PASSED else str(name)] = [*means], None
    for name, metric in corpora[0].items():
        other = corpora[1].get(name)
        # A function belongs to the columns of this version: where both have one it is the same.
        if metric.value is not None and other is not None and other.value is not None:
            sums = zip(done, map(metric.counted, tables), strict=True)
            units[name] = [by_prompt(*side) for side in sums], metric.value
    unlike = _unlike_signatures(of_a, of_b)
    for name, (sides, value) in units.items():
        shared = sides[0].index.intersection(sides[1].index, sort=False)
        a_scores, b_scores = (side.loc[shared] for side in sides)
        first, second = figure(a_scores, value), figure(b_scores, value)
        if first is not None and second is not None:
            difference = figure(b_scores - a_scores, None) if value is None else second - first
            _, (low, high) = differences(a_scores, b_scores, value)
            yield {
                "metric": name,
                "prompts": len(shared),
                "a": first,
                "b": second,
                "difference": second - first if difference is None else difference,
                "low": None if name in unlike else low,
                "high": None if name in unlike else high,
            }
