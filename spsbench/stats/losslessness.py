"""Whether each arm kept the target's distribution: evidence, decisions derived again, greedy identity.

Two correct greedy computations may part at a numeric tie, since kernels differ by the number of
rows. Parting is therefore a number here and no verdict; ``spsbench verify`` measures the gap of the
two best logits and separates a tie from a bug.

Two kinds of evidence, never mixed. *Self-consistency* comes from the very rows that verification
used: it covers every sequence, and is blind to a wrong row, a stale cache or a wrong position.
*Losslessness* comes from one uncached forward over the finished text of some sequences: only that
is independent of the loops, and only that earns the word.

Where the loops are our own there is more than evidence: *decisions*. Every draft pick, acceptance test
and draw of a sequence is derived again from the rows that the loop had and the recorded seed, and these rows
are held against the independent forward's. Then nothing is estimated: the output is what the rule makes of
the models' rows, or it is not.

ArS arms, and the draft alone under its own rows, are judged like the others: they are the controls
that must come out clean.

Of a beam search by speculation nothing is sampled, so there is no law. Two facts, each with an excuse for
rounding alone. *Identity*: every finished hypothesis of a prompt, its score and its place are those of exact
beam search. Where hypotheses differ, the smallest gap by which either search chose shows whether rounding can
have made the difference; where two changed places, the gap between them does. *Log-probability*: an uncached
forward of the target over the best output gives what the search says of it; it knows no tree, cache or loop,
so a wrong mask, position or column shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from spsbench.base import axes
from spsbench.base.messages import Message
from spsbench.base.records import (
    BEAM_CLOSEST,
    BEAM_LOG_PROB,
    RESCORED,
    RESCORED_BEAM_LOG_PROB,
    UNREAD,
    Interval,
)
from spsbench.law.yardstick import LEAST_ROUNDING, TOO_FAR
from spsbench.stats import evidence_stats
from spsbench.stats.bootstrap import finite, pooled_ratio
from spsbench.stats.messages import OfArm
from spsbench.stats.messages import evidence as reasons_of
from spsbench.stats.speedup import finished, matched_by
from spsbench.store.summary_types import (
    ArmLosslessness,
    ArmProof,
    ArmRow,
    BeamFacts,
    BeamIdentity,
    BeamScores,
    Decisions,
    Evidence,
    Judgement,
    Losslessness,
    Proof,
    RowsApart,
    TokenIdentity,
    Verdict,
)

if TYPE_CHECKING:
    import pandas as pd


Reason = Message | str
Judged = tuple[Verdict, Sequence[Reason]]


def identity(baseline: pd.DataFrame, arm: pd.DataFrame) -> TokenIdentity | None:
    """Compare the tokens of two arms sequence by sequence.

    Later turns of a conversation count where both arms have answered the same before: only then do they have
    the same prompt. Where they have not, the turn that parted first is among the sequences.
    """
    if "token_ids" not in baseline or "token_ids" not in arm:
        return None
    key = matched_by(baseline, arm)
    field = "prompt_ids"
    columns = [*key, "token_ids", *([field] if field in baseline and field in arm else [])]
    ars_table, arm_table = (finished(frame)[columns] for frame in (baseline, arm))
    both = ars_table.merge(arm_table, on=key, suffixes=("_base", "_arm"))
    if field in columns:
        prompt_ids = zip(both[f"{field}_base"], both[f"{field}_arm"], strict=True)
        both = both[[_ids_of_later_turn(one) == _ids_of_later_turn(other) for one, other in prompt_ids]]
    if both.empty:
        return None
    parted = [divergence(*pair) for pair in zip(both["token_ids_base"], both["token_ids_arm"], strict=True)]
    places = [(position, index) for index, position in enumerate(parted) if position is not None]
    identity_record: TokenIdentity = {
        "sequences": len(both),
        "identical": 1.0 - len(places) / len(both),
        "first_divergence": None,
    }
    if places:
        position, index = min(places)
        row = both.iloc[index]
        identity_record["first_divergence"] = {
            "position": position,
            "example_id": str(row["example_id"]),
            "sample_index": int(row["sample_index"]),
        }
    return identity_record


def _ids_of_later_turn(prompt: Sequence[int] | None) -> list[int] | None:
    """None for a first turn, whose prompt all arms share."""
    return None if prompt is None else [*prompt]


def divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first position at which two sequences differ, an end included; None if they are equal."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


ALARM_LOG10_E = 3.0
"""Alarm when the e-value reaches 1000: a lossless sampler ever gets there with odds below 1 in 1000."""

ALARM_Z = 4.0
"""Alarm when accepted tokens leave their expectation by so many (conservative) standard errors."""

FEWEST_POSITIONS = 50
"""With fewer informative positions nothing is claimed."""

COARSE_TOLERANCE = 0.02
"""Share of impossible tokens that the rounding of a 16-bit target is given when text is re-scored."""

OK: Final = "ok"
ALARM: Final = "alarm"
NO_EVIDENCE: Final = "no evidence"
LOSSY: Final = "lossy by design"
REFUTED: Final = "refuted"


def losslessness(
    by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    dtype: str | None = None,
    proof: Proof | None = None,
) -> Losslessness | None:
    """Judge every arm that has evidence; None where no arm has any."""
    if not rows:
        return None
    proofs = {_way_of_drafting(arm): arm for arm in (proof or {}).get("arms", ())}
    arms = [
        _judge_arm(
            row, _greedy_reference(row, rows), by_arm, dtype or "float32", proofs.get(_way_of_drafting(row))
        )
        for row in rows
    ]
    judged = [arm for arm in arms if arm["method"] == "sps" and arm["verdict"] not in (LOSSY, REFUTED)]
    overall: Verdict = NO_EVIDENCE
    if any(arm["verdict"] == ALARM for arm in arms):
        overall = ALARM
    elif judged and all(arm["verdict"] == OK for arm in judged):
        overall = OK
    bounds = [arm["bound"] for arm in judged if arm["bound"] is not None]
    return {"verdict": overall, "bound": max(bounds, default=None), "arms": arms}


def _way_of_drafting(arm: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a proof is about, whatever the sampling."""
    return axes.place({"method": "sps", "sampling": None, **arm}, "sampling", "method")


def alpha_leviathan(ars: pd.DataFrame) -> float | None:
    """Return the mean over positions of ArS text of sum min(target, draft), by teacher forcing of both
    models.

    Leviathan et al. 2022, corollary 3.6. The only alpha that may feed a prediction: SpS text is
    tested more often where the draft is good.
    """
    interval = alpha_leviathan_interval(ars)
    return None if interval is None else finite(interval.estimate)


def alpha_leviathan_interval(ars: pd.DataFrame) -> Interval | None:
    """Return ``alpha_leviathan`` with its 95% interval over prompts; None where there is none."""
    _, prompts = evidence_stats.per_prompt(finished(ars), RESCORED)
    if "overlap_positions" not in prompts or not prompts["overlap_positions"].sum():
        return None
    sums = (prompts[name].to_numpy(np.float64) for name in ("overlap", "overlap_positions"))
    return pooled_ratio(*sums, most=1.0)


def is_precise(dtype: str) -> bool:
    """Return whether rounding of a dtype is so fine that one wrong token, or decision, proves a fault."""
    return dtype in ("float32", "float64")


def _greedy_reference(row: ArmRow, rows: Sequence[ArmRow]) -> str | None:
    """The ArS that tokens are compared with: our own if it was run, else the arm's baseline."""
    if row["method"] == "draft":
        return None
    ours = (other for other in rows if other["method"] == "ars" and other["engine"] == axes.EAGER)
    reference = next(
        (other["arm"] for other in ours if other["sampling"] == row["sampling"]), row["baseline"]
    )
    return None if reference == row["arm"] else reference


def _judge_arm(
    row: ArmRow, reference: str | None, by_arm: Mapping[str, pd.DataFrame], dtype: str, proof: ArmProof | None
) -> ArmLosslessness:
    """Judge one arm by all its evidence."""
    samples, baseline = by_arm.get(row["arm"]), by_arm.get(reference or "")
    judged: ArmLosslessness = {
        **axes.identity(row),
        "lossless": row.get("lossless", True),
        "acceptance_z": row["acceptance_z"],
        "identity": None,
        "verdict": REFUTED if row.get("refuted") else LOSSY,
        "reasons": [row["refuted"]] if row.get("refuted") else [],
        "bound": None,
        "self_consistency": None,
        "rescored": None,
        "decisions": None,
        "proof": proof if row["method"] == "sps" else None,
        "beams": None,
        "unread": 0 if samples is None else unread_of(samples),
    }
    if axes.is_beam(row):
        # It is held against exact beam search: nothing of what samples are judged by exists.
        nothing: BeamFacts = {"identity": None, "scores": None}
        beams = nothing if samples is None else beam_facts(baseline, samples, precise=is_precise(dtype))
        judged.update({"lossless": True, "acceptance_z": None, "proof": None, "beams": beams})
        judged["verdict"], reasons = _verdict_of_search(row, beams)
        judged["reasons"] = [*map(str, reasons)]
        return judged
    if samples is not None:
        self_evidence = evidence_of(samples, exact=True)
        independent = evidence_of(samples, RESCORED, exact=is_precise(dtype))
        greedy = row["sampling"] == "greedy" or bool(
            (known := self_evidence or independent) and known["greedy"]
        )
        judged["identity"] = identity(baseline, samples) if baseline is not None and greedy else None
        judged["bound"] = leakage_bound(independent)
        judged["self_consistency"], judged["rescored"] = self_evidence, independent
        judged["decisions"] = decisions_of(samples, dtype)
    if judged["lossless"]:
        judged["verdict"], reasons = _verdict(judged, above_optimum(row, judged["decisions"]))
        judged["reasons"] = [*map(str, reasons)]
    else:  # what a lossy rule's evidence measures stays, an alarm it is not
        for evidence in filter(None, (judged["self_consistency"], judged["rescored"])):
            evidence.update({"verdict": judged["verdict"], "reasons": []})
    return judged


def _verdict_of_search(row: ArmRow, facts: BeamFacts) -> Judged:
    """Verdict and reasons of a beam search."""
    same, scores = facts["identity"], facts["scores"]
    alarms: list[Reason] = []
    if same is not None and same["contradicted"]:
        alarms.append(reasons_of.SearchesDiffer(same["contradicted"], same["sequences"]))
    if scores is not None and scores["contradicted"]:
        alarms.append(reasons_of.LogProbabilitiesContradicted(scores["contradicted"], scores["sequences"]))
    if alarms:
        return ALARM, alarms
    if row["method"] == "sps" and same is None:
        return NO_EVIDENCE, [reasons_of.NO_EXACT_SEARCH]
    if same is None:
        verdict: Verdict = NO_EVIDENCE if scores is None else OK
        return verdict, [reasons_of.NOTHING_SAMPLED]
    return OK, [reasons_of.SearchesAgree(same)]


def leakage_bound(facts: Mapping[str, Any] | None) -> float | None:
    """Return what a verdict of ok rests on: the one-sided 95% bound of the leakage; None without one."""
    leakage = None if facts is None else facts["leakage"]
    return None if leakage is None else float(leakage["bound"])


def bounds(value: float | None) -> TypeGuard[float]:
    """Return whether an upper bound of a share is informative: rounded up to two digits it is below 100%."""
    return value is not None and value <= 0.99


def evidence_of(
    samples: pd.DataFrame, prefix: str = "", *, exact: bool = True, log_e: float | None = None
) -> Evidence | None:
    """Judge an arm by one kind of evidence; ``exact``: a token of probability 0 proves a fault."""
    done = finished(samples)
    carried, prompts = evidence_stats.per_prompt(done, prefix)
    unusable = evidence_stats.not_finite(done, prefix)
    if carried.empty and not unusable:
        return None
    total = prompts.sum()
    tokens = int(carried["new_tokens"].sum())
    positions = int(total.get("positions", 0.0))
    greedy = positions == 0 and tokens > 0
    log10 = evidence_stats.e_values(prompts) if len(prompts) else {"mean": 0.0}
    if log_e is not None:
        both = np.logaddexp(math.log(10) * log10["mean"], log_e) - math.log(2)
        log10 |= {"mean": float(both) / math.log(10), "bets": log_e / math.log(10)}
    facts: Evidence = {
        "sequences": len(carried),
        "share": len(carried) / len(done),
        "prompts": len(prompts),
        "tokens": tokens,
        "positions": positions,
        "drafted_positions": int(total.get("drafted_positions", 0.0)),
        "impossible": int(total.get("impossible", 0.0)),
        "edge": int(total.get("edge", 0.0)),
        "greedy": greedy,
        "leakage": None if greedy else evidence_stats.leakage(prompts, everywhere=exact),
        "log_score": evidence_stats.log_score(prompts) if len(prompts) else None,
        "transform": evidence_stats.transform(prompts) if len(prompts) else None,
        "log10_e_value": log10.pop("mean"),
        "log10_e_values": log10,
        "verdict": OK,
        "reasons": [],
    }
    verdict, reasons = _verdict_of_kind(facts, exact)
    if unusable:
        reasons = [*unusable, *(reasons if verdict == ALARM else [])]
        verdict = ALARM
    facts["verdict"] = verdict
    facts["reasons"] = [*map(str, reasons)]
    return facts


def unread_of(samples: pd.DataFrame) -> int:
    """Return how many finished sequences could not be read again."""
    if "losslessness" not in samples:
        return 0
    return sum(_fact(facts, UNREAD, 0.0) > 0 for facts in finished(samples)["losslessness"])


def decisions_of(samples: pd.DataFrame, dtype: str) -> Decisions | None:
    """Return the results of deriving the decisions of an arm's sequences again."""
    done = finished(samples)
    carried, sums = evidence_stats.decisions(done)
    unusable = evidence_stats.not_finite(done, None)
    if carried.empty and not unusable:
        return None
    names = ("", "_rounding", "_contradicted", "_recorded", "_open")
    total, rounding, contradicted, recorded, open_ = (
        int(sums.get(evidence_stats.DECIDED + name, 0.0)) for name in names
    )
    precise = is_precise(dtype)
    facts: Decisions = {
        "sequences": len(carried),
        "share": len(carried) / len(done),
        "decisions": total,
        "rounding": rounding,
        "contradicted": contradicted,
        "closest": sums.get(f"{evidence_stats.DECIDED}_closest", 1.0),
        "dtype": dtype,
        "exact": False,
        "recorded": recorded,
        "open": open_,
        "verdict": OK,
        "reasons": [],
    }
    target, draft = (rows_apart(sums, role) for role in ("target", "draft"))
    # Decisions derived from rows of 16 bits that the loop had not made itself: rounding turns a few.
    allowed = 0 if precise or target is not None else COARSE_TOLERANCE * total
    reasons: list[Reason] = [*unusable]
    if contradicted > allowed:
        reasons.append(reasons_of.DecisionsContradicted(contradicted, total))
    if target is not None:
        facts["target"] = target
        reasons += wrong_rows("target", target)
    if draft is not None:
        facts["draft"] = draft
        reasons += wrong_rows("draft", draft)
    facts["verdict"] = ALARM if reasons else OK
    facts["reasons"] = [*map(str, reasons)]
    known = precise if target is None else target["beyond"] is not None or target["rounding"] is not None
    whole = len(carried) == len(done) and not unread_of(samples)
    facts["exact"] = known and whole and total > 0 and not contradicted + open_ and not reasons
    return facts


def rows_apart(sums: Mapping[str, float], role: str) -> RowsApart | None:
    """Say how far an arm's rows of a model lie from an independent forward; None where none were compared.

    In 16 bits alone something was to be measured: see ``engines.rows_held``.
    """
    name = f"{evidence_stats.DECIDED}_rows_{role}"
    rows, measured = int(sums.get(name, 0)), int(sums.get(f"{name}_measured", 0))
    if not rows:
        return None
    blocks, chosen = sums.get(f"{name}_blocks"), sums.get(f"{name}_chosen", 0.0)
    apart = sums[f"{name}_apart"]
    experts, index = (
        sums[f"{name}_{kind}"] / chosen if chosen and f"{name}_{kind}" in sums else None
        for kind in ("experts", "index")
    )
    return {
        "rows": rows,
        "apart": apart / rows,
        "again": int(sums.get(f"{name}_again", 0)),
        "unexplained": (apart - sums.get(f"{name}_explained", 0.0)) / rows,
        "experts": experts,
        "index": index,
        "beyond": None if measured else int(sums[f"{name}_beyond"]),
        "measured": measured,
        "rounding": None if blocks is None or not measured else blocks / measured,
    }


def wrong_rows(role: str, distances: RowsApart) -> list[Message]:
    """Why rows are not a model's own, if they are not."""
    if distances["beyond"]:
        return [reasons_of.RowsContradicted(role, distances["beyond"], distances["rows"])]
    rounding = distances["rounding"]
    if rounding is not None and not distances["unexplained"] <= TOO_FAR * max(rounding, LEAST_ROUNDING):
        return [reasons_of.RowsFarOff(role, distances["unexplained"], rounding)]
    return []


def _verdict_of_kind(facts: Evidence, exact: bool) -> Judged:
    """Verdict and reasons of one kind of evidence."""
    reasons: list[Reason] = []
    if facts["impossible"] > (0 if exact else COARSE_TOLERANCE * facts["tokens"]):
        reasons.append(reasons_of.ImpossibleTokens(facts["impossible"], facts["tokens"]))
    if facts["log10_e_value"] >= ALARM_LOG10_E:
        reasons.append(reasons_of.LargeEValue(facts["log10_e_value"], ALARM_LOG10_E))
    if reasons:
        return ALARM, reasons
    if facts["greedy"]:
        return OK, [reasons_of.GREEDY]
    if facts["positions"] < FEWEST_POSITIONS:
        return NO_EVIDENCE, [reasons_of.FewPositions(facts["positions"])]
    return OK, []


def above_optimum(row: ArmRow, decided: Decisions | None) -> list[reasons_of.AboveOptimum]:
    """The reason to doubt an arm that accepts more than any lossless rule can, beyond chance.

    Where every decision was derived again there is nothing left to estimate: by chance one interval in forty
    lies above.
    """
    share = row.get("share_of_optimum")
    if decided is not None or share is None or share["low"] is None or share["low"] <= 1.0:
        return []
    return [reasons_of.AboveOptimum(share["ratio"], share["low"])]


def _verdict(arm: ArmLosslessness, beyond: Sequence[reasons_of.AboveOptimum] = ()) -> Judged:
    """Of an arm: an alarm from any evidence counts, but only independent rows can clear it."""
    self_evidence = arm["self_consistency"]
    independent = arm["rescored"]
    decided = arm["decisions"]
    z = arm["acceptance_z"]
    proof: Mapping[str, Any] = arm["proof"] or {}
    kinds: dict[str, Judgement | None] = {
        "self-consistency": self_evidence,
        "independent re-score": independent,
        "decisions derived again": decided,
        "at temperature 1": proof.get("rescored"),
        "decisions at temperature 1": proof.get("decisions"),
    }
    alarms: list[Reason] = [
        OfArm(name, reason)
        for name, kind in kinds.items()
        if kind is not None and kind["verdict"] == ALARM
        for reason in kind["reasons"]
    ]
    alarms += beyond
    if z is not None and abs(z) > ALARM_Z:
        alarms.append(reasons_of.AlphasDiffer(z))
    if alarms:
        return ALARM, alarms
    if decided is not None and decided["exact"]:
        reasons = [] if independent is None else independent["reasons"]
        return OK, [*reasons, reasons_of.DecisionsFollow("target" in decided)]
    if independent is not None:
        return independent["verdict"], independent["reasons"]
    if self_evidence is None:
        return NO_EVIDENCE, [reasons_of.NOTHING_RECORDED]
    return NO_EVIDENCE, [*([reasons_of.GREEDY] if self_evidence["greedy"] else []), reasons_of.NOT_RESCORED]


def beam_facts(baseline: pd.DataFrame | None, arm: pd.DataFrame, *, precise: bool) -> BeamFacts:
    """Compare a beam search's hypotheses with the baseline's, and scores with an independent forward's."""
    return {
        "identity": None if baseline is None else _beam_identity(baseline, arm, precise=precise),
        "scores": _beam_scores(arm, precise=precise),
    }


def slack(tokens: int, *, precise: bool) -> float:
    """Return how far rounding may move the log-probability of so many tokens, in nats.

    Independent errors of each token. In 16 bit that is 0.39 nats at 60 tokens, wider than the closest choice
    of any search in results/reference/beams.md: little can be contradicted. In float32 the embedded pair's
    errors on a CPU are smaller by a factor of 100.
    """
    return (2e-4 if precise else 5e-2) * math.sqrt(1 + tokens)


def _beam_identity(baseline: pd.DataFrame, arm: pd.DataFrame, *, precise: bool) -> BeamIdentity | None:
    """Compare the hypotheses of two beam searches, sequence by sequence."""
    key = matched_by(baseline, arm)
    columns = [*key, "new_tokens", "hypotheses", "losslessness"]
    ars_table, arm_table = (finished(frame)[columns] for frame in (baseline, arm))
    both = ars_table.merge(arm_table, on=key, suffixes=("_base", "_arm"))
    if both.empty:
        return None
    # What rounding may explain between two searches of one prompt, in nats.
    tokens = both[["new_tokens_base", "new_tokens_arm"]].max(axis=1)
    granted = [slack(int(most), precise=precise) for most in tokens]
    verdicts = [
        _are_same_results(row, nats) for row, nats in zip(both.to_dict("records"), granted, strict=True)
    ]
    return {
        "sequences": len(both),
        "identical": sum(same is True for same in verdicts),
        "rounding": sum(same is None for same in verdicts),
        "contradicted": sum(same is False for same in verdicts),
        "allowance": max(granted),
        "precise": precise,
    }


def _are_same_results(both: Mapping[Any, Any], granted: float) -> bool | None:
    """In the same order; None if not, and rounding explains it."""
    sides = ("_base", "_arm")
    first, again = (_hypotheses(both[f"hypotheses{side}"]) for side in sides)
    if first.keys() != again.keys():
        # Of NaN nothing can be said, so that it explains nothing.
        gaps = [_fact(both[f"losslessness{side}"], BEAM_CLOSEST, math.inf) for side in sides]
        return None if any(gap <= granted for gap in gaps) else False
    apart = [abs(first[tokens]["log_prob"] - again[tokens]["log_prob"]) for tokens in first]
    place = {tokens: index for index, tokens in enumerate(again)}
    # How far apart those are whose order the other search has reversed.
    swapped = [
        _score_gap_nats(first[better], first[worse])
        for better, worse in combinations(first, 2)
        if place[better] > place[worse]
    ]
    if max([*apart, *swapped], default=0.0) > granted:
        return False
    return None if swapped else True


def _hypotheses(text: Any) -> dict[tuple[int, ...], dict[str, Any]]:
    """By their tokens, best first; see ``Hypothesis``."""
    rows = json.loads(text) if isinstance(text, str) else []
    return {tuple(row["tokens"]): row for row in rows}


def _score_gap_nats(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Times the smaller of their length divisors."""
    divisors = [
        hypothesis["log_prob"] / hypothesis["score"] if hypothesis["score"] else 1.0
        for hypothesis in (one, other)
    ]
    return float(abs(one["score"] - other["score"]) * min(divisors))


def _fact(facts: Any, name: str, default: float) -> float:
    value = facts.get(name) if isinstance(facts, Mapping) else None
    return default if value is None else float(value)


def _beam_scores(arm: pd.DataFrame, *, precise: bool) -> BeamScores | None:
    """Compare a beam search's scores with an independent forward's; one that is NaN contradicts it."""
    done = finished(arm)
    both = {BEAM_LOG_PROB, RESCORED_BEAM_LOG_PROB}
    known = [
        (int(tokens), abs(facts[BEAM_LOG_PROB] - facts[RESCORED_BEAM_LOG_PROB]))
        for tokens, facts in zip(done["new_tokens"], done["losslessness"], strict=True)
        if isinstance(facts, Mapping) and both <= facts.keys()
    ]
    if not known:
        return None
    return {
        "sequences": len(known),
        "largest_difference": max((apart for _, apart in known if math.isfinite(apart)), default=0.0),
        "contradicted": sum(not apart <= slack(tokens, precise=precise) for tokens, apart in known),
    }
