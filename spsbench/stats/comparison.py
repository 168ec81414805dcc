"""Two runs compared arm by arm, paired over prompts, and what keeps them from being compared.

Prompts are paired, so that texts of other lengths or difficulty cannot pass for a change of speed.
The runs themselves were not interleaved: a drift of the machine between them is in the ratio and not
in its interval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from spsbench import axes
from spsbench.axes import ArmIdentity
from spsbench.stats.bootstrap import plain, pooled_interval, ratio_of_sums
from spsbench.stats.conditions import contention
from spsbench.stats.corpus import CorpusMetric, by_prompt, corpus_metrics
from spsbench.stats.losslessness import identity
from spsbench.stats.parity import PASSED
from spsbench.stats.parity import compare as compare_figures
from spsbench.stats.scores import score_table
from spsbench.stats.speedup import finished, pair, speedup
from spsbench.summary_types import Divergence, RatioInterval

if TYPE_CHECKING:
    import pandas as pd


RULES = {
    "task": "the task",
    "prompt_sha256": "the wording of prompts",
    "chat_template": "the use of a chat template",
    "max_new_tokens": "the length limit",
    "stop": "the stop strings",
    "fixed_length": "the use of a fixed length",
}
"""Keys of a run's identity that must agree: with another rule a token's time is another quantity."""

SETTINGS = {
    "data": "the data",
    "pair": "the pair of models",
    "dtype": "the dtype",
    "seed": "the seed",
    "extract": "how code is taken from answers",
}
"""Keys of a run's identity that may well be the point of a comparison."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Sentences without a full stop."""

    refusals: tuple[str, ...]
    machine: tuple[str, ...]
    warnings: tuple[str, ...]


def reasons(a: Mapping[str, Any], b: Mapping[str, Any], arms: Sequence[str]) -> Reasons:
    """Compare two runs' records."""
    ours, theirs = (run.get("identity") or {} for run in (a, b))
    return Reasons(
        (*_differing(RULES, ours, theirs), *_rules(a, b), *_samplings(ours, theirs, arms)),
        tuple(_hardware(a, b)),
        (*_differing(SETTINGS, ours, theirs), *_scored_otherwise(a, b), *_software(a, b), *_stopped(a, b)),
    )


def _scored_otherwise(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Metrics of one name that were computed in different ways: by another tokenizer, version or script."""
    for name, (ours, theirs) in _unlike_signatures(a, b).items():
        yield (
            f"the metric {name} was computed in different ways ({ours or 'no signature'} in A, "
            f"{theirs or 'no signature'} in B), so its difference has no interval"
        )


def _unlike_signatures(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The signatures of both runs by metric, where they differ."""
    ours, theirs = (run.get("metrics") or {} for run in (a, b))
    pairs = {
        name: (about.get("signature"), theirs[name].get("signature"))
        for name, about in ours.items()
        if name in theirs
    }
    return {name: (mine, other) for name, (mine, other) in pairs.items() if mine != other}


def _stopped(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for name, run in (("A", a), ("B", b)):
        if (run.get("stopping") or {}).get("anytime"):
            yield f"{name} stopped by the width of its intervals; those here are for a fixed number"


def _differing(titles: Mapping[str, str], a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for key, title in titles.items():
        if a.get(key) != b.get(key):
            yield f"{title} differs{_values(a.get(key), b.get(key))}"


def _values(a: Any, b: Any) -> str:
    """`` (xsum, humaneval)`` where both are short enough to read."""
    texts = [str(value) for value in (a, b)]
    return f" ({', '.join(texts)})" if all(len(text) <= 40 for text in texts) else ""


def _rules(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = a.get("verification_rule") or {}, b.get("verification_rule") or {}
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):  # of earlier runs one for all arms
        yield from _differing({"verification_rule": "the verification rule"}, a, b)
        return
    for arm in ours:
        if arm in theirs and ours[arm] != theirs[arm]:
            yield f"the verification rule of {arm} differs{_values(ours[arm], theirs[arm])}"


def _samplings(a: Mapping[str, Any], b: Mapping[str, Any], arms: Sequence[str]) -> Iterator[str]:
    """Two arms of one name may warp differently (--top-p and others)."""
    ours, theirs = (_sampling_by_name(run) for run in (a, b))
    names = [name for name in ours if name in theirs and any(f"-{name}" in arm for arm in arms)]
    for name in names:
        if ours[name] != theirs[name]:
            yield f"the sampling {name!r} differs"


def _sampling_by_name(identity: Mapping[str, Any]) -> dict[str, Any]:
    arms = identity.get("arms") or []
    return {str(arm.get("sampling_name")): arm.get("sampling") for arm in arms if isinstance(arm, Mapping)}


def _hardware(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = (run.get("environment") or {} for run in (a, b))
    yield from _differing(
        {"model": "the CPU", "usable_threads": "the number of CPU threads"},
        ours.get("cpu") or {},
        theirs.get("cpu") or {},
    )
    if [gpu.get("name") for gpu in ours.get("gpus") or []] != [
        g.get("name") for g in theirs.get("gpus") or []
    ]:
        yield "the GPU differs"
    yield from _differing({"device": "the device"}, a.get("identity") or {}, b.get("identity") or {})


def _software(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = (run.get("environment") or {} for run in (a, b))
    yield from _differing({"spsbench": "the version of spsbench", "python": "Python"}, ours, theirs)
    libraries = [side.get("libraries") or {} for side in (ours, theirs)]
    yield from _differing({name: name for name in libraries[0]}, *libraries)
    commits = [(side.get("git") or {}).get("commit") for side in (ours, theirs)]
    if commits[0] != commits[1]:
        yield "the commit of spsbench differs"
    models = [run.get("models") or {} for run in (a, b)]
    yield from _differing({"threads": "the number of threads used"}, *models)


Floats = npt.NDArray[np.float64]


class Parting(Divergence, total=False):
    """The first token that differs; the later keys where the runs' model was asked again.

    ``gap``: between the two largest logits there, null with ``gap_unknown`` where no model could be loaded.
    """

    a_token: int | None
    b_token: int | None
    a_text: str | None
    b_text: str | None
    gap: float | None
    gap_unknown: str
    dtype: str


class ComparedTokens(TypedDict):
    """``TokenIdentity`` of an arm in two runs."""

    sequences: int
    identical: float
    first_divergence: Parting | None


class MetricDifference(TypedDict):
    """One metric in both runs, on the same prompts; ``difference`` is B - A."""

    metric: str
    prompts: int
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None


class ArmComparison(ArmIdentity):
    """One arm that both runs have; ``time_ratio`` is B over A: above 1, B is slower."""

    prompts: int
    a_ms_per_token: float
    b_ms_per_token: float
    time_ratio: RatioInterval
    a_speedup: float | None
    b_speedup: float | None
    metrics: list[MetricDifference]
    tokens: ComparedTokens | None


class RunComparison(TypedDict):
    """Two runs compared, see ``compare``."""

    a: str
    b: str
    refusals: list[str]
    machine: list[str]
    warnings: list[str]
    prompts: int
    only_a: list[str]
    only_b: list[str]
    arms: list[ArmComparison]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    name: str
    run: Mapping[str, Any]
    prompts: Mapping[str, str]
    samples: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Scoring:
    """How both runs were scored."""

    corpora: tuple[Mapping[str, CorpusMetric], Mapping[str, CorpusMetric]]
    unlike: Collection[str]

    @property
    def counted(self) -> set[str]:
        """The columns that are not scores themselves."""
        return {column for side in self.corpora for metric in side.values() for column in metric.columns}

    def without_interval(self, found: MetricDifference) -> MetricDifference:
        """A difference; its interval only if both runs computed the metric in the same way."""
        return {**found, "low": None, "high": None} if found["metric"] in self.unlike else found


def compare(a: Side, b: Side) -> RunComparison:
    """B against A, on the prompts that both asked in the same words."""
    shared = [example for example in a.prompts if a.prompts[example] == b.prompts.get(example)]
    names = [_arms(side) for side in (a, b)]
    common = [arm for arm in names[0] if arm in names[1]]
    found = reasons(a.run, b.run, common)
    found = _prompt_reasons(found, a, b, len(shared), bool(common))
    taken = _contended(a, b)
    found = replace(found, machine=(*found.machine, *taken))
    sides = [_by_arm(side.samples, shared) for side in (a, b)]
    known = names[0] | names[1]
    metrics = Scoring((corpus_metrics(a.run), corpus_metrics(b.run)), {*_unlike_signatures(a.run, b.run)})
    found_arms = (
        _arm(known[arm], *sides, metrics=metrics, baselines=_baselines(known, arm), alike=_alike(a, b, arm))
        for arm in common
    )
    arms = [_without_interval(arm) if taken else arm for arm in found_arms if arm is not None]
    result: RunComparison = {
        "a": a.name,
        "b": b.name,
        "refusals": list(found.refusals),
        "machine": list(found.machine),
        "warnings": list(found.warnings),
        "prompts": len(shared),
        "only_a": [arm for arm in names[0] if arm not in names[1]],
        "only_b": [arm for arm in names[1] if arm not in names[0]],
        "arms": sorted(arms, key=lambda arm: (arm["sampling"], arm["engine"], arm["k"])),
    }
    return plain(result)


def slower(compared: RunComparison, allowed: float) -> list[str]:
    """Arms of B that are slower than in A by more than ``allowed`` (0.02: 2%) beyond doubt.

    An arm fails if the lower end of the interval of its time ratio is above 1 + ``allowed``, so that
    noise alone seldom fails it; without an interval (one prompt) the ratio itself counts.
    """
    sentences = []
    for arm in compared["arms"]:
        ratio = arm["time_ratio"]
        low = ratio["ratio"] if ratio["low"] is None else ratio["low"]
        if low > 1.0 + allowed:
            sentences.append(f"{arm['arm']} takes {100 * (ratio['ratio'] - 1):.1f}% longer per token")
    return sentences


def undecided(compared: RunComparison, allowed: float) -> list[str]:
    """Arms whose interval holds both more and less than ``allowed``: the gate passes them unproved."""
    return [
        arm["arm"]
        for arm in compared["arms"]
        if (low := arm["time_ratio"]["low"]) is not None
        and (high := arm["time_ratio"]["high"]) is not None
        and low <= 1.0 + allowed < high
    ]


def _contended(a: Side, b: Side) -> list[str]:
    """A sentence for each run in which others had the CPU: its intervals would be too narrow."""
    found = ((side.name, contention(side.samples, side.run)["reasons"]) for side in (a, b))
    return [
        f"the times of {name} are not to be trusted: {'; '.join(reasons)}"
        for name, reasons in found
        if reasons
    ]


def _without_interval(arm: ArmComparison) -> ArmComparison:
    return {**arm, "time_ratio": {**arm["time_ratio"], "low": None, "high": None}}


def _prompt_reasons(found: Reasons, a: Side, b: Side, shared: int, any_arm: bool) -> Reasons:
    both = sum(example in b.prompts for example in a.prompts)
    refusals, warnings = list(found.refusals), list(found.warnings)
    if not any_arm:
        refusals.append("no arm is in both runs")
    if not shared:
        refusals.append("no prompt is in both runs" if not both else "every prompt differs in its words")
    elif both > shared:
        warnings.append(f"{both - shared} prompts of the same name differ in their words and are left out")
    left_out = len(a.prompts) + len(b.prompts) - 2 * both
    if shared and left_out:
        warnings.append(f"{left_out} prompts are in one run only and are left out")
    return Reasons(tuple(refusals), found.machine, tuple(warnings))


def _arms(side: Side) -> dict[str, ArmIdentity]:
    """What each arm is that has samples, by its name."""
    measured = set(side.samples["arm"])
    arms = (axes.identity(entry) for entry in side.run.get("arms") or [])
    return {arm["arm"]: arm for arm in arms if arm["arm"] in measured}


def _by_arm(samples: pd.DataFrame, examples: list[str]) -> dict[str, pd.DataFrame]:
    kept = samples[samples["example_id"].isin(examples)]
    return {str(arm): part for arm, part in kept.groupby("arm", sort=False)}


def _arm(
    entry: ArmIdentity,
    a: Mapping[str, pd.DataFrame],
    b: Mapping[str, pd.DataFrame],
    *,
    metrics: Scoring,
    baselines: Collection[str],
    alike: bool,
) -> ArmComparison | None:
    """One arm that both runs have; None where no sequence was finished in both."""
    name = entry["arm"]
    if name not in a or name not in b:
        return None
    times = pair(b[name], a[name])
    found = speedup(times)
    if found is None:
        return None
    return {
        **entry,
        "prompts": len(times),
        "a_ms_per_token": 1e3 * float(times.arm_s.sum() / times.arm_tokens.sum()),
        "b_ms_per_token": 1e3 * float(times.baseline_s.sum() / times.baseline_tokens.sum()),
        "time_ratio": {"ratio": found.ratio, "low": found.low, "high": found.high},
        "a_speedup": _speedup(name, a, baselines),
        "b_speedup": _speedup(name, b, baselines),
        "metrics": [
            metrics.without_interval(found)
            for found in (*_metrics(a[name], b[name], metrics), *_figures(a[name], b[name], metrics))
        ],
        "tokens": _tokens(a[name], b[name]) if alike else None,
    }


def _tokens(a: pd.DataFrame, b: pd.DataFrame) -> ComparedTokens | None:
    found = identity(a, b)
    if found is None:
        return None
    first = found["first_divergence"]
    return {
        "sequences": found["sequences"],
        "identical": found["identical"],
        "first_divergence": None
        if first is None
        else {
            "position": first["position"],
            "example_id": first["example_id"],
            "sample_index": first["sample_index"],
        },
    }


def _alike(a: Side, b: Side, arm: str) -> bool:
    """Whether the arm should have written the same in both: by the same seeds, or greedily."""
    ours, theirs = ((side.run.get("identity") or {}) for side in (a, b))
    if ours.get("seed") == theirs.get("seed"):
        return True
    arms = a.run.get("arms") or []
    return any(entry.get("arm") == arm and _greedy(entry, ours) for entry in arms)


def _greedy(arm: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    """By the sampling's parameters: its name is the task's to choose. A beam search draws nothing either."""
    known = identity.get("arms") or []
    named = (entry.get("sampling") for entry in known if entry.get("sampling_name") == arm.get("sampling"))
    return any(
        isinstance(sampling, Mapping) and (sampling.get("greedy") is True or sampling.get("beam") is not None)
        for sampling in named
    )


def _baselines(arms: Mapping[str, ArmIdentity], arm: str) -> list[str]:
    """The ArS arms that an arm is measured against: of its sampling and batch, none for ArS itself."""
    if arms[arm]["method"] == "ars":
        return []
    ground = arms[arm]["sampling"], arms[arm]["batch"]
    plain = {name: other for name, other in arms.items() if other["method"] == "ars"}
    return [name for name, other in plain.items() if (other["sampling"], other["batch"]) == ground]


def _speedup(arm: str, side: Mapping[str, pd.DataFrame], baselines: Collection[str]) -> float | None:
    """Over the fastest ArS arm of the same sampling, within one run."""
    ratios = [pair(side[name], side[arm]).ratio() for name in baselines if name in side]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _figures(a: pd.DataFrame, b: pd.DataFrame, metrics: Scoring) -> Iterator[MetricDifference]:
    """Every figure of a corpus that both have and sums give: B minus A on the prompts of both."""
    for name, metric in metrics.corpora[0].items():
        other = metrics.corpora[1].get(name)
        # A function belongs to the columns of this version: where both have one it is the same.
        if metric.value is None or other is None or other.value is None:
            continue
        ours, theirs = (
            by_prompt(samples, metric.counted(score_table(finished(samples)))) for samples in (a, b)
        )
        found = compare_figures(ours, theirs, None, value=metric.value)
        if found["baseline_mean"] is None or found["arm_mean"] is None or found["difference"] is None:
            continue
        yield {
            "metric": name,
            "prompts": found["prompts"],
            "a": found["baseline_mean"],
            "b": found["arm_mean"],
            "difference": found["difference"],
            "low": found["low"],
            "high": found["high"],
        }


def _metrics(a: pd.DataFrame, b: pd.DataFrame, metrics: Scoring) -> Iterator[MetricDifference]:
    """Every score that both have: mean over prompts of B minus A, paired."""
    tables = [_scores(samples) for samples in (a, b)]
    counted = metrics.counted
    for metric in tables[0].columns:
        if metric not in tables[1] or metric in counted:
            continue
        pairs = tables[0][metric].dropna(), tables[1][metric].dropna()
        shared = pairs[0].index.intersection(pairs[1].index, sort=False)
        if shared.empty:
            continue
        ours, theirs = (scores.loc[shared].to_numpy(dtype=np.float64) for scores in pairs)
        low, high = pooled_interval((theirs - ours, np.ones(len(shared))), ratio_of_sums)
        yield {
            "metric": "pass@1" if metric == PASSED else str(metric),
            "prompts": len(shared),
            "a": float(ours.mean()),
            "b": float(theirs.mean()),
            "difference": float((theirs - ours).mean()),
            "low": low,
            "high": high,
        }


def _scores(samples: pd.DataFrame) -> pd.DataFrame:
    """Mean scores by example_id."""
    done = finished(samples)
    table = score_table(done).astype("float64")
    return table.groupby(done["example_id"].loc[table.index], sort=False).mean()
