"""Whether to believe it, losslessness and parity: sentences for every page, and report.md's sections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from spsbench.axes import MODEL, label, place
from spsbench.predict.roofline import DISPATCH_BOUND, weak_baseline
from spsbench.records import Interval
from spsbench.report import wording
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import (
    MANY,
    difference_digits,
    escape,
    interval,
    metric_title,
    milliseconds,
    speedup,
)
from spsbench.stats.losslessness import leakage_bound
from spsbench.summary_types import (
    AdaptiveGain,
    ArmFactors,
    ArmLosslessness,
    Ceiling,
    Decisions,
    Evidence,
    Leakage,
    ParityComparison,
    Solved,
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


LEAKAGE = "the share of tokens that follow the draft instead of the target"
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
    """A verdict on losslessness; "ok" never stands without the bound that it rests on, if there is one."""
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
    """What is known of the SpS arms: that every decision follows, else the worst bound; greedy identity."""
    if summary["losslessness"] is None:
        return []
    speculative = [arm for arm in summary["losslessness"]["arms"] if arm["method"] == "sps"]
    searched = [arm for arm in speculative if arm.get("beams")]
    arms = [arm for arm in speculative if arm.get("lossless", True) and arm not in searched]
    lossy = [_lossy(arm) for arm in speculative if not arm.get("lossless", True)]
    confirmed = [arm for arm in arms if is_confirmed(arm)]
    others = [arm for arm in arms if arm not in confirmed]
    found = (_confirmed(confirmed, of=len(arms)), _leakage(others), _identity(arms))
    sentences = [text for text in (*found, decisions(others), proof(others)) if text]
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


def is_confirmed(arm: ArmLosslessness) -> bool:
    """Whether every decision of every output follows from independent rows, and nothing alarms."""
    decided = arm.get("decisions")
    return arm["verdict"] == "ok" and decided is not None and decided["exact"]


def _confirmed(arms: list[ArmLosslessness], of: int) -> str:
    """The verdict on arms of which every decision is confirmed, and which drafts showed their own rows."""
    found = [(arm, one) for arm in arms if (one := arm.get("decisions")) is not None]
    if not found:
        return ""
    some = "" if len(found) == of else f", {len(found)} of {of} arms"
    shown = list(dict.fromkeys(str(arm.get("drafter", MODEL)) for arm, one in found if one.get("recorded")))
    again = all(one.get("recorded") for _, one in found)
    whose = "" if again else f" of {', '.join(shown)}"
    drafts = f"; the draft's rows{whose} as recorded" if shown else ""
    return f"Lossless{some}: {_followed([one for _, one in found], drafts)}."


def _followed(found: list[Decisions], more: str = "") -> str:
    """How many decisions follow from what, and how many more only by rounding."""
    total, rounding = (sum(one[name] for one in found) for name in ("decisions", "rounding"))
    open_ = sum(one.get("open", 0) for one in found)
    text = f"{total - rounding - open_:,} of {total:,} decisions follow from the target's own rows"
    text += f", {rounding:,} more within rounding" if rounding else ""
    text += f", {open_:,} were made in the drafter's own way" if open_ else ""
    return f"{text} (independent forward, {found[0]['dtype']}{more})"


def _leakage(arms: list[ArmLosslessness]) -> str:
    """The independent evidence if there is any; the arms' own rows prove less and say so."""
    rescored = [(arm, arm["rescored"]) for arm in arms]
    own = [(arm, arm["self_consistency"]) for arm in arms]
    for kinds in (rescored, own):
        found = [(arm, kind, kind["leakage"]) for arm, kind in kinds if kind and kind["leakage"]]
        if found:
            arm, worst, leakage = max(found, key=lambda one: one[2]["bound"])
            where = f" Widest bound: {label(arm)}, {arm['sampling']}." if len(found) > 1 else ""
            if kinds is rescored:
                counted = _sequences(worst["sequences"])
                told = f"Losslessness: {_sign(worst, leakage)}; {counted} re-scored by an independent forward"
            else:
                told = f"Self-consistency: {_sign(worst, leakage)}, by the rows that SpS itself used alone"
            return f"{told}.{where}"
    return ""


def _sign(kind: Evidence, leakage: Leakage) -> str:
    """Whether there is a sign of a leak; where there is none, what would have been one."""
    if kind["verdict"] == "alarm":
        low, high = share(leakage["low"]), share(leakage["high"])
        return f"leakage {share(leakage['estimate'])} [{low}, {high}], {LEAKAGE}"
    few = f"too few informative positions ({kind['positions']}); " if kind["verdict"] == "no evidence" else ""
    seen = f"one above {bound(leakage['bound'])} of the tokens would have been seen (95% bound)"
    return f"{few}no leak found, {seen if leakage['bound'] < 1 else 'but none can be excluded'}"


def _identity(arms: list[ArmLosslessness]) -> str:
    compared = [arm["identity"] for arm in arms if arm["identity"] is not None]
    if not compared:
        return ""
    total = sum(same["sequences"] for same in compared)
    same = round(sum(same["sequences"] * same["identical"] for same in compared))
    counted = f"all {total}" if same == total else f"{same} of {total}"
    return f"Greedy: {counted} SpS outputs are identical to those of ArS, token for token."


def decisions(arms: list[ArmLosslessness]) -> str:
    """How many decisions an independent forward confirms or contradicts, where it is not all of them."""
    found = [one for arm in arms if (one := arm.get("decisions")) is not None]
    if not found:
        return ""
    total, contradicted = (sum(one[name] for one in found) for name in ("decisions", "contradicted"))
    if contradicted:
        rows = f"(independent forward, {found[0]['dtype']})"
        return f"Decisions: {contradicted:,} of {total:,} contradict the target's own rows {rows}."
    whole = all(one["share"] == 1 for one in found) and len(found) == len(arms)
    sequences = "" if whole else f" in {_sequences(sum(one['sequences'] for one in found))}"
    return f"Decisions{sequences}: {_followed(found)}."


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
    """One comparison in words, e.g. ``equivalent to ArS within ±0.0040 (5% of ...)``."""
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


Run = Mapping[str, Any]

LOSSLESSNESS_LEGEND = (
    "Leakage: if a share of the tokens followed the draft and the rest the target, the share that fits the "
    "output best. "
    "Self-consistency uses the rows that SpS itself used: every sequence, but blind to a wrong row, a "
    "stale cache or a wrong position. Losslessness is claimed only from an uncached forward over the "
    "finished text. The e-value may be looked at while a run grows; alarm at 10^3. z, p and intervals hold "
    "for a number of prompts fixed beforehand."
)
DECISIONS_LEGEND = (
    "Every draft pick, acceptance test and draw was derived again, in float64, from the seed and an uncached "
    "forward over the finished text. Only by rounding: decided otherwise, with a uniform number so close to "
    "the edge that the rounding of the dtype explains it. Closest: the least distance from the edge of a "
    "decision that follows, as a probability. Draft's rows: from a forward of its own, or as the drafter "
    "recorded them, the rows that it drew from. Exact: every sequence, and nothing contradicted."
)
PARITY_LEGEND = (
    "Paired by prompt. Equivalent: two one-sided tests put the difference within the margin (p < .05). "
    "Different: the interval leaves out 0. Normalised: (ArS - SpS) / (ArS - draft alone)."
)


def losslessness_section(summary: Summary, run: Run) -> list[str]:
    """The evidence per arm and kind, the verdicts, and what each kind can show."""
    judged = summary["losslessness"]
    if judged is None:
        return []
    cells = [
        _evidence(f"{label(arm)}, {arm['sampling']}", title, found)
        for arm in judged["arms"]
        for kind, title in KINDS.items()
        if (found := arm[kind]) is not None
    ]
    columns = [
        *(left("arm"), left("evidence"), right("sequences"), right("positions")),
        *(right("leakage", note="95%"), right("at most (95%)"), right("log10 e-value")),
        *(right("log-score z"), right("transform p"), right("impossible"), left("verdict")),
    ]
    lines = ["## Losslessness", ""]
    lines += [*Table(columns, cells).as_markdown(), ""] if cells else []
    for arm in judged["arms"]:
        bound = None if is_confirmed(arm) else arm.get("bound")
        reasons = f": {'; '.join(arm['reasons'])}" if arm["reasons"] else ""
        verdict = worded(arm["verdict"], bound) + reasons
        lines.append(f"* {escape(label(arm))}, {escape(arm['sampling'])}: {escape(verdict)}.")
    lines += [*_decision_lines(judged["arms"]), *_drawn(judged["arms"])]
    return [*lines, "", LOSSLESSNESS_LEGEND] if cells else lines


def _decision_lines(arms: list[ArmLosslessness]) -> list[str]:
    """Per arm what came of deriving its decisions again, of the sequences drawn for it too."""
    found = [(f"{label(arm)}, {arm['sampling']}", arm.get("decisions")) for arm in arms]
    found += [
        (f"{label(arm)}, at temperature 1", made["decisions"])
        for arm in _proved(arms)
        if (made := arm["proof"])
    ]
    cells = [
        [
            name,
            f"{notes['sequences']} ({wording.percent(notes['share'])})",
            *(f"{notes[column]:,}" for column in ("decisions", "rounding", "contradicted")),
            f"{notes['closest']:.1e}",
            notes["dtype"],
            "as recorded" if notes.get("recorded") else "independent",
            "exact" if notes["exact"] else notes["verdict"],
        ]
        for name, notes in found
        if notes is not None
    ]
    numbers = ("sequences", "decisions", "only by rounding", "contradicted", "closest")
    table = Table(
        [left("arm"), *map(right, numbers), *map(left, ("dtype", "draft's rows", "verdict"))], cells
    )
    return ["", *table.as_markdown(), "", DECISIONS_LEGEND] if cells else []


def _proved(arms: list[ArmLosslessness]) -> list[ArmLosslessness]:
    """One arm of each way of drafting for which sequences were drawn: they do not depend on the sampling."""
    return list({place(arm, "sampling"): arm for arm in arms if arm.get("proof")}.values())


def _drawn(arms: list[ArmLosslessness]) -> list[str]:
    """What the sequences that were drawn at temperature 1 say of leakage."""
    sentences = [(label(arm), proof([arm])) for arm in _proved(arms)]
    lines = [f"* {escape(name)}: {escape(text)}" for name, text in sentences if text]
    return ["", *lines] if lines else []


def _evidence(name: str, title: str, kind: Evidence) -> list[str]:
    leakage, score, cells = kind["leakage"], kind["log_score"], kind["transform"]
    return [
        name,
        title,
        f"{kind['sequences']} ({wording.percent(kind['share'])})",
        str(kind["positions"]),
        wording.NOTHING if leakage is None else _estimate(leakage),
        wording.NOTHING if leakage is None else bound(leakage["bound"]),
        wording.number(kind["log10_e_value"], 1),
        wording.number(None if score is None else score["z"], 1),
        wording.number(None if cells is None else cells["p_value"], 3),
        str(kind["impossible"]),
        worded(kind["verdict"], leakage_bound(kind)),
    ]


def _estimate(leakage: Leakage) -> str:
    estimate, low, high = (share(leakage[name]) for name in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def parity_section(summary: Summary, run: Run) -> list[str]:
    """Quality against ArS, with the margin, the power, and how much the target is worth."""
    judged = summary["parity"]
    if judged is None or not judged["comparisons"]:
        return []
    names = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in summary["rows"]}
    digits = wording.difference_digits(judged["metric"])
    columns = [
        *(left("arm"), right("prompts"), right("ArS"), right("arm"), right("difference", note="95%")),
        *(right("normalised"), right("margin"), right("TOST p"), left("verdict")),
    ]
    same = identical(summary)
    cells = [
        [
            names[found["arm"]],
            str(found["prompts"]),
            *(wording.number(found[name], digits) for name in ("baseline_mean", "arm_mean")),
            _difference(found, digits),
            wording.number(found["normalised_difference"], 3),
            f"±{found['margin']:.{digits}f}",
            wording.number(found["tost_p_value"], 3),
            verdict_name(found, identical=found["arm"] in same),
        ]
        for found in judged["comparisons"]
    ]
    lines = [f"## Parity of {escape(wording.metric_title(judged['metric']))}", ""]
    lines += [*Table(columns, cells).as_markdown(), ""]
    notes = [*parity(summary), *advantages(summary)]
    notes += [
        _solved(names[found["arm"]], found["solved"]) for found in judged["comparisons"] if found["solved"]
    ]
    if not judged["target_over_draft"]:
        notes.append("How much better the target is than the draft alone: --arms ars,sps,draft measures it.")
    return [*lines, *(f"* {escape(text)}" for text in notes), "", PARITY_LEGEND]


def _difference(found: ParityComparison, digits: int) -> str:
    if found["difference"] is None:
        return wording.NOTHING
    interval = "" if found["low"] is None else f" [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
    return f"{found['difference']:+.{digits}f}{interval}"


def _solved(name: str, solved: Solved) -> str:
    test = solved["reason"] if solved["p_value"] is None else f"McNemar p {solved['p_value']:.3f}"
    return (
        f"{name}: problems solved by any sample: {solved['both']} by both, {solved['only_ars']} by ArS "
        f"alone, {solved['only_sps']} by SpS alone; {test}."
    )
