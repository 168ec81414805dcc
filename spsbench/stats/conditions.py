"""What a reader must know before believing a table: warnings, other load on the machine, mixed conditions.

An interval over prompts takes what happened to one prompt as independent of the next. Neighbours come
in bursts that outlast a sequence: on a machine with them 32 of 40 intervals of 95% covered the truth.
Short waits all along do no harm: with 5% of them 37 of 40 did (docs/log.md). So beyond a small share,
which differs by kind, no interval is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from spsbench.axes import label
from spsbench.records import ELAPSED
from spsbench.stats.speedup import finished
from spsbench.store.conditions import condition
from spsbench.summary_types import (
    ArmLosslessness,
    ArmRow,
    CategoryPart,
    CategoryRow,
    ConditionPart,
    Conditions,
    Contention,
    Judgement,
    Losslessness,
    Parity,
    Summary,
)

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
) -> list[str]:
    """The sentences that a summary gives reason for, none twice."""
    sentences = [
        *([] if anytime else _few_prompts(rows)),
        *(text for row in rows for text in _of_row(row, anytime)),
    ]
    if losslessness is not None:
        sentences += [text for arm in losslessness["arms"] for text in _of_evidence(arm)]
    if parity is not None:
        sentences += _of_parity(parity, rows)
    return list(dict.fromkeys(sentences))


def _of_evidence(arm: ArmLosslessness) -> Iterator[str]:
    """Alarms of the recorded evidence, and greedy outputs that parted from greedy ArS."""
    name = f"{label(arm)}, {arm['sampling']}"
    kinds: dict[str, Judgement | None] = {
        "self-consistency": arm["self_consistency"],
        "losslessness": arm["rescored"],
        "re-derivation": arm.get("decisions"),
    }
    for title, evidence in kinds.items():
        if evidence is not None and evidence["verdict"] == "alarm":
            yield (
                f"{name}: {title} fails: {'; '.join(evidence['reasons'])}. Do not use these numbers; run "
                "`spsbench verify`."
            )
    same = arm["identity"]
    if same is not None and same["identical"] < 1 and (first := same["first_divergence"]):
        yield (
            f"{name}: {100 * same['identical']:.0f}% of {same['sequences']} outputs are identical to ArS; "
            f"the first differs in {first['example_id']} at token {first['position']}. A numeric tie or a "
            "bug: run `spsbench verify`."
        )


def _of_parity(parity: Parity, rows: Sequence[ArmRow]) -> Iterator[str]:
    """Arms that score differently, which no lossless sampler does beyond chance."""
    labels = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in rows}
    for found in parity["comparisons"]:
        if found["verdict"] == "different":
            interval = f"{found['difference']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"
            yield (
                f"{labels[found['arm']]}: its {parity['metric']} differs from that of ArS by {interval}. One "
                "lossless run in twenty does this by chance; repeat with another --seed."
            )


def _few_prompts(rows: Sequence[ArmRow]) -> Iterator[str]:
    compared = [row for row in rows if (found := row["speedup"]) is not None and found["low"] is not None]
    noun = "wave" if any("paired_waves" in row for row in compared) else "prompt"
    counts = [row.get("paired_waves", row["paired_prompts"] or 0) for row in compared]
    if counts and (least := min(counts)) < FEW_PROMPTS:
        yield (
            f"The speedup rests on {least} {noun}{'' if least == 1 else 's'}: its interval cannot hold what "
            f"none of them met, and {0.95**least:.0%} of such runs never meet what slows 1 {noun} in 20. "
            "Raise --limit."
        )


def slow_sequences(by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]) -> list[str]:
    """A sentence for each arm in which single sequences stood out; they stay in every number.

    An SpS sequence is held against ArS on the same prompt, one of ArS against its own arm. It is named beyond
    ``FAR`` robust standard deviations (1.4826 times the median absolute deviation) from the arm's median, and
    at least ``SLOW`` times as slow. With normal logarithms that names one in 1.4% of clean arms of 8
    sequences, and in 0.3% of those of 20.
    """
    baselines = {row["baseline"] for row in rows}
    found = []
    for row in rows:
        own, reference = by_arm.get(row["arm"]), by_arm.get(row["baseline"] or "")
        if own is None or (reference is None and row["arm"] not in baselines):
            continue
        excess = _pace(own) if reference is None else (_pace(own) - _pace(reference)).dropna()
        if len(excess) < FEWEST_SEQUENCES:
            continue
        excess -= excess.median()
        far = excess[excess > max(FAR * 1.4826 * float(excess.abs().median()), math.log(SLOW))]
        if len(far):
            worst = far.sort_values(ascending=False)[:3]
            names = worst.index.get_level_values("example_id")
            told = [f"{name} ({math.exp(size):.1f}x)" for name, size in zip(names, worst, strict=True)]
            more = f" and {len(far) - 3} more" if len(far) > 3 else ""
            found.append(
                f"{label(row)}, {row['sampling']}: far slower per token than the arm's other sequences: "
                f"{', '.join(told)}{more}. They count; look for other load at that time, or repeat."
            )
    return found


def _pace(samples: pd.DataFrame) -> pd.Series[float]:
    """Log seconds a token of the finished sequences that are not too short, by prompt, sample and process."""
    done = finished(samples)
    done = done[(done["decode_s"] > 0) & (done["new_tokens"] >= FEWEST_TOKENS)]
    key = [name for name in ("example_id", "sample_index", "process") if name in done]
    return (done.set_index(key)["decode_s"] / done.set_index(key)["new_tokens"]).map(math.log)


def _of_row(row: ArmRow, anytime: bool) -> Iterator[str]:
    name = f"{label(row)}, {row['sampling']}"
    if row["failed"]:
        total = row["failed"] + row["sequences"]
        yield (
            f"{name}: {row['failed']} of {total} sequences failed and are left out. "
            "Their errors are in samples.jsonl; --resume tries them again."
        )
    if row["missing"]:
        yield f"{name}: {row['missing']} sequences have not been run. Continue with --resume."
    if row["method"] != "ars" and row["baseline"] is None:
        yield f"{name}: no ArS arm to compare with, so no speedup. Run with --arms ars,sps."
    elif row["speedup"] is None and row["baseline"] is not None:
        yield f"{name}: no prompt was finished by it and by ArS, so no speedup. Continue with --resume."
    yield from _of_timing(row, name, anytime)


def _of_timing(row: ArmRow, name: str, anytime: bool) -> Iterator[str]:
    interval = "the interval of a run of fixed length" if anytime else "its interval"
    if row["drifted"] and row["speedup_halves"] is not None:
        first, second = row["speedup_halves"]
        yield (
            f"{name}: the speedup was {first:.2f}x in the first half of the run and {second:.2f}x in the "
            f"second, outside {interval}. Repeat on a quiet machine; one steady run in twenty does "
            "this by chance."
        )
    score = row["acceptance_z"]
    if score is not None and abs(score) > SUSPICIOUS_Z:
        yield (
            f"{name}: alpha_tested and alpha_beta differ by {abs(score):.1f} standard errors, so tokens were "
            "not accepted by the stated rule. Do not use these numbers; run `spsbench verify`."
        )


MOST = {"waited_s": 0.06, "stolen_s": 0.02}
"""Seconds that a second of measuring may lose to others before its intervals are withheld."""

_TITLES = {
    "waited_s": "all threads together waited {:.2f} s for a CPU that other processes used",
    "stolen_s": "other virtual machines on this host used the CPU for {:.2f} s",
}


def _measured_s(done: pd.DataFrame) -> float:
    """Seconds of the machine that sequences took: in a batch not those that they are charged with."""
    charged_s = done["prefill_s"] + done["decode_s"]
    if "conditions" not in done:
        return float(charged_s.sum())
    recorded = zip(done["conditions"], charged_s, strict=True)
    return float(sum((found or {}).get(ELAPSED, own_s) for found, own_s in recorded))


def contention(samples: pd.DataFrame, info: Mapping[str, Any]) -> Contention:
    """How much of the measured time others took.

    Returns:
        ``waited_share`` and ``stolen_share`` of the measured seconds, null where the machine did not
    """
    done = finished(samples)
    measured_s = _measured_s(done)
    shares = {name: _share(done, name, measured_s) for name in _TITLES}
    if shares["stolen_s"] is None:
        shares["stolen_s"] = info.get("stolen_share")
    reasons = taken_too_much(shares)
    return {
        "waited_share": shares["waited_s"],
        "stolen_share": shares["stolen_s"],
        "trusted": not reasons,
        "reasons": reasons,
    }


def taken_too_much(shares: Mapping[str, float | None]) -> list[str]:
    """Sentences on what others took of each second measured, where that is above ``MOST``."""
    return [
        f"in each second measured {_TITLES[name].format(share)}"
        for name, share in shares.items()
        if share is not None and share > MOST[name]
    ]


def untrusted_because(summary: Summary) -> list[str]:
    """Why the times of a run, under any of its conditions, are not to be trusted; empty if they are."""
    entries = summary.get("conditions")
    parts = [entry.get("contention") for entry in entries] if entries else [summary.get("contention")]
    return list(dict.fromkeys(reason for part in parts if part for reason in part["reasons"]))


def distrust(reasons: Sequence[str]) -> list[str]:
    """The sentence that goes wherever such times go; none without a reason."""
    if not reasons:
        return []
    return [
        f"DO NOT TRUST THESE TIMES: {'; '.join(reasons)}. No interval and no verdict is given: they would be "
        "too sure. Repeat on a quiet machine."
    ]


def _share(done: pd.DataFrame, name: str, measured_s: float) -> float | None:
    if "conditions" not in done or not measured_s > 0:
        return None
    recorded = [found[name] for found in done["conditions"] if isinstance(found, dict) and name in found]
    return sum(recorded) / measured_s if recorded else None


Summarise = Callable[["pd.DataFrame", "pd.DataFrame", Mapping[str, Any]], Summary]

_KEY = ("process", "example_id", "sample_index", "arm")


def separated(
    samples: pd.DataFrame, loops: pd.DataFrame, info: Mapping[str, Any], summarise: Summarise
) -> Summary:
    """The summary of a run; one of several conditions has its times under each, and none over all."""
    summary = summarise(samples, loops, info)
    present = sorted({int(index) for index in samples["condition"]}) if "condition" in samples else []
    if len(present) < 2:
        return summary
    known = [condition(info, index) for index in present]
    parts = [_of(index, samples, loops, info, summarise) for index in present]
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
    pooled = distrust(summary["contention"]["reasons"])
    kept = [sentence for sentence in apart["warnings"] if sentence not in pooled]
    return {**apart, "warnings": [*distrust(untrusted_because(apart)), *kept]}


def _of(
    index: int, samples: pd.DataFrame, loops: pd.DataFrame, info: Mapping[str, Any], summarise: Summarise
) -> Summary:
    own = samples[samples["condition"] == index]
    key = [name for name in _KEY if name in own and name in loops]
    kept = loops.merge(own[key], on=key, sort=False) if len(loops) else loops
    measured = set(own["arm"])
    arms = [arm for arm in info.get("arms") or [] if arm["arm"] in measured]
    return summarise(own, kept, {**info, "arms": arms, "expected_sequences": None, "corpus_figures": None})


_UNSAID = {"workers_per_machine": 1}
"""What conditions mean that do not say it."""


def _differing(settings: Conditions, known: Sequence[Conditions]) -> Conditions:
    names = dict.fromkeys(name for other in known for name in other)
    differ = {
        name: settings.get(name, _UNSAID.get(name))
        for name in names
        if any(other.get(name) != known[0].get(name) for other in known)
    }
    return cast("Conditions", differ)


def _without_times(summary: Summary) -> Summary:
    """What does not depend on the conditions."""
    steady: list[ArmRow] = [{**row, "drifted": False} for row in summary["rows"]]
    rest = (summary["losslessness"], summary["parity"])
    stopping = summary.get("stopping")
    anytime = stopping is not None and stopping["anytime"]
    said, without = (warnings(rows, *rest, anytime=anytime) for rows in (summary["rows"], steady))
    of_drift = set(said) - set(without)
    if "surfaces" in summary:
        summary = {**summary, "surfaces": []}
    if (joules := summary.get("energy")) is not None:
        summary = {**summary, "energy": {**joules, "arms": [], "reason": "several conditions"}}
    return {
        **summary,
        "rows": [_row_without_times(row) for row in steady],
        "by_category": [_part_without_times(part) for part in summary["by_category"]],
        "prediction": None,
        "why": None,
        "ceiling": None,
        "tails": None,
        "hindsight": None,
        "verdict": None,
        "warnings": [sentence for sentence in summary["warnings"] if sentence not in of_drift],
    }


def _part_without_times(part: CategoryPart) -> CategoryPart:
    rows: list[CategoryRow] = [{**row, "ms_per_token": None, "speedup": None} for row in part["rows"]]
    return {**part, "rows": rows}


def _row_without_times(row: ArmRow) -> ArmRow:
    return {
        **row,
        "ms_per_token": None,
        "end_to_end_ms_per_token": None,
        "speedup": None,
        "end_to_end_speedup": None,
        "own_speedup": None,
        "speedup_halves": None,
        "share_slower": None,
        "loop_time": None,
        "prediction": None,
        "target_mode": None,
        "draft_mode": None,
    }
