"""Whether each arm kept the target's distribution: evidence, decisions derived again, greedy identity.

Two correct greedy computations may part at a numeric tie, since kernels differ by the number of
rows. Parting is therefore a number here and no verdict; ``spsbench verify`` measures the gap of the
two best logits and separates a tie from a bug.

Two kinds of evidence, never mixed. *Self-consistency* comes from the very rows that verification
used: it covers every sequence, and is blind to a wrong row, a stale cache or a wrong position.
*Losslessness* comes from one uncached forward over the finished text of some sequences: only that
is independent of the loops, and only that earns the word.

Where the loops are our own there is more than evidence: *decisions*. Every draft pick, acceptance test
and draw of a sequence is derived again from the independent rows and the recorded seed. Then nothing is
estimated: the output is what Algorithm 2 makes of the models' rows, or it is not.

ArS arms, and the draft alone under its own rows, are judged like the others: they are the controls
that must come out clean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spsbench import axes
from spsbench.records import RESCORED, Interval
from spsbench.stats import evidence_stats
from spsbench.stats.beams import beam_facts
from spsbench.stats.bootstrap import Floats, pooled_ratio, ratio
from spsbench.stats.speedup import finished
from spsbench.summary_types import (
    ArmLosslessness,
    ArmProof,
    ArmRow,
    BeamFacts,
    Decisions,
    Divergence,
    Evidence,
    EvidenceFacts,
    Judgement,
    Losslessness,
    Proof,
    TokenIdentity,
    Verdict,
)

if TYPE_CHECKING:
    import pandas as pd


_KEY = ["example_id", "sample_index"]


def identity(baseline: pd.DataFrame, arm: pd.DataFrame) -> TokenIdentity | None:
    """Compare the tokens of two arms sequence by sequence."""
    if "token_ids" not in baseline or "token_ids" not in arm:
        return None
    columns = [*_KEY, "token_ids"]
    both = finished(baseline)[columns].merge(finished(arm)[columns], on=_KEY, suffixes=("_base", "_arm"))
    if both.empty:
        return None
    parted = [divergence(*pair) for pair in zip(both["token_ids_base"], both["token_ids_arm"], strict=True)]
    places = [(position, index) for index, position in enumerate(parted) if position is not None]
    return {
        "sequences": len(both),
        "identical": 1.0 - len(places) / len(both),
        "first_divergence": _first(both, places),
    }


def divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two sequences differ, an end included; None if they are the same."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _first(both: pd.DataFrame, places: list[tuple[int, int]]) -> Divergence | None:
    if not places:
        return None
    position, index = min(places)
    row = both.iloc[index]
    return {
        "position": position,
        "example_id": str(row["example_id"]),
        "sample_index": int(row["sample_index"]),
    }


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
GREEDY = "greedy: token identity is checked by `spsbench verify`"


def losslessness(
    by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    dtype: str | None = None,
    proof: Proof | None = None,
) -> Losslessness | None:
    """Judge every arm of a run."""
    if not rows:
        return None
    proofs = {_drafting(arm): arm for arm in (proof or {}).get("arms", ())}
    arms = [
        _judge_arm(row, _greedy_reference(row, rows), by_arm, dtype or "float32", proofs.get(_drafting(row)))
        for row in rows
    ]
    judged = [arm for arm in arms if arm["method"] == "sps" and arm["verdict"] != LOSSY]
    overall: Verdict = NO_EVIDENCE
    if any(arm["verdict"] == ALARM for arm in arms):
        overall = ALARM
    elif judged and all(arm["verdict"] == OK for arm in judged):
        overall = OK
    bounds = [arm["bound"] for arm in judged if arm["bound"] is not None]
    return {"verdict": overall, "bound": max(bounds, default=None), "arms": arms}


def _drafting(arm: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a proof is of: an engine's way of drafting, whatever the sampling."""
    return axes.place({"method": "sps", "sampling": None, **arm}, "sampling", "method")


def alpha_leviathan(ars: pd.DataFrame) -> float | None:
    """Mean over positions of ArS text of sum min(target, draft), by teacher forcing of both models.

    Leviathan et al. 2022, corollary 3.6. The only alpha that may feed a prediction: SpS text is
    tested more often where the draft is good.
    """
    found = _overlaps(ars)
    return None if found is None else ratio(float(found[0].sum()), float(found[1].sum()))


def alpha_leviathan_interval(ars: pd.DataFrame) -> Interval | None:
    """``alpha_leviathan`` with its 95% interval over prompts; None where there is none."""
    found = _overlaps(ars)
    return None if found is None or not found[1].sum() else pooled_ratio(*found, most=1.0)


def _overlaps(ars: pd.DataFrame) -> tuple[Floats, Floats] | None:
    """[prompts] sums of min(target, draft), and the positions that they are over."""
    _, prompts = evidence_stats.per_prompt(finished(ars), RESCORED)
    if "overlap_positions" not in prompts:
        return None
    return prompts["overlap"].to_numpy(np.float64), prompts["overlap_positions"].to_numpy(np.float64)


def is_precise(dtype: str) -> bool:
    """Whether rounding of a dtype is so fine that one wrong token, or decision, proves a fault."""
    return dtype in ("float32", "float64")


def _greedy_reference(row: ArmRow, rows: Sequence[ArmRow]) -> str | None:
    """The ArS that greedy tokens are held against: our own where it was run, else the arm's baseline."""
    if row["method"] == "draft":
        return None
    ours = (other for other in rows if other["method"] == "ars" and other["engine"] == axes.EAGER)
    found = next((other["arm"] for other in ours if other["sampling"] == row["sampling"]), row["baseline"])
    return None if found == row["arm"] else found


def _judge_arm(
    row: ArmRow, reference: str | None, by_arm: Mapping[str, pd.DataFrame], dtype: str, proof: ArmProof | None
) -> ArmLosslessness:
    if axes.is_beam(row):
        return _judge_search(row, reference, by_arm, dtype)
    samples = by_arm.get(row["arm"])
    own = independent = same = decided = None
    proof = proof if row["method"] == "sps" else None
    if samples is not None:
        own = evidence_of(samples, exact=True)
        independent = evidence_of(samples, RESCORED, exact=is_precise(dtype))
        decided = decisions_of(samples, dtype)
        if reference is not None and reference in by_arm and _is_greedy(row, own or independent):
            same = identity(by_arm[reference], samples)
    lossless = row.get("lossless", True)
    if lossless:
        judgement = _verdict(own, independent, decided, row["acceptance_z"], proof)
    else:
        own, independent = (_expected(kind) for kind in (own, independent))
        judgement = {"verdict": LOSSY, "reasons": []}
    return {
        **axes.identity(row),
        "lossless": lossless,
        "acceptance_z": row["acceptance_z"],
        "identity": same,
        **judgement,
        "bound": leakage_bound(independent),
        "self_consistency": own,
        "rescored": independent,
        "decisions": decided,
        "proof": proof,
        "beams": None,
    }


def _judge_search(
    row: ArmRow, reference: str | None, by_arm: Mapping[str, pd.DataFrame], dtype: str
) -> ArmLosslessness:
    """A beam search is held against exact beam search: nothing of what samples are judged by exists."""
    samples = by_arm.get(row["arm"])
    nothing: BeamFacts = {"identity": None, "scores": None}
    baseline = None if reference is None else by_arm.get(reference)
    found = nothing if samples is None else beam_facts(baseline, samples, precise=is_precise(dtype))
    return {
        **axes.identity(row),
        "lossless": True,
        "acceptance_z": None,
        "identity": None,
        **_verdict_of_search(row, found),
        "bound": None,
        "self_consistency": None,
        "rescored": None,
        "decisions": None,
        "proof": None,
        "beams": found,
    }


def _verdict_of_search(row: ArmRow, found: BeamFacts) -> Judgement:
    same, scores = found["identity"], found["scores"]
    alarms = []
    if same is not None and same["contradicted"]:
        alarms.append(
            f"{same['contradicted']} of {same['sequences']} searches found other hypotheses or scores"
        )
    if scores is not None and scores["contradicted"]:
        alarms.append(
            f"{scores['contradicted']} of {scores['sequences']} log-probabilities contradict the target"
        )
    if alarms:
        return {"verdict": ALARM, "reasons": alarms}
    if row["method"] == "sps" and same is None:
        return {"verdict": NO_EVIDENCE, "reasons": ["no exact beam search beside it: --arms ars,sps"]}
    if same is None:
        verdict: Verdict = NO_EVIDENCE if scores is None else OK
        return {"verdict": verdict, "reasons": ["beam search samples nothing"]}
    beside = f", {same['rounding']} more within rounding" if same["rounding"] else ""
    beside += "" if same["precise"] else f"; weak evidence, {same['allowance']:.2g} nats count as rounding"
    told = f"hypotheses and scores of exact beam search in {same['identical']} of {same['sequences']}{beside}"
    return {"verdict": OK, "reasons": [told]}


def _expected(kind: Evidence | None) -> Evidence | None:
    """Evidence of a rule that is lossy by design: what it measures stays, an alarm it is not."""
    return None if kind is None else {**kind, "verdict": LOSSY, "reasons": []}


def leakage_bound(facts: Mapping[str, Any] | None) -> float | None:
    """What a verdict of ok rests on: the one-sided 95% bound of the leakage; None without one."""
    leakage = None if facts is None else facts["leakage"]
    return None if leakage is None else float(leakage["bound"])


def _is_greedy(row: ArmRow, own: Evidence | None) -> bool:
    return row["sampling"] == "greedy" or (own is not None and own["greedy"])


def evidence_of(
    samples: pd.DataFrame, prefix: str = "", *, exact: bool = True, log_e: float | None = None
) -> Evidence | None:
    """What one kind of evidence says about an arm.

    Args:
        exact: whether the rows are so precise that a token of probability 0 proves a fault.
    """
    done = finished(samples)
    carried, prompts = evidence_stats.per_prompt(done, prefix)
    if carried.empty:
        return None
    total = prompts.sum()
    tokens, positions = int(carried["new_tokens"].sum()), int(total.get("positions", 0.0))
    greedy = positions == 0 and tokens > 0
    log10 = evidence_stats.e_values(prompts)
    if log_e is not None:
        both = np.logaddexp(math.log(10) * log10["mean"], log_e) - math.log(2)
        log10 |= {"mean": float(both) / math.log(10), "bets": log_e / math.log(10)}
    facts: EvidenceFacts = {
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
        "log_score": evidence_stats.log_score(prompts),
        "transform": evidence_stats.transform(prompts),
        "log10_e_value": log10.pop("mean"),
        "log10_e_values": log10,
    }
    return {**facts, **_verdict_of_kind(facts, exact)}


def decisions_of(samples: pd.DataFrame, dtype: str) -> Decisions | None:
    """Results of deriving the decisions of an arm's sequences again."""
    done = finished(samples)
    carried, told = evidence_stats.decisions(done)
    if carried.empty:
        return None
    names = ("", "_rounding", "_contradicted", "_recorded", "_open")
    total, rounding, contradicted, recorded, open_ = (
        int(told.get(evidence_stats.DECIDED + name, 0.0)) for name in names
    )
    precise = is_precise(dtype)
    alarm = contradicted > (0 if precise else COARSE_TOLERANCE * total)
    return {
        "sequences": len(carried),
        "share": len(carried) / len(done),
        "decisions": total,
        "rounding": rounding,
        "contradicted": contradicted,
        "closest": told[f"{evidence_stats.DECIDED}_closest"],
        "dtype": dtype,
        "exact": precise and total > 0 and not contradicted + open_ and len(carried) == len(done),
        "recorded": recorded,
        "open": open_,
        "verdict": ALARM if alarm else OK,
        "reasons": [f"{contradicted} of {total} decisions contradict the models' rows"] if alarm else [],
    }


def _verdict_of_kind(facts: EvidenceFacts, exact: bool) -> Judgement:
    reasons = []
    if facts["impossible"] > (0 if exact else COARSE_TOLERANCE * facts["tokens"]):
        reasons.append(
            f"{facts['impossible']} of {facts['tokens']} tokens have probability 0 under the target"
        )
    if facts["log10_e_value"] >= ALARM_LOG10_E:
        reasons.append(f"e-value 10^{facts['log10_e_value']:.1f}, alarm at 10^{ALARM_LOG10_E:.0f}")
    if reasons:
        return {"verdict": ALARM, "reasons": reasons}
    if facts["greedy"]:
        return {"verdict": OK, "reasons": [GREEDY]}
    if facts["positions"] < FEWEST_POSITIONS:
        return {
            "verdict": NO_EVIDENCE,
            "reasons": [f"only {facts['positions']} positions had more than one possible token"],
        }
    return {"verdict": OK, "reasons": []}


def _verdict(
    own: Evidence | None,
    independent: Evidence | None,
    decided: Decisions | None,
    z: float | None,
    proof: ArmProof | None,
) -> Judgement:
    """An arm's verdict: an alarm from anywhere counts, but only independent rows can clear it."""
    kinds: dict[str, Judgement | None] = {
        "self-consistency": own,
        "independent re-score": independent,
        "decisions derived again": decided,
        "at temperature 1": None if proof is None else proof.get("rescored"),
        "decisions at temperature 1": None if proof is None else proof.get("decisions"),
    }
    alarms = [
        f"{name}: {reason}"
        for name, kind in kinds.items()
        if kind is not None and kind["verdict"] == ALARM
        for reason in kind["reasons"]
    ]
    if z is not None and abs(z) > ALARM_Z:
        alarms.append(f"alpha_tested and alpha_beta differ by {abs(z):.1f} standard errors")
    if alarms:
        return {"verdict": ALARM, "reasons": alarms}
    if decided is not None and decided["exact"]:
        reasons = [] if independent is None else independent["reasons"]
        return {"verdict": OK, "reasons": [*reasons, "every decision follows from the target's own rows"]}
    if independent is not None:
        return {"verdict": independent["verdict"], "reasons": independent["reasons"]}
    if own is None:
        return {"verdict": NO_EVIDENCE, "reasons": ["no evidence was recorded"]}
    reasons = [GREEDY] if own["greedy"] else []
    return {"verdict": NO_EVIDENCE, "reasons": [*reasons, "no sequence was re-scored independently"]}
