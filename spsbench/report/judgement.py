"""Whether to believe it: sentences and sections on losslessness, parity, and audits of other engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from spsbench.base.axes import EAGER, MODEL, label, place
from spsbench.base.messages import Message
from spsbench.report import wording
from spsbench.report.messages import audits
from spsbench.report.messages import losslessness as lossless
from spsbench.report.messages import parity as quality
from spsbench.report.tables import Table, bullets, entry, left, paragraphs, right, table_of
from spsbench.report.wording import NOTHING, Run, escape, full_name, number
from spsbench.stats.conditions import is_trusted
from spsbench.stats.losslessness import ALARM, bounds, leakage_bound
from spsbench.stats.messages import OfArm
from spsbench.stats.predict.roofline import DISPATCH_BOUND, weak_baseline
from spsbench.store.summary_types import (
    ArmFactors,
    ArmLosslessness,
    Decisions,
    EngineAuditRow,
    Evidence,
    ParityComparison,
    RowsApart,
    Summary,
)

LAUNCH_BOUND_SHARE = 0.5
"""Of a loop: where the device waits for the host for longer, the host's launches are what is measured."""


def weak(summary: Summary) -> list[str]:
    """What must stand beside every speedup, with its remedy, where the baseline is far from its floor or
    loops spend their time launching.
    """
    found: list[lossless.WeakBaseline | lossless.LaunchBound] = []
    share = weak_baseline(summary.get("ceiling"))
    if share is not None:
        found.append(lossless.WeakBaseline(share))
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
        found.append(lossless.LaunchBound(min(launch_bound), max(launch_bound)))
    # A row that has fallen back from graphs is eager, too: there is nothing to be done.
    eager = any(row["engine"] == EAGER and not row["arm"].endswith("@graphed") for row in on_device)
    if found and eager and "engine" not in summary:
        found[-1] = replace(found[-1], graphs=True)
    return [*map(str, found)]


def above_optimum(summary: Summary) -> list[str]:
    """Explain shares of the optimum that are shown above 100%; an alarm explains itself."""
    alarmed = {arm["arm"] for arm in judged_arms(summary) if arm["verdict"] == ALARM}
    above = [
        (row, share)
        for row in summary["rows"]
        if row["arm"] not in alarmed and (share := row.get("share_of_optimum")) and share["ratio"] >= 1.0005
    ]
    found: list[Message] = [
        lossless.AboveOptimumByRule(full_name(row)) for row, _ in above if not row["lossless"]
    ]
    by_chance = [share for row, share in above if row["lossless"]]
    if by_chance:
        found.append(lossless.AboveOptimumByChance(any((share["low"] or 0.0) > 1.0 for share in by_chance)))
    return [*map(str, found)]


def sentences(summary: Summary) -> list[str]:
    """What a policy made of K, then why the fastest arm of each sampling is not faster."""
    lines = [
        str(OfArm(each["sampling"], lossless.PolicyAgainstFixedK(arm)))
        for each in summary.get("hindsight") or []
        for arm in each.get("adaptive", ())
    ]
    explained = fastest(summary)
    if len(explained) > wording.MANY:
        explained = [max(explained, key=lambda each: float(each["speedup"]))]
    lines += [str(each["sentence"]) for each in explained]
    ceiling = summary.get("ceiling")
    if ceiling and ceiling["regime"] == DISPATCH_BOUND:
        lines.append(str(lossless.WeightsInCache(bool(ceiling.get("cache_shared")))))
    return lines


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


EvidenceKind = Literal["self_consistency", "rescored"]
KINDS: dict[EvidenceKind, str] = {
    "self_consistency": "self-consistency",
    "rescored": "losslessness (re-scored)",
}
"""Only what was re-scored by an independent forward is called losslessness."""


def judged_arms(summary: Summary) -> list[ArmLosslessness]:
    """Return the arms that were judged; none in a run without evidence."""
    return (summary["losslessness"] or {"arms": []})["arms"]


def alarms(summary: Summary) -> list[str]:
    """One sentence per arm whose output is not what the target would write."""
    return [str(lossless.Alarm(full_name(arm))) for arm in judged_arms(summary) if arm["verdict"] == "alarm"]


def doubted_times(summary: Summary) -> list[str]:
    """Return which times contradict an arm's loops, and which prompts have none, under all conditions."""
    return list(summary.get("doubted_times") or [])


def losslessness(summary: Summary) -> list[str]:
    """Of the SpS arms: that every decision follows, else the worst bound; then greedy identity."""
    speculative = [arm for arm in judged_arms(summary) if arm["method"] == "sps"]
    searched = [arm for arm in speculative if arm.get("beams")]
    arms = [arm for arm in speculative if arm.get("lossless", True) and arm not in searched]
    confirmed = [arm for arm in arms if is_confirmed(arm)]
    others = [arm for arm in arms if arm not in confirmed]
    plain = [arm for arm in judged_arms(summary) if arm["method"] == "ars"]
    found: list[Message | str] = [
        *_confirmed(confirmed, plain, of=len(arms)),
        *_leakage(others, of=len(arms)),
        *_identity(arms),
        *_decisions(others, plain),
        *_proof(others),
    ]
    if arms and not found:
        found = [lossless.NO_EVIDENCE]
    if unread := sum(arm.get("unread", 0) for arm in judged_arms(summary)):
        found.append(lossless.SequencesUnread(unread))
    for arm in speculative:
        if not arm.get("lossless", True):  # with what it costs in distribution
            evidence = arm["rescored"] or arm["self_consistency"]
            leakage = None if evidence is None else evidence["leakage"]
            found.append(lossless.LossyArm(full_name(arm), arm["verdict"] == "refuted", leakage))
    return [*map(str, [*found, *searches(searched)])]


def searches(arms: list[ArmLosslessness]) -> Iterator[Message | str]:
    """For how many prompts speculative beam search found what exact beam search finds."""
    known = [facts for arm in arms if (facts := arm["beams"]) is not None]
    identities = [same for facts in known if (same := facts["identity"]) is not None]
    if identities:
        sequences, identical, rounding, contradicted = (
            sum(one[name] for one in identities)
            for name in ("sequences", "identical", "rounding", "contradicted")
        )
        coarse = [one["allowance"] for one in identities if not one["precise"]]
        yield lossless.SearchesCompared(
            sequences, identical, rounding, contradicted, max(coarse, default=None)
        )
    elif arms:
        yield lossless.NO_EXACT_SEARCH


def is_confirmed(arm: ArmLosslessness) -> bool:
    """Whether every decision of every output follows from independent rows, and nothing alarms."""
    decided = arm.get("decisions")
    return arm["verdict"] == "ok" and decided is not None and decided["exact"]


def _confirmed(
    arms: list[ArmLosslessness], plain: list[ArmLosslessness], of: int
) -> Iterator[lossless.Lossless]:
    derived = [(arm, one) for arm in arms if (one := arm.get("decisions")) is not None]
    if not derived:
        return
    drafts = None
    if shown := dict.fromkeys(str(arm.get("drafter", MODEL)) for arm, one in derived if one.get("recorded")):
        drafts = () if all(one.get("recorded") for _, one in derived) else tuple(shown)
    yield lossless.Lossless(len(derived), of, _follow([one for _, one in derived], plain, drafts=drafts))


def _follow(
    decisions: list[Decisions],
    plain: list[ArmLosslessness],
    *,
    drafts: tuple[str, ...] | None = None,
    unread: bool = False,
) -> lossless.DecisionsConfirmed:
    """How many decisions follow; ``plain``: the ArS arms, whose rows are beside these."""
    total, rounding = (sum(one[name] for one in decisions) for name in ("decisions", "rounding"))
    open_ = sum(one.get("open", 0) for one in decisions)
    rows = [one["target"] for one in decisions if "target" in one]
    kept = len(rows) == len(decisions)  # not of a run from before they were
    distances = _distances(rows, plain) if kept else None
    return lossless.DecisionsConfirmed(
        total, rounding, open_, decisions[0]["dtype"], distances, unread, drafts
    )


def _distances(rows: list[RowsApart], plain: list[ArmLosslessness]) -> lossless.RowDistances:
    ars = [one["target"]["apart"] for arm in plain if (one := arm["decisions"]) and "target" in one]
    alone = [one["rounding"] for one in rows if one["rounding"] is not None]
    return lossless.RowDistances(
        apart=max(one["apart"] for one in rows),
        ars=max(ars, default=None),
        rounding=max(alone, default=None),
        unmeasured=any(one["beyond"] is None and one["rounding"] is None for one in rows),
        experts=max(one.get("experts") or 0.0 for one in rows),
        index=max(one.get("index") or 0.0 for one in rows),
    )


def _leakage(arms: list[ArmLosslessness], of: int) -> Iterator[lossless.LeakageBounded]:
    """The independent evidence if there is any, else that of the arms' own rows, which prove less."""
    kinds: tuple[EvidenceKind, ...] = ("rescored", "self_consistency")
    for kind in kinds:
        evidence = [(arm, one, one["leakage"]) for arm in arms if (one := arm[kind]) and one["leakage"]]
        if not evidence:
            continue
        arm, worst, leakage = max(evidence, key=lambda one: one[2]["bound"])
        yield lossless.LeakageBounded(
            rescored=kind == "rescored",
            leakage=leakage,
            sequences=worst["sequences"],
            arm=full_name(arm) if len(evidence) == 1 < of else None,
            widest=full_name(arm) if len(evidence) > 1 else None,
            alarmed=worst["verdict"] == "alarm",
            few=worst["positions"] if worst["verdict"] == "no evidence" else None,
        )
        return


def _identity(arms: list[ArmLosslessness]) -> Iterator[lossless.GreedyIdentity]:
    compared = [arm["identity"] for arm in arms if arm["identity"] is not None]
    if compared:
        same = round(sum(same["sequences"] * same["identical"] for same in compared))
        yield lossless.GreedyIdentity(same, sum(same["sequences"] for same in compared))


def _decisions(arms: list[ArmLosslessness], plain: list[ArmLosslessness]) -> Iterator[Message]:
    """How many decisions an independent forward confirms or contradicts, if not all of them."""
    derived = [one for arm in arms if (one := arm.get("decisions")) is not None]
    if not derived:
        return
    total, contradicted = (sum(one[name] for one in derived) for name in ("decisions", "contradicted"))
    reasons = [reason for one in derived if "target" in one for reason in one["reasons"]]
    unread = any(arm.get("unread") for arm in arms)
    if reasons:
        yield lossless.DecisionsFail(tuple(dict.fromkeys(reasons)), derived[0]["dtype"])
    elif contradicted:
        yield lossless.DecisionsRefuted(contradicted, total, unread, derived[0]["dtype"])
    else:
        whole = all(one["share"] == 1 for one in derived) and len(derived) == len(arms)
        sequences = None if whole else sum(one["sequences"] for one in derived)
        yield lossless.DecisionsChecked(sequences, _follow(derived, plain, unread=unread))


def _proof(arms: list[ArmLosslessness]) -> Iterator[lossless.LeakageAtTemperature1]:
    """The bound of the worst arm from the sequences that were drawn at temperature 1."""
    judged = [made["rescored"] for arm in arms if (made := arm.get("proof"))]
    bounded = [(kind, kind["leakage"]["bound"]) for kind in judged if kind and kind["leakage"]]
    if bounded:
        worst, most = max(bounded, key=lambda one: one[1])
        yield lossless.LeakageAtTemperature1(worst["sequences"], len(bounded) > 1, most)


def parity(summary: Summary) -> list[str]:
    """The verdict on each SpS arm; for many arms, how many got which verdict."""
    judged = summary["parity"]
    if judged is None:
        data = summary.get("data")
        unread = isinstance(data, Mapping) and data.get("unread_by_rouge")
        return [quality.NO_REFERENCE_READ] if unread else []
    metric, comparisons = judged["metric"], judged["comparisons"]
    same = identical(summary)
    if len(comparisons) > wording.MANY:
        verdicts = tuple(_verdict_name(comparison, comparison["arm"] in same) for comparison in comparisons)
        needed = (each["prompts_needed"] or 0 for each in comparisons if each["verdict"] == "inconclusive")
        return [str(quality.ParityOfMany(metric, verdicts, max(needed, default=0)))]
    labels = {row["arm"]: full_name(row) for row in summary["rows"]}
    digits = wording.difference_digits(metric)
    return [
        str(
            quality.ParityOfArm(
                metric, labels[each["arm"]], quality.ParityVerdict(each, digits, each["arm"] in same)
            )
        )
        for each in comparisons
    ]


def identical(summary: Summary) -> set[str]:
    """The arms whose greedy outputs all equal those of ArS, token for token."""
    arms = judged_arms(summary)
    return {arm["arm"] for arm in arms if (same := arm["identity"]) is not None and same["identical"] == 1}


def _verdict_name(comparison: ParityComparison, identical: bool) -> str:
    return comparison["verdict"] or ("identical" if identical else f"not judged ({comparison['reason']})")


def advantages(summary: Summary) -> list[str]:
    """How much better the target is than the draft alone, per sampling."""
    judged = summary["parity"]
    if judged is None:
        return []
    return [str(quality.AdvantageOfTarget(judged["metric"], each)) for each in judged["target_over_draft"]]


def _of_sequences(evidence: Evidence | Decisions) -> str:
    return f"{evidence['sequences']} ({wording.percent(evidence['share'])})"


EVIDENCE = (
    left("arm", entry("name")),
    left("evidence", entry("kind")),
    right("sequences", _of_sequences),
    right("positions", entry("positions")),
    right("leakage", entry("leakage", lossless.leak), note="95%"),
    right(
        "at most (95%)",
        entry("leakage", lambda found: NOTHING if found is None else lossless.bound(found["bound"])),
    ),
    right("log10 e-value", entry("log10_e_value", number, 1)),
    right("log-score z", lambda kind: number(kind["log_score"] and kind["log_score"]["z"], 1)),
    right("transform p", lambda kind: number(kind["transform"] and kind["transform"]["p_value"], 3)),
    right("impossible", entry("impossible")),
    left("verdict", lambda kind: lossless.worded(kind["verdict"], leakage_bound(kind))),
)


def _rows_of(
    role: Literal["target", "draft"], name: Literal["apart", "rounding"]
) -> Callable[[Decisions], str]:
    """A column: the distance of an arm's rows, or of rounding alone; empty where no rows were compared."""

    def cell(decisions: Decisions) -> str:
        rows = decisions.get(role)
        value = None if rows is None else rows[name]
        return NOTHING if value is None else lossless.distance(value)

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
    """The evidence per arm and kind, the verdicts, and what each kind can show."""
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
        verdicts.append(f"{full_name(arm)}: {lossless.worded(arm['verdict'], least)}{reasons}{unread}.")
    # One arm of each way of drafting for which sequences were drawn: they do not depend on the sampling.
    proved = {place(arm, "sampling"): arm for arm in arms if arm.get("proof")}.values()
    made = [(full_name(arm), arm.get("decisions")) for arm in arms]
    made += [
        (f"{label(arm)}, at temperature 1", proof["decisions"]) for arm in proved if (proof := arm["proof"])
    ]
    decisions = [{**notes, "name": name} for name, notes in made if notes is not None]
    drawn = [str(OfArm(label(arm), said)) for arm in proved for said in _proof([arm])]
    return paragraphs(
        "## Losslessness",
        table_of(EVIDENCE, evidence) if evidence else "",
        bullets(verdicts),
        *(_decisions_table(decisions) if decisions else ()),
        bullets(drawn),
        lossless.EVIDENCE_LEGEND if evidence else "",
    )


def _decisions_table(decisions: Sequence[Mapping[str, Any]]) -> tuple[Table, str]:
    """With its legend."""
    if all("target" in derived for derived in decisions):
        return table_of(ROWS, decisions), lossless.ROWS_LEGEND
    return table_of(DECISIONS, decisions), lossless.DECISIONS_LEGEND


def parity_section(summary: Summary, run: Run) -> list[str]:
    """Quality against ArS, with the margin, the power, and the target's advantage over the draft."""
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
        right("difference", lambda comparison: quality.difference(comparison, digits), note="95%"),
        right("normalised", entry("normalised_difference", number, 3)),
        right("margin", entry("margin", f"±{{:.{digits}f}}".format)),
        right("TOST p", entry("tost_p_value", number, 3)),
        left("verdict", lambda comparison: _verdict_name(comparison, comparison["arm"] in same)),
    ]
    notes = [*parity(summary), *advantages(summary)]
    for comparison in judged["comparisons"]:
        if solved := comparison["solved"]:
            notes.append(str(quality.ProblemsSolved(names[comparison["arm"]], solved)))
    if not judged["target_over_draft"]:
        notes.append(quality.MEASURE_ADVANTAGE)
    title = f"## Parity of {escape(wording.metric_title(judged['metric']))}"
    return paragraphs(title, table_of(columns, judged["comparisons"]), bullets(notes), quality.PARITY_LEGEND)


# --- audits of engines of others ---

EVERY = "every token"
"""The place of an alarm that shows everywhere."""

_MOST_FAILURES = 3


def _audit_verdict(row: EngineAuditRow) -> str:
    if row["cannot"] is not None:
        return f"cannot: {row['cannot']}"
    return "ALARM" if row["decision"] == ALARM else row["decision"]


def audit_table(rows: Sequence[EngineAuditRow]) -> Table:
    """One row a setting; the leakage with its bound where nothing is impossible."""

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
        left("verdict", _audit_verdict, whole=False),
    ]
    return table_of(columns, rows)


def audit_sentences(rows: Sequence[EngineAuditRow], bound: float | None) -> Iterator[str]:
    """Say what each row means, where an alarm comes from, and how verdicts change with what else is run."""
    for row in rows:
        if row["cannot"] is None:
            about = [*_decision_of(row, bound), *_rare(row), *_conditions(row), *_other_findings(row)]
            yield f"{row['setting']}: {' '.join(map(str, about))}"
    yield from _verdicts_across_settings(rows)


def _verdicts_across_settings(rows: Sequence[EngineAuditRow]) -> Iterator[str]:
    """A sentence for each sampling and K that was audited in several conditions.

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
            verdict_word = _audit_verdict(row).partition(":")[0]
            conditions_by_verdict.setdefault(verdict_word, []).append(_conditions_of(row))
        parts = [f"{word} {' and '.join(where)}" for word, where in conditions_by_verdict.items()]
        yield f"{group[0]['setting']}: {', '.join(parts)}."


def _conditions_of(row: EngineAuditRow) -> str:
    words = [f"at {row['in_flight']} in flight"] if row["in_flight"] > 1 else []
    words += ["with its prefix cache"] if row["prefix_cache"] else []
    words += [f"in {row['weights']}"] if row["weights"] != "float32" else []
    return ", ".join(words) or "alone"


def _decision_of(row: EngineAuditRow, bound: float | None) -> Iterator[Message | str]:
    known = row["bound"] if bounds(row["bound"]) else None
    if row["decision"] == ALARM:
        yield audits.AnotherDistribution(row["decided_after"])
        if (first := row["first_forward"]) is not None:
            yield audits.AnotherModel(first)
            yield audits.OTHER_SAMPLING_UNKNOWN
            return
        if row["place"] is not None:
            yield audits.AlarmAt(row["place"], row["law"])
        yield from (f"{reason}." for reason in row["reasons"])
        yield from _located(row)
    elif row["decision"] == "quiet":
        yield audits.Quiet(row["decided_after"], None if row["is_plain"] else known)
    else:
        yield audits.Undecided(row["texts"], known, None if row["is_plain"] else bound)


def _rare(row: EngineAuditRow) -> Iterator[Message]:
    """Which rare faults so many texts would have shown."""
    shares = row["rare"]
    if shares is None:
        return
    of_requests = (shares["another_request"], shares["random_token"], shares["stale_row"])
    known = [share for share in of_requests if share is not None]
    if len(known) < len(of_requests):
        yield audits.RareFaultsPossible(shares["level"])
        return
    *others, stale = known
    # Where a text repeats itself, the row before is much like a token's own.
    apart = stale > 2 * max(others)
    yield audits.RareFaultsSeen(
        shares["level"], max(others) if apart else max(known), stale if apart else None
    )


def _conditions(row: EngineAuditRow) -> Iterator[Message]:
    """Under which conditions a setting was judged, and what could not be."""
    yield from _rounding(row)
    if row["against"] is not None:
        yield audits.ComparedWithConvention(row["against"])
    if row["retokenised"]:
        yield audits.TextsRetokenised(row["retokenised"])
    if row["failures"]:
        errors = tuple(dict.fromkeys(row["failures"]))[:_MOST_FAILURES]
        yield audits.RequestsFailed(len(row["failures"]), errors)
    if row["gone"] is not None:
        yield audits.EngineGivenUp(row["gone"])


def _other_findings(row: EngineAuditRow) -> Iterator[str]:
    """What else is wrong, whether seeds are honoured, and drafts unaware of a right engine's steps."""
    for finding in row["free"]:
        is_fact = finding["test"] in ("seeds", "withdrawn") and not finding["unjudged"]
        if not finding["passed"] or is_fact or finding["numbers"].get("unlike"):
            yield finding["found"]


def _rounding(row: EngineAuditRow) -> Iterator[Message]:
    """What plain texts of quantised weights measure, and what speculation was compared with."""
    facts = row["rounding"]
    if facts is None:
        return
    left = facts["differences"]
    if not row["is_plain"] and facts["stray_most"] is None:
        yield audits.ComparedWithPlain(facts["pairs"], facts["log10_e_value"])
    elif not row["is_plain"]:
        yield audits.TextsDiffer(len(left), sum(each["explained"] for each in left))
    elif facts["variation"] is not None:
        yield audits.VariationOfWeights(facts["variation"])
    elif facts["stray_most"] is not None:
        yield audits.BelowBestLogit(facts["stray_most"])


def _located(row: EngineAuditRow) -> Iterator[Message | str]:
    """Where an alarm comes from, as far as that is known."""
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
        yield audits.ClosestLaw(located["explanation"], best["nats"], best["impossible"])
