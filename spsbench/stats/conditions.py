"""What to know before believing a table: warnings, gates, other load, mixed conditions and workers.

CPU contention of the timings that count is held by every interval (``certainty``), once it is more than a
small share. Then a verdict stands where the wider interval decides, and nothing is judged where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from spsbench.base.messages import Message
from spsbench.base.records import ELAPSED
from spsbench.stats.losslessness import ALARM_Z
from spsbench.stats.messages import OfArm, evidence, full_name, runs, timings
from spsbench.stats.speedup import SEQUENCE, finished, matched_by
from spsbench.store.schema import condition
from spsbench.store.summary_types import (
    ArmLosslessness,
    ArmRow,
    ConditionPart,
    Conditions,
    Contention,
    Judgement,
    Losslessness,
    Parity,
    Summary,
)
from spsbench.store.timings import CLEAN

if TYPE_CHECKING:
    import pandas as pd


FEW_PROMPTS = 20
FEWEST_SEQUENCES, FEWEST_TOKENS, FAR, SLOW = 8, 8, 6.0, 1.5


def warnings(
    rows: Sequence[ArmRow],
    losslessness: Losslessness | None = None,
    parity: Parity | None = None,
    *,
    anytime: bool = False,
    data: object = None,
) -> list[Message]:
    """The warnings that a summary gives reason for, each once; ``data``: where the prompts come from."""
    names = {row["arm"]: full_name(row) for row in rows}
    found: list[Message] = [
        *([] if anytime else _few_prompts(rows, data)),
        *(OfArm(full_name(row), said) for row in rows for said in _of_row(row, rows, anytime)),
    ]
    for arm in () if losslessness is None else losslessness["arms"]:
        found += [OfArm(full_name(arm), said) for said in _of_evidence(arm)]
    for comparison in () if parity is None else parity["comparisons"]:
        # No lossless sampler differs, beyond chance.
        if parity is not None and comparison["verdict"] == "different":
            difference, low, high = (comparison[name] for name in ("difference", "low", "high"))
            found.append(
                OfArm(names[comparison["arm"]], runs.QualityDiffers(parity["metric"], difference, low, high))
            )
    return list(dict.fromkeys(found))


def more_prompts(rows: Sequence[ArmRow], data: object) -> str:
    """How to get more prompts than a run had: a limit can be raised only where the data hold more."""
    # Earlier runs name their source alone.
    split_size = data.get("split_size") if isinstance(data, Mapping) else None
    asked = max((row.get("paired_conversations", row["prompts"]) for row in rows), default=0)
    return runs.RAISE_LIMIT if split_size is None or asked < split_size else runs.GIVE_MORE_PROMPTS


def _few_prompts(rows: Sequence[ArmRow], data: object) -> Iterator[Message]:
    compared = [row for row in rows if (speedup := row["speedup"]) is not None and speedup["low"] is not None]
    unit = "wave" if any("paired_waves" in row for row in compared) else "prompt"
    unit = "conversation" if any("paired_conversations" in row for row in compared) else unit
    counts = [
        row.get("paired_waves", row.get("paired_conversations", row["paired_prompts"] or 0))
        for row in compared
    ]
    if counts and (least := min(counts)) < FEW_PROMPTS:
        yield runs.TooFewPrompts(least, unit, more_prompts(rows, data))


def _of_row(row: ArmRow, rows: Sequence[ArmRow], anytime: bool) -> Iterator[Message | str]:
    if row["failed"]:
        yield runs.SequencesFailed(row["failed"], row["failed"] + row["sequences"])
    if row["missing"]:
        yield runs.SequencesMissing(row["missing"])
    planned = any(other["method"] == "ars" and other["sampling"] == row["sampling"] for other in rows)
    if row["method"] != "ars" and row["baseline"] is None and not planned:
        yield runs.NO_BASELINE
    elif row["speedup"] is None and (row["baseline"] is not None or row["method"] != "ars"):
        yield runs.NO_COMMON_PROMPT
    if row["drifted"] and row["speedup_halves"] is not None:
        first, second = row["speedup_halves"]
        yield runs.SpeedupDrifted(first, second, anytime)
    score = row["acceptance_z"]
    if score is not None and abs(score) > ALARM_Z:
        yield runs.AcceptanceOfAnotherRule(evidence.AlphasDiffer(score))


def _of_evidence(arm: ArmLosslessness) -> Iterator[Message]:
    """Alarms of the recorded evidence, and greedy outputs that differ from greedy ArS."""
    kinds: dict[str, Judgement | None] = {
        "self-consistency": arm["self_consistency"],
        "losslessness": arm["rescored"],
        "re-derivation": arm.get("decisions"),
    }
    for title, judged in kinds.items():
        if judged is not None and judged["verdict"] == "alarm":
            yield runs.EvidenceFails(title, tuple(judged["reasons"]))
    same = arm["identity"]
    if same is not None and same["identical"] < 1 and (first := same["first_divergence"]):
        yield runs.GreedyOutputsDiffer(
            same["identical"], same["sequences"], first["example_id"], first["position"]
        )


def slow_sequences(by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]) -> list[OfArm]:
    """Which arms have single slow sequences; these stay in every number.

    An SpS sequence is compared with ArS on the same prompt, one of ArS with its own arm. It is named beyond
    ``FAR`` robust standard deviations (1.4826 times the median absolute deviation) from the arm's median, and
    at least ``SLOW`` times as slow. With normal logarithms that names one in 1.4% of clean arms of 8
    sequences, and in 0.3% of those of 20.
    """
    baselines = {row["baseline"] for row in rows}
    found = []
    for row in rows:
        arm_samples, reference = by_arm.get(row["arm"]), by_arm.get(row["baseline"] or "")
        if arm_samples is None or (reference is None and row["arm"] not in baselines):
            continue
        excess = (
            _log_seconds_per_token(arm_samples)
            if reference is None
            else (_log_seconds_per_token(arm_samples) - _log_seconds_per_token(reference)).dropna()
        )
        if len(excess) < FEWEST_SEQUENCES:
            continue
        excess -= excess.median()
        far = excess[excess > max(FAR * 1.4826 * float(excess.abs().median()), math.log(SLOW))]
        if len(far):
            far = far.sort_values(ascending=False)
            names = far.index.get_level_values("example_id")
            slowest = tuple((str(name), math.exp(size)) for name, size in zip(names, far, strict=True))
            found.append(OfArm(full_name(row), timings.SlowSequences(slowest)))
    return found


def _log_seconds_per_token(samples: pd.DataFrame) -> pd.Series[float]:
    """Of finished sequences, by prompt, sample and process.

    Sequences that are too short are left out.
    """
    done = finished(samples)
    done = done[(done["decode_s"] > 0) & (done["new_tokens"] >= FEWEST_TOKENS)]
    done = done.set_index(matched_by(done))
    return (done["decode_s"] / done["new_tokens"]).map(math.log)


MOST = {"waited_s": 0.06, "stolen_s": 0.02}
"""Seconds that a second of measuring may lose to contention where nothing was timed again, as of one text.
Intervals of a run hold it from ``CLEAN`` on, in sum: there it was tried to measure without."""

_SEEN_S = 0.005
"""Less reads as 0.00 s, and is not said beside what is more."""


def contention(samples: pd.DataFrame, info: Mapping[str, Any]) -> Contention:
    """Return how much of the measured time CPU contention took; null where the machine did not record it.

    Measured are the seconds of the machine: in a batch not those that a sequence is charged with.
    """
    shares = _shares(samples, info)
    again = info.get("remeasured")
    by_arm = {
        str(arm): min(1.0, sum(filter(None, _shares(part, info).values())))
        for arm, part in samples.groupby("arm", sort=False)
    }
    lost = max(by_arm.values(), default=0.0)
    if info.get("interval") is None:
        reasons = taken_too_much(shares)
    else:
        reasons = taken_too_much(shares, dict.fromkeys(MOST, 0.0)) if lost > CLEAN else []
    result: Contention = {
        "waited_share": shares["waited_s"],
        "stolen_share": shares["stolen_s"],
        "trusted": not reasons,
        "reasons": [*map(str, reasons)],
    }
    if reasons:
        result["lost_by_arm"] = by_arm
    if again:
        result["remeasured"] = again
    return result


def _shares(samples: pd.DataFrame, info: Mapping[str, Any]) -> dict[str, float | None]:
    """Return, for each that takes time, its share of all that was measured."""
    done = finished(samples)
    charged_s = [*(done["prefill_s"] + done["decode_s"])]
    recorded = [*done["conditions"]] if "conditions" in done else [None] * len(done)
    known = [seconds_of if isinstance(seconds_of, dict) else {} for seconds_of in recorded]
    measured_s = sum(
        seconds_of.get(ELAPSED, own_s) for seconds_of, own_s in zip(known, charged_s, strict=True)
    )
    shares: dict[str, float | None] = {}
    for name in timings.TAKEN:
        seconds = [seconds_of[name] for seconds_of in known if name in seconds_of]
        shares[name] = sum(seconds) / measured_s if seconds and measured_s > 0 else None
    if shares["stolen_s"] is None:
        shares["stolen_s"] = info.get("stolen_share")
    return shares


def taken_too_much(
    shares: Mapping[str, float | None], most: Mapping[str, float] = MOST
) -> list[timings.ContentionMeasured]:
    """CPU contention in each second measured, where that is above ``most``."""
    taken = {
        name: share for name, share in shares.items() if share is not None and share > most.get(name, 0.0)
    }
    seen = {name: share for name, share in taken.items() if share >= _SEEN_S}
    return [timings.ContentionMeasured(name, share) for name, share in (seen or taken).items()]


def contention_reasons(summary: Summary) -> list[str]:
    """CPU contention of a run, under any of its conditions, if its intervals include it."""
    return list(dict.fromkeys(reason for part in _contentions(summary) for reason in part["reasons"]))


def _contentions(summary: Summary) -> list[Contention]:
    """Under each of a run's conditions, as far as it was recorded."""
    parts = [entry.get("contention") for entry in summary.get("conditions") or []]
    return [part for part in parts or [summary.get("contention")] if part]


def _largest_lost_share(lost: Contention) -> float:
    """Of an arm's time; without shares by arm that of all that was measured."""
    if "lost_by_arm" in lost:
        return max(lost["lost_by_arm"].values(), default=0.0)
    return min(1.0, (lost.get("waited_share") or 0.0) + (lost.get("stolen_share") or 0.0))


def disturbance(summary: Summary) -> timings.ContentionIncluded | None:
    """What CPU contention does to a run's times, to be said wherever such times go; None for a clean run."""
    reasons = contention_reasons(summary)
    if not reasons:
        return None
    kind: type[timings.ContentionIncluded] = timings.ContentionHides
    judged = summary.get("verdict") or []
    unclear = [each for each in judged if each["outcome"] == "unclear"]
    if all(row.get("speedup") is None for row in summary["rows"]):
        kind = timings.ContentionIncluded
    elif judged and not unclear:
        kind = timings.ContentionWidened
    elif judged and all("lost_share" in each and "leaning" not in each for each in unclear):
        kind = timings.ContentionIncluded
    lost = max(_largest_lost_share(part) for part in _contentions(summary) if part["reasons"])
    by_folder = any(row.get("processes", 1) > 1 for row in summary["rows"])
    return kind(tuple(reasons), lost, by_folder)


def times_label(summary: Summary) -> str:
    """``clean``, or what CPU contention makes of a run's times: ``widened``, ``disturbed``, ``undecided``."""
    found = disturbance(summary)
    return "clean" if found is None else found.times


def is_trusted(summary: Summary) -> bool:
    """Whether times are clean, or decide although CPU contention took some of them."""
    found = disturbance(summary)
    return found is None or found.decides


def unlike_workers(info: Mapping[str, Any]) -> list[Message]:
    """That workers shared a machine, and that they were unlike; nothing where neither holds."""
    most = max((int(one.get("workers_per_machine", 1)) for one in info.get("conditions") or []), default=1)
    used = [condition(info, worker["condition"]) for worker in info.get("workers") or []]
    return [*([timings.WorkersShareMachine(most)] if most > 1 else []), *unlike(used)]


def unlike(workers: Iterable[Conditions]) -> list[timings.WorkersUnlike]:
    """That the conditions of workers differ, if they do."""
    conditions_of_all = list(workers)
    names = dict.fromkeys(name for conditions in conditions_of_all for name in conditions)
    values = {name: tuple(dict.fromkeys(str(one.get(name)) for one in conditions_of_all)) for name in names}
    differing = tuple((name, seen) for name, seen in values.items() if len(seen) > 1)
    return [timings.WorkersUnlike(differing)] if differing else []


Summarise = Callable[["pd.DataFrame", "pd.DataFrame", Mapping[str, Any]], Summary]


def separated(
    samples: pd.DataFrame, loops: pd.DataFrame, info: Mapping[str, Any], summarise: Summarise
) -> Summary:
    """Return the summary of a run; one of several conditions has its times under each, and none over all."""
    summary = summarise(samples, loops, info)
    present = sorted({int(index) for index in samples["condition"]}) if "condition" in samples else []
    if len(present) < 2:
        return summary
    known = [condition(info, index) for index in present]
    parts = [_summary_of(index, samples, loops, info, summarise) for index in present]
    entries: list[ConditionPart] = [
        {
            "settings": settings,
            "differ": _differing(settings, known),
            "rows": part["rows"],
            "contention": part["contention"],
        }
        for settings, part in zip(known, parts, strict=True)
    ]
    apart: Summary = {**_without_times(summary), "conditions": entries}
    return apart


def _summary_of(
    index: int, samples: pd.DataFrame, loops: pd.DataFrame, info: Mapping[str, Any], summarise: Summarise
) -> Summary:
    of_condition = samples[samples["condition"] == index]
    key = [name for name in (*SEQUENCE, "arm") if name in of_condition and name in loops]
    kept = loops.merge(of_condition[key], on=key, sort=False) if len(loops) else loops
    measured = set(of_condition["arm"])
    arms = [arm for arm in info.get("arms") or [] if arm["arm"] in measured]
    return summarise(
        of_condition, kept, {**info, "arms": arms, "expected_sequences": None, "corpus_figures": None}
    )


def _differing(settings: Conditions, known: Sequence[Conditions]) -> Conditions:
    unsaid = {"workers_per_machine": 1}  # what conditions mean that do not say it
    names = dict.fromkeys(name for other in known for name in other)
    differ = {
        name: settings.get(name, unsaid.get(name))
        for name in names
        if any(other.get(name) != known[0].get(name) for other in known)
    }
    return cast("Conditions", differ)


def _without_times(summary: Summary) -> Summary:
    """What does not depend on the conditions."""
    steady: list[ArmRow] = [{**row, "drifted": False} for row in summary["rows"]]
    stopping = summary.get("stopping")
    anytime = stopping is not None and stopping["anytime"]
    of_drift = {
        str(OfArm(full_name(row), said))
        for row in summary["rows"]
        for said in _of_row(row, summary["rows"], anytime)
        if isinstance(said, runs.SpeedupDrifted)
    }
    if "surfaces" in summary:
        summary = {**summary, "surfaces": []}
    if (joules := summary.get("energy")) is not None:
        summary = {**summary, "energy": {**joules, "arms": [], "reason": "several conditions"}}
    times = ("prediction", "why", "ceiling", "tails", "hindsight", "verdict")
    parts = {
        **summary,
        **dict.fromkeys(times),
        "rows": [row | dict.fromkeys(_TIMES) for row in steady],
        "by_category": [
            {**part, "rows": [row | dict.fromkeys(_TIMES & row.keys()) for row in part["rows"]]}
            for part in summary["by_category"]
        ],
        "warnings": [sentence for sentence in summary["warnings"] if sentence not in of_drift],
    }
    return cast("Summary", parts)


_TIMES = {
    "ms_per_token",
    "end_to_end_ms_per_token",
    "speedup",
    "end_to_end_speedup",
    "own_speedup",
    "speedup_halves",
    "share_slower",
    "loop_time",
    "prediction",
    "target_mode",
    "draft_mode",
}
"""What of a row depends on the conditions."""


GATES = ("lossless", "parity", "incomplete", "untrusted")


def gate_failures(summary: Summary, gate: str) -> list[Message | str]:
    """Why a gate of ``--fail-on`` fails; nothing if it passes.

    * ``lossless``: an arm is alarmed, its claim is refuted, an output could not be read again, or there is no
      independent evidence of an SpS arm; of any arm where none is SpS.
    * ``parity``: an SpS arm scores differently from ArS. Inconclusive passes: it is not a finding.
    * ``incomplete``: sequences failed or are missing.
    * ``untrusted``: CPU contention took so much of the time that nothing is decided, or of ArS alone.
    """
    if gate == "untrusted":
        return [] if is_trusted(summary) else [*contention_reasons(summary)]
    if gate == "incomplete":
        failed, missing = (sum(row[what] for row in summary["rows"]) for what in ("failed", "missing"))
        return [evidence.SequencesLacking(failed, missing)] if failed or missing else []
    judged, parity = summary["losslessness"], summary["parity"]
    if gate == "lossless":
        return [evidence.NOTHING_MEASURED] if judged is None else [*_not_lossless(judged["arms"])]
    if parity is None:
        return [evidence.NOTHING_SCORED]
    if not parity["comparisons"]:
        return [evidence.NOTHING_COMPARED]
    return [
        OfArm(comparison["arm"], evidence.MetricDiffers(parity["metric"], comparison["difference"]))
        for comparison in parity["comparisons"]
        if comparison["verdict"] == "different"
    ]


def _not_lossless(arms: Sequence[ArmLosslessness]) -> Iterator[OfArm]:
    speculative = any(arm["method"] == "sps" for arm in arms)
    for arm in arms:
        silent = arm["verdict"] == "no evidence" and (arm["method"] == "sps" or not speculative)
        if silent or arm["verdict"] in ("alarm", "refuted"):
            yield OfArm(full_name(arm), evidence.VerdictFails(arm["verdict"], tuple(arm["reasons"])))
        elif arm["unread"]:
            yield OfArm(full_name(arm), evidence.OutputsUnread(arm["unread"]))
