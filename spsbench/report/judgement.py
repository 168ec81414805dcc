"""Why, which K, lossless or not, in sentences: the same on the terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spsbench.axes import label, place
from spsbench.predict.roofline import DISPATCH_BOUND, weak_baseline
from spsbench.report.wording import MANY, metric_title


def headline(summary: Mapping[str, Any]) -> list[str]:
    """What must stand beside every speedup: that the baseline is weak, or that no floor exists."""
    share = weak_baseline(summary.get("ceiling"))
    if share is None:
        return []
    return [f"Weak baseline: ArS reaches {100 * share:.0f}% of its bandwidth floor."]


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """One recommendation per sweep, then why the fastest arm of each sampling is no faster."""
    found = [str(entry["sentence"]) for entry in summary.get("recommendation") or []]
    explained = fastest(summary)
    if len(explained) > MANY:
        explained = [max(explained, key=lambda entry: float(entry["speedup"]))]
    found += [str(entry["sentence"]) for entry in explained]
    found += [regime] if (regime := _regime(summary)) else []
    return found


def fastest(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The explained arm with the largest speedup of each series along K."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    lossless = (entry for entry in summary.get("why") or [] if entry.get("lossless", True))
    for entry in lossless:
        key = place({"method": "sps", **entry}, "k")
        if key not in best or entry["speedup"] > best[key]["speedup"]:
            best[key] = entry
    return list(best.values())


def _regime(summary: Mapping[str, Any]) -> str:
    found = summary.get("ceiling")
    if not found or found["regime"] != DISPATCH_BOUND:
        return ""
    return "The weights fit in the last-level cache: a loop saves dispatch, not memory traffic."


KINDS = {"self_consistency": "self-consistency", "rescored": "losslessness (re-scored)"}
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


def told(name: str, leakage_bound: float | None) -> str:
    """A verdict on losslessness; "ok" never stands without the bound that it rests on, if there is one.

    Args:
        name: ``ok``, ``alarm`` or ``no evidence``.
        leakage_bound: one-sided, 95%; None where nothing bounds the leakage.
    """
    if name != "ok" or leakage_bound is None:
        return name
    return f"ok: no sign of a leak above {bound(leakage_bound)}"


def alarms(summary: dict[str, Any]) -> list[str]:
    """One sentence per arm whose output is not what the target would write."""
    arms = (summary["losslessness"] or {"arms": []})["arms"]
    return [
        f"ALARM: {label(arm)}, {arm['sampling']}, does not follow the target's distribution."
        for arm in arms
        if arm["verdict"] == "alarm"
    ]


def losslessness(summary: dict[str, Any]) -> list[str]:
    """What is known of the SpS arms: the worst leakage bound, and greedy identity."""
    if summary["losslessness"] is None:
        return []
    speculative = [arm for arm in summary["losslessness"]["arms"] if arm["method"] == "sps"]
    arms = [arm for arm in speculative if arm.get("lossless", True)]
    lossy = [_lossy(arm) for arm in speculative if not arm.get("lossless", True)]
    sentences = [text for text in (_leakage(arms), _identity(arms)) if text]
    sentences += [text for text in (decisions(arms), proof(arms)) if text]
    if arms and not sentences:
        sentences = ["Losslessness: no evidence was recorded."]
    return sentences + lossy


def _lossy(arm: dict[str, Any]) -> str:
    """A rule that is lossy by design, with what it costs in distribution."""
    found = next((arm[kind] for kind in ("rescored", "self_consistency") if arm[kind] is not None), None)
    leak = None if found is None else found["leakage"]
    name = f"{label(arm)}, {arm['sampling']}"
    if leak is None:
        return f"{name}: lossy by design; its leakage was not measured."
    low, high = share(leak["low"]), share(leak["high"])
    return f"{name}: lossy by design; leakage {share(leak['estimate'])} [{low}, {high}]."


def _leakage(arms: list[dict[str, Any]]) -> str:
    """The independent evidence if there is any; the arms' own rows prove less and say so."""
    for kind in ("rescored", "self_consistency"):
        found = [arm for arm in arms if arm[kind] is not None and arm[kind]["leakage"] is not None]
        if found:
            worst = max(found, key=lambda arm: arm[kind]["leakage"]["bound"])
            where = f" in the worst arm, {label(worst)}, {worst['sampling']}" if len(found) > 1 else ""
            text = f"leakage at most {bound(worst[kind]['leakage']['bound'])} (95%){where}"
            if worst[kind]["verdict"] == "no evidence":
                text = f"too few informative positions ({worst[kind]['positions']}); {text}"
            if kind == "rescored":
                return f"Losslessness: {text}, independent re-score of {_sequences(worst[kind])}."
            return f"Self-consistency: {text}, by the rows that verification used; none re-scored."
    return ""


def _identity(arms: list[dict[str, Any]]) -> str:
    compared = [arm["identity"] for arm in arms if arm["identity"] is not None]
    if not compared:
        return ""
    total = sum(same["sequences"] for same in compared)
    same = round(sum(same["sequences"] * same["identical"] for same in compared))
    return f"Greedy: {same} of {total} SpS outputs are token for token those of ArS."


def decisions(arms: list[dict[str, Any]]) -> str:
    """How many decisions follow from the models' own rows, e.g. ``Every decision re-derived: ...``."""
    found = [arm["decisions"] for arm in arms if arm.get("decisions") is not None]
    if not found:
        return ""
    total, rounding, contradicted = (
        sum(one[name] for one in found) for name in ("decisions", "rounding", "contradicted")
    )
    rows = f"the models' own rows (independent forward, {found[0]['dtype']}"
    if contradicted:
        return f"Decisions re-derived: {contradicted:,} of {total:,} contradict {rows})."
    whole = all(one["share"] == 1 for one in found) and len(found) == len(arms)
    sequences = f" of {_sequences({'sequences': sum(one['sequences'] for one in found)})}"
    beside = f"; {rounding:,} more within rounding" if rounding else ""
    closest = f"closest call {min(one['closest'] for one in found):.0e}".replace("e-0", "e-")
    return (
        f"Every decision{'' if whole else sequences} re-derived: {total - rounding:,} of {total:,} follow "
        f"from {rows}; {closest}{beside})."
    )


def proof(arms: list[dict[str, Any]]) -> str:
    """The bound of the sequences that were drawn at temperature 1, of the worst arm."""
    judged = [arm["proof"]["rescored"] for arm in arms if arm.get("proof")]
    found = [kind for kind in judged if kind is not None and kind["leakage"] is not None]
    if not found:
        return ""
    worst = max(found, key=lambda kind: kind["leakage"]["bound"])
    each = " an arm" if len(found) > 1 else ""
    return (
        f"At temperature 1 (no nucleus), {_sequences(worst)}{each} drawn for this: leakage at most "
        f"{bound(worst['leakage']['bound'])} (95%)."
    )


def _sequences(kind: dict[str, Any]) -> str:
    return f"{kind['sequences']} sequence{'' if kind['sequences'] == 1 else 's'}"


def parity(summary: dict[str, Any]) -> list[str]:
    """The verdict on each SpS arm; where they would be many, how many got which."""
    if summary["parity"] is None:
        return []
    title = metric_title(summary["parity"]["metric"])
    comparisons = summary["parity"]["comparisons"]
    if len(comparisons) > MANY:
        verdicts = [comparison["verdict"] or "not judged" for comparison in comparisons]
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
        return [f"{title} against ArS: {counts}."]
    labels = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in summary["rows"]}
    return [f"{title} of {labels[found['arm']]}: {verdict(found)}." for found in comparisons]


def verdict(found: dict[str, Any]) -> str:
    """One comparison in words, e.g. ``equivalent to ArS within ±0.0040 (5% of ...)``."""
    if found["verdict"] is None:
        return f"not judged, {found['reason']}"
    margin = f"±{found['margin']:.4f} ({found['margin_rule']})"
    if found["verdict"] == "equivalent":
        return f"equivalent to ArS within {margin}"
    difference = f"{found['difference']:+.4f}"
    if found["low"] is not None:
        difference += f" [{found['low']:+.4f}, {found['high']:+.4f}]"
    if found["verdict"] == "different":
        return f"different from ArS by {difference}"
    return (
        f"underpowered, {difference} against ArS; {found['prompts']} prompts detect "
        f"{found['minimum_detectable_difference']:.4f}, parity within {margin} takes "
        f"{found['prompts_needed']:,}"
    )


def advantages(summary: dict[str, Any]) -> list[str]:
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
            interval = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
            sentences.append(f"{head}{found['ratio']:.2f}x{interval}.")
    return sentences
