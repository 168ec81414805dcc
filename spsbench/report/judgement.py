"""Why, which K, lossless or not, in sentences: the same on the terminal and in Markdown."""

from __future__ import annotations

import math
from typing import Any, Literal

from spsbench.axes import label, place
from spsbench.predict.roofline import DISPATCH_BOUND, weak_baseline
from spsbench.records import Interval
from spsbench.report.wording import MANY, difference_digits, interval, metric_title, milliseconds, speedup
from spsbench.summary_types import (
    AdaptiveGain,
    ArmFactors,
    ArmLosslessness,
    Ceiling,
    ParityComparison,
    Summary,
)


def headline(summary: Summary) -> list[str]:
    """What must stand beside every speedup: that the baseline is weak, or that no floor exists."""
    return weak(summary.get("ceiling"))


def weak(ceiling: Ceiling | None) -> list[str]:
    """That the baseline is far from its floor, where it is."""
    share = weak_baseline(ceiling)
    if share is None:
        return []
    return [f"Weak baseline: ArS reaches {100 * share:.0f}% of its bandwidth floor."]


def sentences(summary: Summary) -> list[str]:
    """What a policy made of K, then why the fastest arm of each sampling is not faster."""
    found = [
        f"{entry['sampling']}: {adapted(arm)}"
        for entry in summary.get("hindsight") or []
        for arm in entry.get("adaptive", ())
    ]
    explained = fastest(summary)
    if len(explained) > MANY:
        explained = [max(explained, key=lambda entry: float(entry["speedup"]))]
    found += [str(entry["sentence"]) for entry in explained]
    found += [regime] if (regime := _regime(summary)) else []
    return found


def adapted(arm: AdaptiveGain) -> str:
    """What a policy made of K, against the fastest fixed one."""
    return (
        f"{arm['policy']} took {milliseconds(arm['ms_per_token'])} ms/token: "
        f"{speedup(arm['gain'])} as fast as the fastest fixed K, K={arm['fixed_k']}."
    )


def fastest(summary: Summary) -> list[ArmFactors]:
    """The explained arm with the largest speedup of each series along K."""
    best: dict[tuple[Any, ...], ArmFactors] = {}
    lossless = (entry for entry in summary.get("why") or [] if entry.get("lossless", True))
    for entry in lossless:
        key = place(entry, "k")
        if key not in best or entry["speedup"] > best[key]["speedup"]:
            best[key] = entry
    return list(best.values())


def _regime(summary: Summary) -> str:
    found = summary.get("ceiling")
    if not found or found["regime"] != DISPATCH_BOUND:
        return ""
    saved = "SpS saves the overhead of calls rather than memory traffic"
    if found.get("cache_shared"):
        cache = "The weights fit in the last-level cache that the hypervisor reports"
        return f"{cache}. If all of it is available to this process, {saved}."
    return f"The weights fit in the last-level cache: {saved}."


LEAKAGE = "the share of tokens that may follow the draft instead of the target"
"""What leakage is, where it first stands."""

EvidenceKind = Literal["self_consistency", "rescored"]
KINDS: dict[EvidenceKind, str] = {
    "self_consistency": "self-consistency",
    "rescored": "losslessness (re-scored)",
}
"""Only what was re-scored by an independent forward is called losslessness."""


def share(value: float | None) -> str:
    """A small share as a percentage with two digits: 0.31%, 5.2%."""
    return "-" if value is None else f"{float(f'{100 * value:.2g}'):g}%"


def bound(value: float) -> str:
    """A share as a percentage, rounded up to two digits: an upper bound must stay one."""
    percent = 100 * value
    if percent <= 0:
        return "0%"
    unit = 10.0 ** (math.floor(math.log10(percent)) - 1)
    return f"{math.ceil(percent / unit - 1e-9) * unit:.3g}%"


def worded(name: str, leakage_bound: float | None) -> str:
    """A verdict on losslessness; "ok" never stands without the bound that it rests on, if there is one.

    Args:
        name: ``ok``, ``alarm`` or ``no evidence``.
        leakage_bound: one-sided, 95%; None where nothing bounds the leakage.
    """
    if name != "ok" or leakage_bound is None:
        return name
    return f"ok: no sign of a leak above {bound(leakage_bound)}"


def alarms(summary: Summary) -> list[str]:
    """One sentence per arm whose output is not what the target would write."""
    arms = (summary["losslessness"] or {"arms": []})["arms"]
    return [
        f"ALARM: {label(arm)}, {arm['sampling']}, does not follow the target's distribution."
        for arm in arms
        if arm["verdict"] == "alarm"
    ]


def losslessness(summary: Summary) -> list[str]:
    """What is known of the SpS arms: the worst leakage bound, and greedy identity."""
    if summary["losslessness"] is None:
        return []
    speculative = [arm for arm in summary["losslessness"]["arms"] if arm["method"] == "sps"]
    searched = [arm for arm in speculative if arm.get("beams")]
    arms = [arm for arm in speculative if arm.get("lossless", True) and arm not in searched]
    lossy = [_lossy(arm) for arm in speculative if not arm.get("lossless", True)]
    sentences = [text for text in (_leakage(arms), _identity(arms)) if text]
    sentences += [text for text in (decisions(arms), proof(arms)) if text]
    if arms and not sentences:
        sentences = ["Losslessness: no evidence was recorded."]
    return sentences + lossy + searches(searched)


def searches(arms: list[ArmLosslessness]) -> list[str]:
    """Of how many prompts beam search speculation found what exact beam search finds."""
    known = [facts for arm in arms if (facts := arm["beams"]) is not None]
    found = [same for facts in known if (same := facts["identity"]) is not None]
    if not found:
        return ["Beam search: nothing to compare with, exact beam search was not run."] if arms else []
    total, alike = (sum(one["sequences"] for one in found), sum(one["identical"] for one in found))
    text = f"identical on all {total} prompts (hypotheses and scores)"
    if alike < total:
        rounding, other = (sum(one["rounding"] for one in found), sum(one["contradicted"] for one in found))
        text = (
            f"identical on {alike} of {total} prompts; {rounding} differ within rounding, {other} beyond it"
        )
    if coarse := [one["allowance"] for one in found if not one["precise"]]:
        text += f"; weak evidence: in 16 bit up to {max(coarse):.2g} nats count as rounding"
    return [f"Beam search: {text}. tokens/loop counts steps of the search."]


def _lossy(arm: ArmLosslessness) -> str:
    """A rule that is lossy by design, with what it costs in distribution."""
    found = next((arm[kind] for kind in ("rescored", "self_consistency") if arm[kind] is not None), None)
    leak = None if found is None else found["leakage"]
    name = f"{label(arm)}, {arm['sampling']}"
    if leak is None:
        return f"{name}: lossy by design; its leakage was not measured."
    low, high = share(leak["low"]), share(leak["high"])
    return f"{name}: lossy by design; leakage {share(leak['estimate'])} [{low}, {high}]."


def _leakage(arms: list[ArmLosslessness]) -> str:
    """The independent evidence if there is any; the arms' own rows prove less and say so."""
    rescored = [(arm, arm["rescored"]) for arm in arms]
    own = [(arm, arm["self_consistency"]) for arm in arms]
    for kinds in (rescored, own):
        found = [(arm, kind, kind["leakage"]["bound"]) for arm, kind in kinds if kind and kind["leakage"]]
        if found:
            arm, worst, most = max(found, key=lambda one: one[2])
            text = f"leakage at most {bound(most)} (95% bound), {LEAKAGE}"
            if worst["verdict"] == "no evidence":
                text = f"too few informative positions ({worst['positions']}); {text}"
            elif worst["verdict"] == "ok":
                text = f"no leak found; {text}"
            where = f" Widest bound: {label(arm)}, {arm['sampling']}." if len(found) > 1 else ""
            if kinds is rescored:
                counted = _sequences(worst["sequences"])
                return f"Losslessness: {text}; {counted} re-scored by an independent forward.{where}"
            return f"Self-consistency: {text}, by the rows that SpS itself used; none re-scored.{where}"
    return ""


def _identity(arms: list[ArmLosslessness]) -> str:
    compared = [arm["identity"] for arm in arms if arm["identity"] is not None]
    if not compared:
        return ""
    total = sum(same["sequences"] for same in compared)
    same = round(sum(same["sequences"] * same["identical"] for same in compared))
    counted = f"all {total}" if same == total else f"{same} of {total}"
    return f"Greedy: {counted} SpS outputs are identical to those of ArS, token for token."


def decisions(arms: list[ArmLosslessness]) -> str:
    """How many decisions an independent forward confirms."""
    found = [one for arm in arms if (one := arm.get("decisions")) is not None]
    if not found:
        return ""
    total = sum(one["decisions"] for one in found)
    rounding = sum(one["rounding"] for one in found)
    contradicted = sum(one["contradicted"] for one in found)
    rows = f"by an independent forward ({found[0]['dtype']}"
    if contradicted:
        return f"Decisions: {contradicted:,} of {total:,} contradicted {rows})."
    whole = all(one["share"] == 1 for one in found) and len(found) == len(arms)
    sequences = "" if whole else f" in {_sequences(sum(one['sequences'] for one in found))}"
    beside = f"; {rounding:,} more within rounding" if rounding else ""
    closest = f"smallest margin {min(one['closest'] for one in found):.0e}".replace("e-0", "e-")
    return f"Decisions{sequences}: {total - rounding:,} of {total:,} confirmed {rows}; {closest}{beside})."


def proof(arms: list[ArmLosslessness]) -> str:
    """The bound of the sequences that were drawn at temperature 1, of the worst arm."""
    judged = [made["rescored"] for arm in arms if (made := arm.get("proof"))]
    found = [(kind, kind["leakage"]["bound"]) for kind in judged if kind and kind["leakage"]]
    if not found:
        return ""
    worst, most = max(found, key=lambda one: one[1])
    several = " per arm" if len(found) > 1 else ""
    more = f"{worst['sequences']} more sequence{'' if worst['sequences'] == 1 else 's'}{several}"
    return f"At temperature 1 without nucleus, from {more}: leakage at most {bound(most)} (95% bound)."


def _sequences(count: int) -> str:
    return f"{count} sequence{'' if count == 1 else 's'}"


def parity(summary: Summary) -> list[str]:
    """The verdict on each SpS arm; where they would be many, how many got which."""
    if summary["parity"] is None:
        return []
    title = metric_title(summary["parity"]["metric"])
    comparisons = summary["parity"]["comparisons"]
    same = identical(summary)
    if len(comparisons) > MANY:
        verdicts = [verdict_name(found, identical=found["arm"] in same) for found in comparisons]
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
        needed = max((found["prompts_needed"] or 0 for found in comparisons if _open(found)), default=0)
        more = f"; showing parity for all needs about {needed:,} prompts" if needed else ""
        return [f"{title} of {len(comparisons)} arms against ArS: {counts}{more}."]
    labels = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in summary["rows"]}
    digits = difference_digits(summary["parity"]["metric"])
    return [
        f"{title} of {labels[found['arm']]}: {verdict(found, digits, identical=found['arm'] in same)}."
        for found in comparisons
    ]


def _open(found: ParityComparison) -> bool:
    """Whether more prompts would decide the comparison."""
    return found["verdict"] == "inconclusive"


def identical(summary: Summary) -> set[str]:
    """Arms whose every greedy output is token for token that of ArS."""
    arms = (summary["losslessness"] or {"arms": []})["arms"]
    return {arm["arm"] for arm in arms if (same := arm["identity"]) is not None and same["identical"] == 1}


def verdict_name(found: ParityComparison, *, identical: bool = False) -> str:
    """One comparison in a word or two, as tables have it."""
    if found["verdict"] is not None:
        return found["verdict"]
    return "identical" if identical else "not judged"


def verdict(found: ParityComparison, digits: int = 4, *, identical: bool = False) -> str:
    """One comparison in words, e.g. ``equivalent to ArS within ±0.0040 (5% of ...)``.

    Args:
        found: the comparison.
        digits: decimals.
        identical: the outputs are token for token the same, so there is nothing to test.
    """
    if found["verdict"] is None:
        if identical:
            return f"outputs identical on all {found['prompts']} prompts"
        return f"not judged, {found['reason']}"
    margin = f"±{found['margin']:.{digits}f} ({found['margin_rule']})"
    if found["verdict"] == "equivalent":
        return f"equivalent to ArS within {margin}"
    difference = f"{found['difference']:+.{digits}f}"
    if found["low"] is not None:
        difference += f" [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
    if found["verdict"] == "different":
        return f"different from ArS by {difference}"
    detectable = f"{found['minimum_detectable_difference']:.{digits}f}"
    count = found["prompts_needed"]
    needs = f"needs about {count:,}" if count else "needs more, how many they are too few to say"
    return (
        f"inconclusive, {difference} against ArS; {found['prompts']} prompts can detect a difference of "
        f"{detectable}, showing parity within {margin} {needs}"
    )


def advantages(summary: Summary) -> list[str]:
    """How much better the target is than the draft alone, per sampling."""
    if summary["parity"] is None:
        return []
    title = metric_title(summary["parity"]["metric"])
    sentences = []
    for found in summary["parity"]["target_over_draft"]:
        head = f"{title} of the target over the draft alone, {found['sampling']}: "
        if found["ratio"] is None:
            sentences.append(f"{head}no ratio, {found['reason']}.")
        else:
            ratio = Interval(found["ratio"], found["low"], found["high"])
            sentences.append(f"{head}{interval(ratio, 'x')}.")
    return sentences
