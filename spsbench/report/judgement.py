"""Whether to believe it: sentences and sections on losslessness, parity, and audits of other engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from spsbench.base.axes import EAGER, MODEL, label, place
from spsbench.report import wording
from spsbench.report.tables import Table, bullets, entry, left, paragraphs, right, table_of
from spsbench.report.wording import NOTHING, Run, brackets, counted, escape, full_name, number, speedup
from spsbench.stats.conditions import is_trusted
from spsbench.stats.losslessness import ALARM, bounds, leakage_bound
from spsbench.stats.messages import percent
from spsbench.stats.messages.evidence import UNBOUNDED
from spsbench.stats.predict.roofline import DISPATCH_BOUND, weak_baseline
from spsbench.store.summary_types import (
    AdaptiveGain,
    ArmFactors,
    ArmLosslessness,
    Decisions,
    EngineAuditRow,
    Evidence,
    FirstForward,
    Leakage,
    ParityComparison,
    ReproFacts,
    RowsApart,
    Summary,
)

LAUNCH_BOUND_SHARE = 0.5
"""Of a loop: where the device waits for the host for longer, the host's launches are what is measured."""


def weak(summary: Summary) -> list[str]:
    """Return the warning that must stand beside every speedup, with its remedy, where the baseline is far
    from its floor or loops spend their time launching.
    """
    lines = []
    share = weak_baseline(summary.get("ceiling"))
    if share is not None:
        lines.append(f"Weak baseline: ArS reaches {100 * share:.0f}% of its bandwidth floor.")
    on_device = []
    host_shares = []
    for row in summary["rows"] if is_trusted(summary) else []:
        host_ms = wording.phase_ms(row["loop_time"], "host")
        loop_ms = wording.phase_ms(row["loop_time"], "loop")
        if host_ms is not None and loop_ms:
            on_device.append(row)
            host_shares.append(host_ms / loop_ms)
    launch_bound = [host_share for host_share in host_shares if host_share > LAUNCH_BOUND_SHARE]
    if launch_bound:
        ends = dict.fromkeys(f"{end:.0%}" for end in (min(launch_bound), max(launch_bound)))
        lines.append(f"Launch-bound: {' to '.join(ends)} of a loop is the host, for which the device waits.")
    # A row that has fallen back from graphs is eager, too: there is nothing to be done.
    eager = any(row["engine"] == EAGER and not row["arm"].endswith("@graphed") for row in on_device)
    if lines and eager and "engine" not in summary:
        lines[-1] += " --engine graphed launches a loop at once."
    return lines


def above_optimum(summary: Summary) -> list[str]:
    """Explain shares of the optimum that are shown above 100%; an alarm explains itself."""
    alarmed = {arm["arm"] for arm in judged_arms(summary) if arm["verdict"] == ALARM}
    above = [
        (row, share)
        for row in summary["rows"]
        if row["arm"] not in alarmed and (share := row.get("share_of_optimum")) and share["ratio"] >= 1.0005
    ]
    sentences_of = [
        f"{full_name(row)}: above 100% of the optimum, by a lossy rule."
        for row, _ in above
        if not row["lossless"]
    ]
    by_chance = [share for row, share in above if row["lossless"]]
    if by_chance:
        outside = any((share["low"] or 0.0) > 1.0 for share in by_chance)
        sentences_of.append(
            "Above 100% of the optimum by chance: what is accepted is drawn, and the optimum is its mean "
            "under the best lossless rule." + (" One interval in forty lies above 100%." if outside else "")
        )
    return sentences_of


def sentences(summary: Summary) -> list[str]:
    """Return what a policy made of K, then why the fastest arm of each sampling is not faster."""
    lines = [
        f"{each['sampling']}: {adapted(arm)}"
        for each in summary.get("hindsight") or []
        for arm in each.get("adaptive", ())
    ]
    explained = fastest(summary)
    if len(explained) > wording.MANY:
        explained = [max(explained, key=lambda each: float(each["speedup"]))]
    lines += [str(each["sentence"]) for each in explained]
    ceiling = summary.get("ceiling")
    if ceiling and ceiling["regime"] == DISPATCH_BOUND:
        saved = "SpS saves the overhead of calls rather than memory traffic"
        if ceiling.get("cache_shared"):
            cache = "The weights fit in the last-level cache that the hypervisor reports"
            lines.append(f"{cache}. If all of it is available to this process, {saved}.")
        else:
            lines.append(f"The weights fit in the last-level cache: {saved}.")
    return lines


def adapted(arm: AdaptiveGain) -> str:
    """Return what a policy made of K, compared with the fastest fixed K."""
    return (
        f"{arm['policy']} took {wording.milliseconds(arm['ms_per_token'])} ms/token: "
        f"{speedup(arm['gain'])} as fast as the fastest fixed K, K={arm['fixed_k']}."
    )


def fastest(summary: Summary) -> list[ArmFactors]:
    """Return the explained arm with the largest speedup of each series along K."""
    best: dict[tuple[Any, ...], ArmFactors] = {}
    for explained in summary.get("why") or []:
        key = place(explained, "k")
        if explained.get("lossless", True) and (
            key not in best or explained["speedup"] > best[key]["speedup"]
        ):
            best[key] = explained
    return list(best.values())


LEAKAGE = "the share of tokens that follow the draft instead of the target"
"""What leakage is, where it first stands."""

EvidenceKind = Literal["self_consistency", "rescored"]
KINDS: dict[EvidenceKind, str] = {
    "self_consistency": "self-consistency",
    "rescored": "losslessness (re-scored)",
}
"""Only what was re-scored by an independent forward is called losslessness."""


def share(value: float | None) -> str:
    """Return a small share as a percentage with two digits, see ``percent``; a dash for none."""
    return NOTHING if value is None else percent(value)


def bound(value: float) -> str:
    """Write a share as a percentage, rounded up to two digits: an upper bound must stay one."""
    if not bounds(value):
        return NOTHING
    percent = 100 * value
    if percent <= 0:
        return "0%"
    unit = 10.0 ** (math.floor(math.log10(percent)) - 1)
    return f"{math.ceil(percent / unit - 1e-9) * unit:.3g}%"


def _leak(leakage: Leakage | None) -> str:
    if leakage is None:
        return NOTHING
    return f"{share(leakage['estimate'])} [{share(leakage['low'])}, {share(leakage['high'])}]"


def worded(name: str, leakage_bound: float | None) -> str:
    """Word a verdict on losslessness; "ok" never stands without the bound that it rests on, if any."""
    if name != "ok" or leakage_bound is None:
        return name
    if not bounds(leakage_bound):
        return f"ok: no alarm; {UNBOUNDED}"
    return f"ok: no sign of a leak above {bound(leakage_bound)}"


def judged_arms(summary: Summary) -> list[ArmLosslessness]:
    """Return the arms that were judged; none in a run without evidence."""
    return (summary["losslessness"] or {"arms": []})["arms"]


def alarms(summary: Summary) -> list[str]:
    """Return one sentence per arm whose output is not what the target would write."""
    return [
        f"ALARM: {full_name(arm)}, does not follow the target's distribution."
        for arm in judged_arms(summary)
        if arm["verdict"] == "alarm"
    ]


def doubted_times(summary: Summary) -> list[str]:
    """Return which times contradict an arm's loops, and which prompts have none, under all conditions."""
    return list(summary.get("doubted_times") or [])


def losslessness(summary: Summary) -> list[str]:
    """Return what is known of the SpS arms.

    It says that every decision follows, else the worst bound; then greedy identity.
    """
    speculative = [arm for arm in judged_arms(summary) if arm["method"] == "sps"]
    searched = [arm for arm in speculative if arm.get("beams")]
    arms = [arm for arm in speculative if arm.get("lossless", True) and arm not in searched]
    confirmed = [arm for arm in arms if is_confirmed(arm)]
    others = [arm for arm in arms if arm not in confirmed]
    plain = [arm for arm in judged_arms(summary) if arm["method"] == "ars"]
    verdicts = (_confirmed(confirmed, plain, of=len(arms)), _leakage(others, of=len(arms)), _identity(arms))
    sentences = [text for text in (*verdicts, _decisions(others, plain), _proof(others)) if text]
    if arms and not sentences:
        sentences = ["Losslessness: no evidence was recorded."]
    if unread := sum(arm.get("unread", 0) for arm in judged_arms(summary)):
        counts = counted(unread, "sequence")
        sentences.append(f"{counts} could not be read again: the times stand, the journal says why.")
    for arm in speculative:
        if not arm.get("lossless", True):  # with what it costs in distribution
            evidence = arm["rescored"] or arm["self_consistency"]
            leak = None if evidence is None else evidence["leakage"]
            cost = "its leakage was not measured" if leak is None else f"leakage {_leak(leak)}"
            named = (
                "lossy by design" if arm["verdict"] != "refuted" else "it claims to be lossless and is not"
            )
            sentences.append(f"{full_name(arm)}: {named}; {cost}.")
    return sentences + searches(searched)


def searches(arms: list[ArmLosslessness]) -> list[str]:
    """Return for how many prompts speculative beam search found what exact beam search finds."""
    known = [facts for arm in arms if (facts := arm["beams"]) is not None]
    identities = [same for facts in known if (same := facts["identity"]) is not None]
    if not identities:
        return ["Beam search: nothing to compare with, exact beam search was not run."] if arms else []
    total, alike = sum(one["sequences"] for one in identities), sum(one["identical"] for one in identities)
    text = f"identical on all {total} prompts (hypotheses and scores)"
    if alike < total:
        rounding, other = (
            sum(one["rounding"] for one in identities),
            sum(one["contradicted"] for one in identities),
        )
        text = (
            f"identical on {alike} of {total} prompts; {rounding} differ within rounding, {other} beyond it"
        )
    if coarse := [one["allowance"] for one in identities if not one["precise"]]:
        text += f"; weak evidence: in 16 bit up to {max(coarse):.2g} nats count as rounding"
    return [f"Beam search: {text}. tokens/loop counts steps of the search."]


def is_confirmed(arm: ArmLosslessness) -> bool:
    """Return whether every decision of every output follows from independent rows, and nothing alarms."""
    decided = arm.get("decisions")
    return arm["verdict"] == "ok" and decided is not None and decided["exact"]


def _confirmed(arms: list[ArmLosslessness], plain: list[ArmLosslessness], of: int) -> str:
    """Return the verdict on arms whose every decision is confirmed.

    It tells which drafts showed their own rows.
    """
    derived = [(arm, one) for arm in arms if (one := arm.get("decisions")) is not None]
    if not derived:
        return ""
    some = "" if len(derived) == of else f", {len(derived)} of {of} arms"
    shown = list(dict.fromkeys(str(arm.get("drafter", MODEL)) for arm, one in derived if one.get("recorded")))
    whose = "" if all(one.get("recorded") for _, one in derived) else f" of {', '.join(shown)}"
    drafts = f"; the draft's rows{whose} as recorded" if shown else ""
    return f"Lossless{some}: {_followed([one for _, one in derived], plain, drafts)}."


def _followed(
    decisions: list[Decisions], plain: list[ArmLosslessness], more: str = "", *, unread: int = 0
) -> str:
    """Return how many decisions follow, and how far their rows are from an independent forward.

    Args:
        plain: the ArS arms, whose rows are beside these.
        more: of the draft's rows.
        unread: how many sequences no independent forward has read.
    """
    total, rounding = (sum(one[name] for one in decisions) for name in ("decisions", "rounding"))
    open_ = sum(one.get("open", 0) for one in decisions)
    rows = [one["target"] for one in decisions if "target" in one]
    whose = "the rows as computed" if len(rows) == len(decisions) else "the target's own rows"
    text = f"{total - rounding - open_:,} of {total:,} decisions follow from {whose}"
    text += f", {rounding:,} more within rounding" if rounding else ""
    text += f", {open_:,} were made in the drafter's own way" if open_ else ""
    if len(rows) < len(decisions) and unread:
        return f"{text} ({decisions[0]['dtype']}{more}; no independent forward has read them)"
    if len(rows) < len(decisions):  # of a run from before rows were kept
        return f"{text} (independent forward, {decisions[0]['dtype']}{more})"
    return f"{text}; {_apart(rows, plain)} ({decisions[0]['dtype']}{more})"


def _apart(rows: list[RowsApart], plain: list[ArmLosslessness]) -> str:
    """Return how far rows are from an independent forward, beside ArS's rows and what rounding alone does."""
    beside = []
    known = [decided["target"] for arm in plain if (decided := arm["decisions"]) and "target" in decided]
    if known:
        beside.append(f"ArS {_distance(max(one['apart'] for one in known))}")
    alone = [one["rounding"] for one in rows if one["rounding"] is not None]
    if alone:
        beside.append(f"rounding alone {_distance(max(alone))}")
    far = _distance(max(one["apart"] for one in rows))
    brackets = f" ({', '.join(beside)})" if beside else ""
    text = f"these lie {far}{brackets} from an independent forward"
    unmeasured = any(one["beyond"] is None and one["rounding"] is None for one in rows)
    text = f"{text}, and what rounding alone does was not measured" if unmeasured else text
    return text + "".join(f"; {clause}" for clause in _chosen_otherwise(rows))


def _chosen_otherwise(rows: list[RowsApart]) -> Iterator[str]:
    """Yield how often an expert or a key of an index is another one when a text is read in other blocks."""
    kinds: tuple[tuple[str, Literal["experts", "index"]], ...] = (
        ("experts flip", "experts"),
        ("the index picks other keys", "index"),
    )
    for words, kind in kinds:
        known = [value for one in rows if (value := one.get(kind)) is not None]
        if known and max(known) > 0:
            yield f"{words} in {share(max(known))} of rows when the same text is read in other blocks"


def _distance(value: float) -> str:
    """Return a mean total variation as a percentage."""
    return "below 0.001%" if value < 1e-5 else share(value)


def _leakage(arms: list[ArmLosslessness], of: int) -> str:
    """Return the independent evidence if there is any, else that of the arms' own rows, which prove less."""
    kinds: tuple[EvidenceKind, ...] = ("rescored", "self_consistency")
    for kind in kinds:
        evidence = [(arm, one, one["leakage"]) for arm in arms if (one := arm[kind]) and one["leakage"]]
        if not evidence:
            continue
        arm, worst, leakage = max(evidence, key=lambda one: one[2]["bound"])
        where = f" Widest bound: {full_name(arm)}." if len(evidence) > 1 else ""
        sign = _sign(worst, leakage)
        whose = f" of {full_name(arm)}" if len(evidence) == 1 < of else ""
        if kind == "rescored":
            sequences = counted(worst["sequences"], "sequence")
            return f"Losslessness{whose}: {sign}; {sequences} re-scored by an independent forward.{where}"
        return f"Self-consistency{whose}: {sign}, by the rows that SpS itself used alone.{where}"
    return ""


def _sign(kind: Evidence, leakage: Leakage) -> str:
    if kind["verdict"] == "alarm":
        return f"leakage {_leak(leakage)}, {LEAKAGE}"
    few = f"too few informative positions ({kind['positions']}); " if kind["verdict"] == "no evidence" else ""
    seen = f"one above {bound(leakage['bound'])} of the tokens would have been seen (95% bound)"
    return f"{few}no leak found, {seen if bounds(leakage['bound']) else 'but none can be excluded'}"


def _identity(arms: list[ArmLosslessness]) -> str:
    compared = [arm["identity"] for arm in arms if arm["identity"] is not None]
    if not compared:
        return ""
    total = sum(same["sequences"] for same in compared)
    same = round(sum(same["sequences"] * same["identical"] for same in compared))
    alike = f"all {total}" if same == total else f"{same} of {total}"
    return f"Greedy: {alike} SpS outputs are identical to those of ArS, token for token."


def _decisions(arms: list[ArmLosslessness], plain: list[ArmLosslessness]) -> str:
    """Return how many decisions an independent forward confirms or contradicts, if not all of them."""
    derived = [one for arm in arms if (one := arm.get("decisions")) is not None]
    if not derived:
        return ""
    total, contradicted = (sum(one[name] for one in derived) for name in ("decisions", "contradicted"))
    reasons = [reason for one in derived if "target" in one for reason in one["reasons"]]
    if reasons:
        return f"Decisions: {'; '.join(dict.fromkeys(reasons))} ({derived[0]['dtype']})."
    if contradicted:
        reader = "the loops' own rows" if any(arm.get("unread") for arm in arms) else "independent forward"
        rows = f"({reader}, {derived[0]['dtype']})"
        return f"Decisions: {contradicted:,} of {total:,} contradict the target's own rows {rows}."
    whole = all(one["share"] == 1 for one in derived) and len(derived) == len(arms)
    sequences = "" if whole else f" in {counted(sum(one['sequences'] for one in derived), 'sequence')}"
    unread = sum(arm.get("unread", 0) for arm in arms)
    return f"Decisions{sequences}: {_followed(derived, plain, unread=unread)}."


def _proof(arms: list[ArmLosslessness]) -> str:
    """Return the bound of the worst arm from the sequences that were drawn at temperature 1."""
    judged = [made["rescored"] for arm in arms if (made := arm.get("proof"))]
    bounded = [(kind, kind["leakage"]["bound"]) for kind in judged if kind and kind["leakage"]]
    if not bounded:
        return ""
    worst, most = max(bounded, key=lambda one: one[1])
    several = " per arm" if len(bounded) > 1 else ""
    more = f"{counted(worst['sequences'], 'more sequence')}{several}"
    if not bounds(most):
        return f"At temperature 1 without nucleus, from {more}: {UNBOUNDED}."
    return f"At temperature 1 without nucleus, from {more}: leakage at most {bound(most)} (95% bound)."


def parity(summary: Summary) -> list[str]:
    """Return the verdict on each SpS arm; for many arms, how many got which verdict."""
    judged = summary["parity"]
    if judged is None:
        data = summary.get("data")
        unread = isinstance(data, Mapping) and data.get("unread_by_rouge")
        return ["Parity: not judged, ROUGE reads none of the references."] if unread else []
    title, comparisons = wording.metric_title(judged["metric"]), judged["comparisons"]
    same = identical(summary)
    if len(comparisons) > wording.MANY:
        verdicts = [_verdict_name(comparison, comparison["arm"] in same) for comparison in comparisons]
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
        needed = [
            comparison["prompts_needed"] or 0
            for comparison in comparisons
            if comparison["verdict"] == "inconclusive"
        ]
        more = f"; showing parity for all needs about {max(needed):,} prompts" if any(needed) else ""
        return [f"{title} of {len(comparisons)} arms against ArS: {counts}{more}."]
    labels = {row["arm"]: full_name(row) for row in summary["rows"]}
    digits = wording.difference_digits(judged["metric"])
    verdicts_shown = [
        (labels[comparison["arm"]], verdict(comparison, digits, identical=comparison["arm"] in same))
        for comparison in comparisons
    ]
    return [f"{title} of {name}: {shown}." for name, shown in verdicts_shown]


def identical(summary: Summary) -> set[str]:
    """Return the arms whose greedy outputs all equal those of ArS, token for token."""
    arms = judged_arms(summary)
    return {arm["arm"] for arm in arms if (same := arm["identity"]) is not None and same["identical"] == 1}


def _verdict_name(comparison: ParityComparison, identical: bool) -> str:
    return comparison["verdict"] or ("identical" if identical else f"not judged ({comparison['reason']})")


def _difference(comparison: ParityComparison, digits: int) -> str:
    if comparison["difference"] is None:
        return NOTHING
    return f"{comparison['difference']:+.{digits}f}{brackets(comparison, f'{{:+.{digits}f}}'.format)}"


def verdict(comparison: ParityComparison, digits: int = 4, *, identical: bool = False) -> str:
    """Return one comparison in words, e.g. ``equivalent to ArS within ±0.0040 (5% of ...)``."""
    if comparison["verdict"] is None:
        if identical:
            return f"outputs identical on all {comparison['prompts']} prompts"
        return f"not judged, {comparison['reason']}"
    margin = f"±{comparison['margin']:.{digits}f} ({comparison['margin_rule']})"
    if comparison["verdict"] == "equivalent":
        return f"equivalent to ArS within {margin}"
    difference = _difference(comparison, digits)
    if comparison["verdict"] == "different":
        return f"different from ArS by {difference}"
    detectable = f"{comparison['minimum_detectable_difference']:.{digits}f}"
    count = comparison["prompts_needed"]
    needs = f"needs about {count:,}" if count else "needs more prompts than can be estimated from so few"
    return (
        f"inconclusive, {difference} against ArS; {comparison['prompts']} prompts can detect a difference of "
        f"{detectable}, showing parity within {margin} {needs}"
    )


def advantages(summary: Summary) -> list[str]:
    """Return how much better the target is than the draft alone, per sampling."""
    judged = summary["parity"]
    if judged is None:
        return []
    sentences = []
    for advantage in judged["target_over_draft"]:
        ratio = f"no ratio, {advantage['reason']}"
        if advantage["ratio"] is not None:
            ratio = speedup({"ratio": advantage["ratio"], "low": advantage["low"], "high": advantage["high"]})
        title = wording.metric_title(judged["metric"])
        sentences.append(f"{title} of the target over the draft alone, {advantage['sampling']}: {ratio}.")
    return sentences


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
ROWS_LEGEND = (
    "Every draft pick, acceptance test and draw was derived again, in float64, from the seed and the rows "
    "that the loop had. Only by rounding: decided otherwise, with a uniform number so close to the edge that "
    "the rounding of float32 explains it. Closest: the least distance from the edge of a decision that "
    "follows, as a probability. Apart: mean total variation of these rows from an uncached forward over the "
    "finished text; of greedy rows the probability by which the best token exceeds theirs. Rounding: how far "
    "that forward is from itself when it reads a part of the text again in blocks of 1 or K+1. In float32 a "
    "single row beyond rounding is an alarm, in 16 bits a mean of 4 times it; what lies far off is first "
    "read a second time, in the blocks that its loops read, behind another cache. Exact: every sequence, "
    "nothing contradicted, and the rows are the model's."
)
PARITY_LEGEND = (
    "Paired by prompt. Equivalent: two one-sided tests put the difference within the margin (p < .05). "
    "Different: the interval leaves out 0. Normalised: (ArS - SpS) / (ArS - draft alone)."
)


def _of_sequences(evidence: Evidence | Decisions) -> str:
    return f"{evidence['sequences']} ({wording.percent(evidence['share'])})"


EVIDENCE = (
    left("arm", entry("name")),
    left("evidence", entry("kind")),
    right("sequences", _of_sequences),
    right("positions", entry("positions")),
    right("leakage", entry("leakage", _leak), note="95%"),
    right("at most (95%)", entry("leakage", lambda leak: NOTHING if leak is None else bound(leak["bound"]))),
    right("log10 e-value", entry("log10_e_value", number, 1)),
    right("log-score z", lambda kind: number(kind["log_score"] and kind["log_score"]["z"], 1)),
    right("transform p", lambda kind: number(kind["transform"] and kind["transform"]["p_value"], 3)),
    right("impossible", entry("impossible")),
    left("verdict", lambda kind: worded(kind["verdict"], leakage_bound(kind))),
)


def _rows_of(
    role: Literal["target", "draft"], name: Literal["apart", "rounding"]
) -> Callable[[Decisions], str]:
    """Return a column with the distance of an arm's rows, or of rounding alone.

    A cell is empty where no rows were compared.
    """

    def cell(decisions: Decisions) -> str:
        rows = decisions.get(role)
        value = None if rows is None else rows[name]
        return NOTHING if value is None else _distance(value)

    return cell


_DRAFT_APART = _rows_of("draft", "apart")
_COUNTS = (
    left("arm", entry("name")),
    right("sequences", _of_sequences),
    right("decisions", entry("decisions", "{:,}".format)),
    right("only by rounding", entry("rounding", "{:,}".format)),
    right("contradicted", entry("contradicted", "{:,}".format)),
    right("closest", entry("closest", "{:.1e}".format)),
    left("dtype", entry("dtype")),
)
_EXACT = left("verdict", lambda notes: "exact" if notes["exact"] else notes["verdict"])
DECISIONS = (
    *_COUNTS,
    left("draft's rows", lambda notes: "as recorded" if notes.get("recorded") else "independent"),
    _EXACT,
)
"""Of runs from before the rows of loops were kept."""

ROWS = (
    *_COUNTS,
    right("apart", _rows_of("target", "apart")),
    right("rounding", _rows_of("target", "rounding")),
    right("draft apart", lambda notes: "as recorded" if notes.get("recorded") else _DRAFT_APART(notes)),
    _EXACT,
)


def losslessness_section(summary: Summary, run: Run) -> list[str]:
    """Return the evidence per arm and kind, the verdicts, and what each kind can show."""
    if summary["losslessness"] is None:
        return []
    arms, verdicts = judged_arms(summary), []
    evidence = [
        {**found, "name": full_name(arm), "kind": title}
        for arm in arms
        for kind, title in KINDS.items()
        if (found := arm[kind]) is not None
    ]
    for arm in arms:
        least = None if is_confirmed(arm) else arm.get("bound")
        reasons = f": {'; '.join(arm['reasons'])}" if arm["reasons"] else ""
        unread = f"; {arm['unread']} not read again" if arm.get("unread") else ""
        verdicts.append(f"{full_name(arm)}: {worded(arm['verdict'], least)}{reasons}{unread}.")
    # One arm of each way of drafting for which sequences were drawn: they do not depend on the sampling.
    proved = {place(arm, "sampling"): arm for arm in arms if arm.get("proof")}.values()
    made = [(full_name(arm), arm.get("decisions")) for arm in arms]
    made += [
        (f"{label(arm)}, at temperature 1", proof["decisions"]) for arm in proved if (proof := arm["proof"])
    ]
    decisions = [{**notes, "name": name} for name, notes in made if notes is not None]
    drawn = [f"{label(arm)}: {text}" for arm in proved if (text := _proof([arm]))]
    return paragraphs(
        "## Losslessness",
        table_of(EVIDENCE, evidence) if evidence else "",
        bullets(verdicts),
        *(_decisions_table(decisions) if decisions else ()),
        bullets(drawn),
        LOSSLESSNESS_LEGEND if evidence else "",
    )


def _decisions_table(decisions: Sequence[Mapping[str, Any]]) -> tuple[Table, str]:
    """Return the table of decisions with its legend."""
    if all("target" in derived for derived in decisions):
        return table_of(ROWS, decisions), ROWS_LEGEND
    return table_of(DECISIONS, decisions), DECISIONS_LEGEND


def parity_section(summary: Summary, run: Run) -> list[str]:
    """Return quality against ArS, with the margin, the power, and the target's advantage over the draft."""
    judged = summary["parity"]
    if judged is None or not judged["comparisons"]:
        return []
    names = {row["arm"]: full_name(row) for row in summary["rows"]}
    digits, same = wording.difference_digits(judged["metric"]), identical(summary)
    columns = [
        left("arm", entry("arm", names.__getitem__)),
        right("prompts", entry("prompts")),
        right("ArS", entry("baseline_mean", number, digits)),
        right("arm", entry("arm_mean", number, digits)),
        right("difference", lambda comparison: _difference(comparison, digits), note="95%"),
        right("normalised", entry("normalised_difference", number, 3)),
        right("margin", entry("margin", f"±{{:.{digits}f}}".format)),
        right("TOST p", entry("tost_p_value", number, 3)),
        left("verdict", lambda comparison: _verdict_name(comparison, comparison["arm"] in same)),
    ]
    notes = [*parity(summary), *advantages(summary)]
    for comparison in judged["comparisons"]:
        if solved := comparison["solved"]:
            test = solved["reason"] if solved["p_value"] is None else f"McNemar p {solved['p_value']:.3f}"
            notes.append(
                f"{names[comparison['arm']]}: problems solved by any sample: {solved['both']} by both, "
                f"{solved['only_ars']} by ArS alone, {solved['only_sps']} by SpS alone; {test}."
            )
    if not judged["target_over_draft"]:
        notes.append("How much better the target is than the draft alone: --arms ars,sps,draft measures it.")
    title = f"## Parity of {escape(wording.metric_title(judged['metric']))}"
    return paragraphs(title, table_of(columns, judged["comparisons"]), bullets(notes), PARITY_LEGEND)


# --- audits of engines of others ---

EVERY = "every token"
"""The place of an alarm that shows everywhere."""

_MOST_FAILURES = 3


def _verdict(row: EngineAuditRow) -> str:
    if row["cannot"] is not None:
        return f"cannot: {row['cannot']}"
    return "ALARM" if row["decision"] == ALARM else row["decision"]


def audit_table(rows: Sequence[EngineAuditRow]) -> Table:
    """Return one row a setting; the leakage with its bound where nothing is impossible."""

    def leakage(row: EngineAuditRow) -> str:
        interval = None if row["is_plain"] else row["leakage"]
        return NOTHING if interval is None else f"{interval['estimate']:.1%}"

    def at_most(row: EngineAuditRow) -> str:
        found = None if row["is_plain"] or row["decision"] == ALARM else row["bound"]
        return NOTHING if found is None else f"{found:.1%}"

    columns = [
        left("setting", entry("setting"), whole=True),
        right("texts", entry("texts")),
        right("impossible", entry("impossible")),
        right("leakage", leakage),
        right("at most", at_most),
        right("log10 e", entry("log10_e_value", number, 1)),
        left("verdict", _verdict, whole=False),
    ]
    return table_of(columns, rows)


def audit_sentences(rows: Sequence[EngineAuditRow], bound: float | None) -> Iterator[str]:
    """Say what each row means, where an alarm comes from, and how verdicts change with what else is run."""
    for row in rows:
        if row["cannot"] is None:
            about = [*_decision_of(row, bound), *_rare(row), *_conditions(row), *_other_findings(row)]
            yield f"{row['setting']}: {' '.join(about)}"
    yield from _verdicts_across_settings(rows)


def _verdicts_across_settings(rows: Sequence[EngineAuditRow]) -> Iterator[str]:
    """Yield a sentence for each sampling and K that was audited in several conditions.

    E.g. ``K=4, T=1: quiet alone, ALARM at 4 in flight.``
    """
    groups: dict[tuple[Any, ...], list[EngineAuditRow]] = {}
    for row in rows:
        groups.setdefault((row["k"], row["sampling"]), []).append(row)
    for group in groups.values():
        if len(group) == 1:
            continue
        conditions_by_verdict: dict[str, list[str]] = {}
        for row in group:
            verdict_word = _verdict(row).partition(":")[0]
            conditions_by_verdict.setdefault(verdict_word, []).append(_conditions_of(row))
        parts = [f"{word} {' and '.join(where)}" for word, where in conditions_by_verdict.items()]
        yield f"{group[0]['setting']}: {', '.join(parts)}."


def _conditions_of(row: EngineAuditRow) -> str:
    words = [f"at {row['in_flight']} in flight"] if row["in_flight"] > 1 else []
    words += ["with its prefix cache"] if row["prefix_cache"] else []
    words += [f"in {row['weights']}"] if row["weights"] != "float32" else []
    return ", ".join(words) or "alone"


def _decision_of(row: EngineAuditRow, bound: float | None) -> Iterator[str]:
    known = f"{row['bound']:.1%}" if bounds(row["bound"]) else None
    if row["decision"] == ALARM:
        yield f"not the target's distribution, known after {counted(row['decided_after'], 'text')}."
        if (first := row["first_forward"]) is not None:
            yield f"{first_forward_sentence(first)} What its sampling does is not known from these texts."
            return
        if row["place"] is not None:
            named = f"; nearest of the faults that are bet on: it {row['law']}" if row["law"] else ""
            yield f"It shows at {row['place']}{named}."
        yield from (f"{reason}." for reason in row["reasons"])
        yield from _located(row)
    elif row["decision"] == "quiet":
        shown = known and not row["is_plain"]
        leak = f"; leakage above {known} is ruled out (95%)" if shown else ""
        yield f"no alarm after {counted(row['decided_after'], 'text')}{leak}."
    else:
        leak = f", and at most {known} can leak" if known else ""
        wish = "" if row["is_plain"] or bound is None else f"; {bound:.1%} was asked for"
        yield f"no alarm after {counted(row['texts'], 'text')}{leak}{wish}."


def first_forward_sentence(first: FirstForward) -> str:
    """Say that the engine computes another model, and where it shows."""
    many = f"{first['differ']} of {counted(first['prompts'], 'prompt')}"
    if first["nats"] is None:
        where = (
            f"its most probable first token differs at {many}, e.g. token {first['token']} "
            f"in place of {first['expected']}"
        )
    else:
        where = (
            f"its first forward differs by {first['nats']:.3g} nat at token {first['token']}, and at {many}"
        )
    return f"It computes another model from this checkpoint, or reads another prompt: {where}."


def _rare(row: EngineAuditRow) -> Iterator[str]:
    """Yield which rare faults so many texts would have shown."""
    shares = row["rare"]
    if shares is None:
        return
    of_requests = (shares["another_request"], shares["random_token"], shares["stale_row"])
    known = [share for share in of_requests if share is not None]
    level = f"{shares['level']:.0%}"
    if len(known) < len(of_requests):
        yield f"Requests that go wrong at some token need not have been seen ({level})."
        return
    *others, stale = known
    # Where a text repeats itself, the row before is much like a token's own.
    apart = stale > 2 * max(others)
    often = _often(max(others) if apart else max(known))
    rest = f", {_often(stale)} where they read a stale row" if apart else ""
    yield f"{often.capitalize()} that go wrong at some token would have been seen ({level}){rest}."


def _often(share: float) -> str:
    return f"one in {math.floor(1 / share)} requests" if share <= 0.5 else f"{share:.0%} of requests"


def _conditions(row: EngineAuditRow) -> Iterator[str]:
    """Yield under which conditions a setting was judged, and what could not be."""
    yield from _rounding(row)
    if row["against"] is not None:
        yield f"Held against what the plain texts follow: {row['against']}."
    if row["retokenised"]:
        yield (
            f"{counted(row['retokenised'], 'text')} came without ids and had to be tokenized again: where "
            "the engine drew other tokens of the same text, that alone can raise an alarm, and a quiet audit "
            "says less."
        )
    if row["failures"]:
        shown = "; ".join(list(dict.fromkeys(row["failures"]))[:_MOST_FAILURES])
        yield f"{len(row['failures'])} requests failed: {shown}."
    if row["gone"] is not None:
        yield f"The engine was given up: {row['gone']}."


def _other_findings(row: EngineAuditRow) -> Iterator[str]:
    """Yield what else is wrong, whether seeds are honoured, and drafts unaware of a right engine's steps."""
    for finding in row["free"]:
        is_fact = finding["test"] in ("seeds", "withdrawn") and not finding["unjudged"]
        if not finding["passed"] or is_fact or finding["numbers"].get("unlike"):
            yield finding["found"]


def _rounding(row: EngineAuditRow) -> Iterator[str]:
    """Yield what plain texts of quantised weights measure, and what speculation was compared with."""
    facts = row["rounding"]
    if facts is None:
        return
    pairs, left = counted(facts["pairs"], "pair"), facts["differences"]
    if not row["is_plain"] and facts["stray_most"] is None:
        yield f"Held against the plain texts: {pairs}, e-value 10^{facts['log10_e_value']:z.1f}."
    elif not row["is_plain"]:
        explained = sum(difference["explained"] for difference in left)
        yield f"{counted(len(left), 'text')} differ from the plain ones; rounding explains {explained}."
    elif facts["variation"] is not None:
        yield f"Total variation from the rows of the dequantised weights: {facts['variation']:.2%} a token."
    elif facts["stray_most"] is not None:
        yield f"Its tokens are at most {facts['stray_most']:.3g} below the best logit, re-scored."


def _located(row: EngineAuditRow) -> Iterator[str]:
    """Yield where an alarm comes from, as far as that is known."""
    located = row["located"]
    if located is None:
        return
    for group, places in located["places"].items():
        notes = []
        for where in places:
            if where["score_z"] is not None:
                many = (
                    f" ({where['impossible']} of {where['tokens']} impossible)" if where["impossible"] else ""
                )
                notes.append(f"{where['name']} {where['score_z']:+.1f}{many}")
        if notes:
            yield f"Log-score z by {group}: {', '.join(notes)}."
    if located["explanation"] is not None and row["place"] in (None, EVERY):
        best = located["laws"][0]
        left_over = f", {best['impossible']} tokens still impossible" if best["impossible"] else ""
        yield (
            f"Closest of the laws tried: {located['explanation']} "
            f"({best['nats']:.0f} nats likelier than what was asked for{left_over})."
        )


def interim(setting: str, count: int, texts: int, evidence: Evidence | None, bound: float | None) -> str:
    """Return one line on a setting that is being audited."""
    line = f"{setting}: {count} of {texts} texts"
    if evidence is None:
        return line
    if evidence["verdict"] == ALARM:
        return f"{line}, ALARM: {evidence['reasons'][0]}; more texts show where"
    known = f", leakage at most {bound:.1%}" if bounds(bound) else ""
    return f"{line}, no alarm, e-value 10^{evidence['log10_e_value']:z.1f} (alarm at 10^3){known}"


def repro_sentence(facts: ReproFacts, folder: Path) -> str:
    """Return where the script is, and what it showed."""
    draws = sum(facts["observed"].values())
    p_value = "below 1e-300" if facts["p_value"] < 1e-300 else f"{facts['p_value']:.2g}"
    verdict = "shows it" if facts["clear"] else "does not show it clearly"
    return (
        f"{folder / facts['script']} {verdict}: {facts['setting']}, a prompt of {len(facts['context'])} ids, "
        f"output token {len(facts['prefix']) + 1}, {draws} draws, p-value {p_value}."
    )
