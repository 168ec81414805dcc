"""What to know before believing a table: warnings, gates, other load, mixed conditions and workers.

CPU contention of the timings that count is held by every interval (``certainty``), once it is more than a
small share. Then a verdict stands where the wider interval decides, and nothing is judged where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from spsbench.base.axes import label
from spsbench.base.records import ELAPSED
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
SUSPICIOUS_Z = 4.0


def warnings(
    rows: Sequence[ArmRow],
    losslessness: Losslessness | None = None,
    parity: Parity | None = None,
    *,
    anytime: bool = False,
    data: object = None,
) -> list[str]:
    """Return the warnings that a summary gives reason for, each once.

    ``data`` is where the prompts come from.
    """
    names = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in rows}
    sentences = [
        *([] if anytime else _few_prompts(rows, data)),
        *(f"{names[row['arm']]}: {text}" for row in rows for text in _of_row(row, rows, anytime)),
    ]
    for arm in () if losslessness is None else losslessness["arms"]:
        sentences += [f"{label(arm)}, {arm['sampling']}: {text}" for text in _of_evidence(arm)]
    for comparison in () if parity is None else parity["comparisons"]:
        # No lossless sampler differs, beyond chance.
        if parity is not None and comparison["verdict"] == "different":
            low, high = comparison["low"], comparison["high"]
            interval = f"{comparison['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"
            sentences.append(
                f"{names[comparison['arm']]}: its {parity['metric']} differs from that of ArS by {interval}. "
                "One lossless run in twenty does this by chance; repeat with another --seed."
            )
    return list(dict.fromkeys(sentences))


def more_prompts(rows: Sequence[ArmRow], data: object) -> str:
    """Return how to get more prompts than a run had: a limit can be raised only where the data hold more."""
    split_size = (
        data.get("split_size") if isinstance(data, Mapping) else None
    )  # earlier runs name their source
    if (
        split_size is None
        or max(row.get("paired_conversations", row["prompts"]) for row in rows) < split_size
    ):
        return "Raise --limit"
    return "Give more prompts"


def _few_prompts(rows: Sequence[ArmRow], data: object) -> Iterator[str]:
    """Yield a warning where the prompts are too few for an interval."""
    compared = [row for row in rows if (speedup := row["speedup"]) is not None and speedup["low"] is not None]
    noun = "wave" if any("paired_waves" in row for row in compared) else "prompt"
    noun = "conversation" if any("paired_conversations" in row for row in compared) else noun
    counts = [
        row.get("paired_waves", row.get("paired_conversations", row["paired_prompts"] or 0))
        for row in compared
    ]
    if counts and (least := min(counts)) < FEW_PROMPTS:
        yield (
            f"The speedup rests on {least} {noun}{'' if least == 1 else 's'}: its interval cannot hold what "
            f"none of them met, and {0.95**least:.0%} of such runs never meet what slows 1 {noun} in 20. "
            f"{more_prompts(rows, data)}."
        )


def _of_row(row: ArmRow, rows: Sequence[ArmRow], anytime: bool) -> Iterator[str]:
    """Yield the warnings on one arm."""
    if row["failed"]:
        total = row["failed"] + row["sequences"]
        yield (
            f"{row['failed']} of {total} sequences failed and are left out. "
            "Their errors are in samples.jsonl; --resume tries them again."
        )
    if row["missing"]:
        yield f"{row['missing']} sequences have not been run. Continue with --resume."
    planned = any(other["method"] == "ars" and other["sampling"] == row["sampling"] for other in rows)
    if row["method"] != "ars" and row["baseline"] is None and not planned:
        yield "no ArS arm to compare with, so no speedup. Run with --arms ars,sps."
    elif row["speedup"] is None and (row["baseline"] is not None or row["method"] != "ars"):
        yield "no prompt was finished by it and by ArS, so no speedup. Continue with --resume."
    if row["drifted"] and row["speedup_halves"] is not None:
        first, second = row["speedup_halves"]
        interval = "the interval of a run of fixed length" if anytime else "its interval"
        yield (
            f"the speedup was {first:.2f}x in the first half of the run and {second:.2f}x in the "
            f"second, outside {interval}. Repeat on a quiet machine; one steady run in twenty does "
            "this by chance."
        )
    score = row["acceptance_z"]
    if score is not None and abs(score) > SUSPICIOUS_Z:
        yield (
            f"alpha_tested and alpha_beta differ by {abs(score):.1f} standard errors, so tokens were "
            "not accepted by the stated rule. Do not use these numbers; run `spsbench verify`."
        )


def _of_evidence(arm: ArmLosslessness) -> Iterator[str]:
    """Yield alarms of the recorded evidence, and greedy outputs that differ from greedy ArS."""
    kinds: dict[str, Judgement | None] = {
        "self-consistency": arm["self_consistency"],
        "losslessness": arm["rescored"],
        "re-derivation": arm.get("decisions"),
    }
    for title, evidence in kinds.items():
        if evidence is not None and evidence["verdict"] == "alarm":
            yield (
                f"{title} fails: {'; '.join(evidence['reasons'])}. Do not use these numbers; run "
                "`spsbench verify`."
            )
    same = arm["identity"]
    if same is not None and same["identical"] < 1 and (first := same["first_divergence"]):
        yield (
            f"{100 * same['identical']:.0f}% of {same['sequences']} outputs are identical to ArS; "
            f"the first differs in {first['example_id']} at token {first['position']}. A numeric tie or a "
            "bug: run `spsbench verify`."
        )


def slow_sequences(by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]) -> list[str]:
    """Return a sentence for each arm with single slow sequences; they stay in every number.

    An SpS sequence is held against ArS on the same prompt, one of ArS against its own arm. It is named beyond
    ``FAR`` robust standard deviations (1.4826 times the median absolute deviation) from the arm's median, and
    at least ``SLOW`` times as slow. With normal logarithms that names one in 1.4% of clean arms of 8
    sequences, and in 0.3% of those of 20.
    """
    baselines = {row["baseline"] for row in rows}
    sentences = []
    for row in rows:
        arm_samples, reference = by_arm.get(row["arm"]), by_arm.get(row["baseline"] or "")
        if arm_samples is None or (reference is None and row["arm"] not in baselines):
            continue
        excess = _pace(arm_samples) if reference is None else (_pace(arm_samples) - _pace(reference)).dropna()
        if len(excess) < FEWEST_SEQUENCES:
            continue
        excess -= excess.median()
        far = excess[excess > max(FAR * 1.4826 * float(excess.abs().median()), math.log(SLOW))]
        if len(far):
            worst = far.sort_values(ascending=False)[:3]
            names = worst.index.get_level_values("example_id")
            times = [f"{name} ({math.exp(size):.1f}x)" for name, size in zip(names, worst, strict=True)]
            more = f" and {len(far) - 3} more" if len(far) > 3 else ""
            sentences.append(
                f"{label(row)}, {row['sampling']}: far slower per token than the arm's other sequences: "
                f"{', '.join(times)}{more}. They count; look for other load at that time, or repeat."
            )
    return sentences


def _pace(samples: pd.DataFrame) -> pd.Series[float]:
    """Return log seconds a token of the finished sequences, by prompt, sample and process.

    Sequences that are too short are left out.
    """
    done = finished(samples)
    done = done[(done["decode_s"] > 0) & (done["new_tokens"] >= FEWEST_TOKENS)]
    done = done.set_index(matched_by(done))
    return (done["decode_s"] / done["new_tokens"]).map(math.log)


MOST = {"waited_s": 0.06, "stolen_s": 0.02}
"""Seconds that a second of measuring may lose to contention where nothing was timed again, as of one text.
Intervals of a run hold it from ``CLEAN`` on, in sum: there it was tried to measure without."""

_TITLES = {
    "waited_s": "all threads together waited {:.2f} s for a CPU that other processes used",
    "stolen_s": "other virtual machines on this host used the CPU for {:.2f} s",
    "throttled_s": "heat or the board's limits held the GPU's clocks down for {:.2f} s",
    "shared_s": "other processes computed on the GPU for {:.2f} s",
}


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
        "reasons": reasons,
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
    for name in _TITLES:
        seconds = [seconds_of[name] for seconds_of in known if name in seconds_of]
        shares[name] = sum(seconds) / measured_s if seconds and measured_s > 0 else None
    if shares["stolen_s"] is None:
        shares["stolen_s"] = info.get("stolen_share")
    return shares


def taken_too_much(shares: Mapping[str, float | None], most: Mapping[str, float] = MOST) -> list[str]:
    """Return sentences on CPU contention in each second measured, where that is above ``most``."""
    taken = {
        name: share for name, share in shares.items() if share is not None and share > most.get(name, 0.0)
    }
    seen = {name: share for name, share in taken.items() if share >= _SEEN_S}
    return [
        f"in each second measured {_TITLES[name].format(share)}" for name, share in (seen or taken).items()
    ]


def disturbed_because(summary: Summary) -> list[str]:
    """Return CPU contention of a run, under any of its conditions, if its intervals include it."""
    return list(dict.fromkeys(reason for part in _contentions(summary) for reason in part["reasons"]))


def taken_by(reasons: Sequence[str]) -> str:
    """Return what took the time that these reasons are of; on a GPU it is not the CPU's contention alone."""
    of_gpu = {_TITLES[name].partition("{")[0] for name in ("throttled_s", "shared_s")}
    gpu = any(title in reason for title in of_gpu for reason in reasons)
    return "CPU and GPU contention and throttling" if gpu else "CPU contention"


def lost_share(summary: Summary) -> float:
    """Return the largest share of an arm's time that CPU contention took, where intervals hold it; else 0."""
    return max((_lost_shares(part) for part in _contentions(summary) if part["reasons"]), default=0.0)


def _contentions(summary: Summary) -> list[Contention]:
    """Return CPU contention under each of a run's conditions, as far as it was recorded."""
    parts = [entry.get("contention") for entry in summary.get("conditions") or []]
    return [part for part in parts or [summary.get("contention")] if part]


def _lost_shares(lost: Contention) -> float:
    """Return the largest share that an arm lost; without shares by arm that of all that was measured."""
    if "lost_by_arm" in lost:
        return max(lost["lost_by_arm"].values(), default=0.0)
    return min(1.0, (lost.get("waited_share") or 0.0) + (lost.get("stolen_share") or 0.0))


Step = Literal["clean", "widened", "disturbed", "undecided"]


def step(summary: Summary) -> Step:
    """Return how far a run's times can be used: as they are, widened, as measured, or undecided.

    As they are; widened for CPU contention; as what was measured beside others, where nothing is compared
    or too few prompts leave the answer open on a quiet machine too; or not to decide.
    """
    if not disturbed_because(summary):
        return "clean"
    if all(row.get("speedup") is None for row in summary["rows"]):
        return "disturbed"
    judged = summary.get("verdict") or []
    unclear = [each for each in judged if each["outcome"] == "unclear"]
    if judged and not unclear:
        return "widened"
    too_few = bool(judged) and all("lost_share" in each and "leaning" not in each for each in unclear)
    return "disturbed" if too_few else "undecided"


def is_undecided(summary: Summary) -> bool:
    """Return whether CPU contention may hide the answer."""
    return step(summary) == "undecided"


def is_trusted(summary: Summary) -> bool:
    """Return whether times are clean, or decide although CPU contention took some of them."""
    return step(summary) in ("clean", "widened")


STANDS = "tokens per loop, alpha, quality, losslessness and the hash of all tokens"
"""What does not depend on the load."""


def disturbance(summary: Summary) -> list[str]:
    """Return the sentence on CPU contention that goes wherever such times go; none for a clean run."""
    how = step(summary)
    if how == "clean":
        return []
    by = taken_by(disturbed_because(summary))
    taken = f"took {percent(lost_share(summary))} of the time measured"
    several = any(row.get("processes", 1) > 1 for row in summary["rows"])  # a folder that is given as --out
    again = "the same command with --out RUN and" if several else "spsbench run --resume RUN"
    if how == "widened":
        return [f"Widened for {by}: it {taken}."]
    if how == "disturbed":
        return [
            f"Disturbed: {by} {taken}, and ms/token holds all of it. To time it again: {again} "
            "--remeasure 10min, when less else runs."
        ]
    return [
        f"UNDECIDED: {by} {taken}, which may hide the answer. What does not depend on it stands: "
        f"{STANDS}. To settle it: {again} --remeasure 10min, when less else runs."
    ]


def significant(value: float, digits: int = 2) -> str:
    """Return a number with so many significant digits and without an exponent: 0.31, 5.2, 2600."""
    return f"{float(f'{value:.{digits}g}'):.12g}"


def percent(share: float) -> str:
    """Return a share with two digits: 0.31%, 5.2%, 30%."""
    return f"{significant(100 * share)}%"


def unlike_workers(info: Mapping[str, Any]) -> list[str]:
    """Return that workers shared a machine, and that they were unlike; nothing where neither holds."""
    most = max((int(one.get("workers_per_machine", 1)) for one in info.get("conditions") or []), default=1)
    shared = (
        f"Up to {most} workers of this run measured on one machine at once: times are those of a shared "
        "machine, whose memory bandwidth they divide."
    )
    used = [condition(info, worker["condition"]) for worker in info.get("workers") or []]
    return [*([shared] if most > 1 else []), *unlike(used)]


def unlike(workers: Iterable[Conditions]) -> list[str]:
    """Return a sentence where the conditions of workers differ; else none."""
    conditions_of_all = list(workers)
    names = dict.fromkeys(name for conditions in conditions_of_all for name in conditions)
    values = {name: list(dict.fromkeys(str(one.get(name)) for one in conditions_of_all)) for name in names}
    differing = [f"{name} {' and '.join(seen)}" for name, seen in values.items() if len(seen) > 1]
    if not differing:
        return []
    return [
        f"Workers are unlike: {'; '.join(differing)}. All arms of a prompt are measured by one of them, and "
        "times are shown for each kind and not pooled."
    ]


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
    """Return what does not depend on the conditions."""
    steady: list[ArmRow] = [{**row, "drifted": False} for row in summary["rows"]]
    stopping = summary.get("stopping")
    anytime = stopping is not None and stopping["anytime"]
    sentences, without = (
        warnings(rows, summary["losslessness"], summary["parity"], anytime=anytime)
        for rows in (summary["rows"], steady)
    )
    of_drift = set(sentences) - set(without)
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


def gate_failures(summary: Summary, gate: str) -> list[str]:
    """Return sentences on why a gate of ``--fail-on`` fails; none if it passes.

    * ``lossless``: an arm is alarmed, its claim is refuted, an output could not be read again, or there is no
      independent evidence of an SpS arm; of any arm where none is SpS.
    * ``parity``: an SpS arm scores differently from ArS. Inconclusive passes: it is not a finding.
    * ``incomplete``: sequences failed or are missing.
    * ``untrusted``: CPU contention took so much of the time that nothing is decided, or of ArS alone.
    """
    if gate == "untrusted":
        return [] if is_trusted(summary) else disturbed_because(summary)
    if gate == "incomplete":
        failed, missing = (sum(row[what] for row in summary["rows"]) for what in ("failed", "missing"))
        return [f"{failed} sequences failed and {missing} are missing"] if failed or missing else []
    judged, parity = summary["losslessness"], summary["parity"]
    if gate == "lossless":
        if judged is None:
            return ["nothing was measured, so there is no evidence of losslessness"]
        arms = judged["arms"]
        speculative = any(arm["method"] == "sps" for arm in arms)
        failures = []
        for arm in arms:
            silent = arm["verdict"] == "no evidence" and (arm["method"] == "sps" or not speculative)
            if silent or arm["verdict"] in ("alarm", "refuted"):
                reasons = f"{arm['verdict']} ({'; '.join(arm['reasons'])})"
            elif arm["unread"]:
                reasons = f"outputs that could not be read again: {arm['unread']}"
            else:
                continue
            failures.append(f"{label(arm)}, {arm['sampling']}: {reasons}")
        return failures
    if parity is None:
        return ["nothing was scored, so there is no parity to judge"]
    if not parity["comparisons"]:
        return ["no SpS arm is beside ArS, so there is no parity to judge"]
    return [
        f"{comparison['arm']}: {parity['metric']} differs by {comparison['difference']:+.4f}"
        for comparison in parity["comparisons"]
        if comparison["verdict"] == "different"
    ]
