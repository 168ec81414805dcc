"""``summary.json``: everything that a run's tables say, in one object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from spsbench.axes import EAGER, ArmIdentity, identity, is_beam, label, own_ars, unusual
from spsbench.metrics.kind import MetricKind
from spsbench.peers.matched import Ran, unequal
from spsbench.predict.costs import hindsight, prediction, replayed
from spsbench.predict.factors import why
from spsbench.predict.roofline import ceiling
from spsbench.predict.verdict import verdicts
from spsbench.records import SCHEMA_VERSION, Speedup
from spsbench.stats import workers
from spsbench.stats.acceptance import acceptance, disagreement
from spsbench.stats.bootstrap import finite, plain, ratio
from spsbench.stats.categories import by_category
from spsbench.stats.conditions import contention, distrust, separated, slow_sequences, warnings
from spsbench.stats.corpus import CorpusMetric, corpus_metrics, intervals, without_figure
from spsbench.stats.energy import energy
from spsbench.stats.latency import positions, tails
from spsbench.stats.losslessness import alpha_leviathan, losslessness
from spsbench.stats.parity import metrics, parity
from spsbench.stats.processes import paired_speedup
from spsbench.stats.speedup import (
    PairedTimes,
    by_prompt,
    drifted,
    finished,
    halves,
    in_both,
    loops_of,
    pair,
    share_slower,
)
from spsbench.stats.surface import surfaces
from spsbench.summary_types import (
    Acceptance,
    ArmRow,
    Diagnostics,
    EngineOfArm,
    Engines,
    Labels,
    OwnComparison,
    Prediction,
    RatioInterval,
    RowComparison,
    RowCounts,
    RowDetails,
    RowLoops,
    RowMetrics,
    RowWaves,
    Summary,
    Surfaces,
)

if TYPE_CHECKING:
    import pandas as pd


_KEY = ["example_id", "sample_index", "arm"]


def token_hash(samples: pd.DataFrame) -> str | None:
    """SHA-256 over the ids of all finished sequences, whatever their order in the journal."""
    done = finished(samples)
    if done.empty or "token_ids" not in done:
        return None
    parts = [part for _, part in done.groupby("process")] if "process" in done else [done]
    hashes = {_hash(part) for part in parts}
    return hashes.pop() if len(hashes) == 1 else None


def _hash(done: pd.DataFrame) -> str:
    digest = hashlib.sha256()
    columns = done.sort_values(_KEY)[[*_KEY, "token_ids"]].astype({"sample_index": int})
    for line in columns.to_numpy(dtype=object).tolist():
        digest.update(json.dumps(line, default=int).encode() + b"\n")
    return digest.hexdigest()


def diagnostics(
    by_arm: Mapping[str, pd.DataFrame],
    loops_by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    info: Mapping[str, Any],
    evidence: pd.DataFrame | None = None,
    *,
    anytime: bool = False,
    alarmed: Collection[str] = (),
) -> Diagnostics:
    """The parts of ``summary.json`` that explain its rows; each null where it has nothing to say.

    Each row also gets its own ``prediction``, ``{"leviathan": ..., "chen": ...}``, null for arms that
    predict nothing.
    """
    # A loop of a beam search counts steps of the search: no model of tokens per loop is about them.
    sampled = [row for row in rows if not is_beam(row)]
    arms = {row["arm"] for row in sampled} & by_arm.keys()
    loops = {
        arm: loops_of(part, finished(by_arm[arm]), len(by_arm[arm]))
        for arm, part in loops_by_arm.items()
        if arm in arms
    }
    found: Diagnostics = {
        "prediction": prediction(sampled, info, {} if evidence is None else replayed(evidence, sampled)),
        "why": (explained := why(by_arm, loops_by_arm, sampled)),
        "ceiling": ceiling(by_arm, sampled, info),
        "tails": tails(by_arm, loops, rows),
        "positions": positions(loops, rows),
        "hindsight": hindsight(by_arm, loops, rows),
        "verdict": verdicts(by_arm, rows, explained, anytime=anytime, alarmed=alarmed),
    }
    found = plain(found)
    _annotate(rows, found["prediction"])
    return found


def _annotate(rows: Sequence[ArmRow], predicted: Prediction | None) -> None:
    arms = {} if predicted is None else {arm["arm"]: arm for arm in predicted["arms"]}
    for row in rows:
        arm = arms.get(row["arm"])
        row["prediction"] = None if arm is None else {"leviathan": arm["predicted"], "chen": arm["chen"]}


PHASES = ("draft", "verify", "sample", "other", "loop")
COMM = "comm"
"""A phase more, of a target that is split over processes."""

_METHOD_ORDER = {"ars": 0, "sps": 1, "draft": 2}


def summarise(
    samples: pd.DataFrame,
    loops: pd.DataFrame,
    info: Mapping[str, Any],
    evidence: pd.DataFrame | None = None,
    kinds: Sequence[MetricKind] = (),
) -> Summary:
    """The content of summary.json, from the tables of a run.

    Args:
        info: what the tables do not hold, all optional. ``arms``: a list of dicts with ``arm``,
            ``method``, ``k``, ``engine``, ``sampling``, so that an arm without a sample has its
            row; ``models`` with ``target`` and its ``dtype``; ``task``, ``task_label``,
            ``synthetic``, ``pair``, ``data``, ``headline_metric``, ``metrics``, ``corpus_figures``; and, for
            all arms or as a dict by arm, ``expected_sequences``, ``verification_rule``,
            ``peak_memory_bytes``,
            ``target_mode``, ``draft_mode``.
        evidence: one row per token that was read again, the columns of ``evidence.parquet``; without it
            nothing is replayed.
    """
    return separated(samples, loops, info, partial(_summarise, evidence=evidence, kinds=kinds))


def _summarise(
    samples: pd.DataFrame,
    loops: pd.DataFrame,
    info: Mapping[str, Any],
    evidence: pd.DataFrame | None,
    kinds: Sequence[MetricKind],
) -> Summary:
    """The same for sequences of one and the same conditions."""
    by_arm = {str(arm): part for arm, part in samples.groupby("arm", sort=False)}
    loops_of = {str(arm): part for arm, part in loops.groupby("arm", sort=False)} if len(loops) else {}
    arms, anytime = _arms(info), bool((info.get("stopping") or {}).get("anytime"))
    corpora = corpus_metrics(info, kinds)
    rows: list[ArmRow] = []
    for arm in arms:
        own = by_arm.get(arm["arm"], samples.iloc[:0])
        seen = _loops_of_finished(loops_of.get(arm["arm"], loops.iloc[:0]), own)
        compared = _compared(own, _baseline(arm, arms, by_arm), by_arm, anytime=anytime)
        rows.append(
            {
                **arm,
                **_counts(own, arm, info),
                **_metrics_of(own, arm, corpora),
                **compared,
                **_own_compared(own, own_ars(arm, arms), compared, by_arm, anytime=anytime),
                **_from_loops(seen, arm),
                **_details(arm, info),
                "prediction": None,
            }
        )
    _add_alpha_leviathan(rows, by_arm)
    taken = contention(samples, info)
    rows = plain(rows if taken["trusted"] else _without_intervals(rows))
    dtype = ((info.get("models") or {}).get("target") or {}).get("dtype")
    computed_in = None if dtype is None else str(dtype)
    judged = plain(losslessness(by_arm, rows, computed_in, info.get("proof")))
    quality = plain(parity(by_arm, rows, info.get("headline_metric"), info.get("metrics"), corpora))
    labels = _labels(info)
    if (joules := energy(by_arm, rows, info, trusted=taken["trusted"], anytime=anytime)) is not None:
        labels["energy"] = plain(joules)
    return {
        "schema_version": SCHEMA_VERSION,
        **labels,
        "rows": rows,
        "by_category": plain(
            by_category(by_arm, loops_of, rows, corpora=corpora, trusted=taken["trusted"], anytime=anytime)
        ),
        "parity": quality,
        "losslessness": judged,
        **_explained(
            *(by_arm, loops_of, rows, info, evidence),
            trusted=taken["trusted"],
            anytime=anytime,
            alarmed={arm["arm"] for arm in judged["arms"] if arm["verdict"] == "alarm"} if judged else set(),
        ),
        "contention": plain(taken),
        **_surfaces(by_arm, rows, trusted=taken["trusted"]),
        "token_sha256": token_hash(samples),
        "complete": not any(row["failed"] or row["missing"] for row in rows),
        "warnings": [
            *distrust(taken["reasons"]),
            *_fallbacks(info),
            *_slow_dtype(info),
            *_left_out(info),
            *workers.sentences(info),
            *_cut(info),
            *_tokens_differ(samples),
            *without_figure(finished(samples), corpora),
            *warnings(rows, judged, quality, anytime=anytime),
            *slow_sequences(by_arm, rows),
        ],
        "conditions": [],
    }


def _surfaces(by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow], *, trusted: bool) -> Surfaces:
    found = plain(surfaces(by_arm, rows, trusted=trusted))
    return {"surfaces": found} if found else {}


def _metrics_of(own: pd.DataFrame, arm: ArmIdentity, corpora: Mapping[str, CorpusMetric]) -> RowMetrics:
    done = finished(own)
    found: RowMetrics = {"metrics": metrics(done, corpora, arm["arm"])}
    return found | {"metric_intervals": intervals(done, corpora, arm["arm"])} if corpora else found


def _fallbacks(info: Mapping[str, Any]) -> list[str]:
    reasons = (info.get("engine_fallbacks") or {}).items()
    return [f"{arm} ran with the engine eager: {reason}." for arm, reason in reasons]


def _cut(info: Mapping[str, Any]) -> list[str]:
    count = info.get("truncated_prompts") or 0
    several = "prompts have documents that were" if count > 1 else "prompt has a document that was"
    return [f"{count} {several} cut to fit into the models' window."] if count else []


def _left_out(info: Mapping[str, Any]) -> list[str]:
    reasons = (info.get("engines_left_out") or {}).items()
    return [f"{arm} was left out, its engine could not be started: {reason}." for arm, reason in reasons]


def _slow_dtype(info: Mapping[str, Any]) -> list[str]:
    """That the baseline may be slow on a CPU: few compute fast in the checkpoint's 16 bit."""
    target = (info.get("models") or {}).get("target") or {}
    identity = info.get("identity") or {}
    on_cpu, left_to_it = identity.get("device") == "cpu", identity.get("dtype") == "auto"
    if not (on_cpu and left_to_it and target.get("backend") == "torch"):
        return []
    if target.get("dtype") not in ("bfloat16", "float16"):
        return []
    return [
        f"The models compute in {target['dtype']}, the checkpoint's dtype, over torch. On many CPUs --dtype "
        "float32, over ONNX Runtime, is several times faster: measure it too before you judge the baseline."
    ]


def _without_intervals(rows: list[ArmRow]) -> list[ArmRow]:
    """Other processes used the CPU in bursts, which an interval over prompts does not cover."""
    return [
        {
            **row,
            "speedup": _bare(row["speedup"]),
            "end_to_end_speedup": _bare(row["end_to_end_speedup"]),
            "own_speedup": _bare(row["own_speedup"]),
            "drifted": False,
        }
        for row in rows
    ]


def _bare(found: RatioInterval | None) -> RatioInterval | None:
    return None if found is None else {"ratio": found["ratio"], "low": None, "high": None}


def _explained(
    by_arm: Mapping[str, pd.DataFrame],
    loops_of: Mapping[str, pd.DataFrame],
    rows: list[ArmRow],
    info: Mapping[str, Any],
    evidence: pd.DataFrame | None,
    *,
    trusted: bool,
    anytime: bool,
    alarmed: Collection[str],
) -> Diagnostics:
    """``diagnostics``; times that are not to be trusted explain nothing and give no verdict."""
    found = diagnostics(by_arm, loops_of, rows, info, evidence, anytime=anytime, alarmed=alarmed)
    return found if trusted else {**found, "verdict": None, "why": None}


def _tokens_differ(samples: pd.DataFrame) -> list[str]:
    if "process" not in samples or finished(samples).empty or token_hash(samples) is not None:
        return []
    return ["The processes wrote different tokens from the same seeds. `spsbench compare` shows where."]


def _arms(info: Mapping[str, Any]) -> list[ArmIdentity]:
    """Identity of every arm, by sampling, ArS first, then by K."""
    arms = [identity(entry) for entry in info.get("arms") or []]
    for arm in arms:
        if arm["arm"] in (info.get("engine_fallbacks") or {}):
            arm["engine"] = EAGER
    samplings = list(dict.fromkeys(arm["sampling"] for arm in arms))
    drafters = list(dict.fromkeys(value for arm in arms for value in _drafting(arm)))
    return sorted(
        arms,
        key=lambda arm: (
            samplings.index(arm["sampling"]),
            _METHOD_ORDER.get(arm["method"], 3),
            *(drafters.index(value) for value in _drafting(arm)),
            arm["batch"],
            arm["k"],
        ),
    )


def _drafting(arm: ArmIdentity) -> tuple[str | None, ...]:
    return arm["drafter"], arm["rule"], arm["policy"]


def _counts(own: pd.DataFrame, arm: ArmIdentity, info: Mapping[str, Any]) -> RowCounts:
    done = finished(own)
    tokens, decode_s = int(done["new_tokens"].sum()), float(done["decode_s"].sum())
    per_token = ratio(decode_s, tokens)
    whole = ratio(decode_s + float(done["prefill_s"].sum()), tokens)
    expected = _for_arm(info, "expected_sequences", arm["arm"])
    return {
        "sequences": len(done),
        "prompts": int(done["example_id"].nunique()),
        "processes": int(done["process"].nunique()) if "process" in done else 1,
        "tokens": tokens,
        "failed": len(own) - len(done),
        "missing": max(0, int(expected) - len(own)) if expected is not None else 0,
        "ms_per_token": None if per_token is None else 1e3 * per_token,
        "end_to_end_ms_per_token": None if whole is None else 1e3 * whole,
    }


def _baseline(arm: ArmIdentity, arms: list[ArmIdentity], by_arm: Mapping[str, pd.DataFrame]) -> str | None:
    """The fastest ArS arm of the same sampling and batch; None for itself and where there is none."""
    speeds = {}
    for other in arms:
        alike = all(other[name] == arm[name] for name in ("sampling", "batch"))
        if other["method"] == "ars" and alike and other["arm"] in by_arm:
            done = finished(by_arm[other["arm"]])
            per_token = ratio(float(done["decode_s"].sum()), float(done["new_tokens"].sum()))
            if per_token is not None:
                speeds[other["arm"]] = per_token
    fastest = min(speeds, key=speeds.__getitem__, default=None)
    return None if fastest == arm["arm"] else fastest


def _compared(
    own: pd.DataFrame, baseline: str | None, by_arm: Mapping[str, pd.DataFrame], *, anytime: bool
) -> RowComparison:
    """Everything that needs a baseline; null for the baseline itself."""
    if baseline is None:
        return {
            "baseline": None,
            "speedup": None,
            "end_to_end_speedup": None,
            "speedup_halves": None,
            "share_slower": None,
            "paired_prompts": None,
            "drifted": False,
        }
    times = pair(by_arm[baseline], own)
    sides = by_arm[baseline], own
    decode, whole = (paired_speedup(*sides, prefill=prefill, anytime=anytime) for prefill in (False, True))
    # A half is held against the ordinary interval: that is what a half leaves in one case of twenty.
    fixed = paired_speedup(*sides) if anytime else decode
    return {
        "baseline": baseline,
        "speedup": _interval(decode),
        "end_to_end_speedup": _interval(whole),
        "speedup_halves": [*halves(times)],
        "share_slower": share_slower(by_prompt(*sides)),
        "paired_prompts": int(in_both(*sides)[1]["example_id"].nunique()),
        **_waves(own, times),
        "drifted": fixed is not None and drifted(times, fixed),
    }


def _waves(own: pd.DataFrame, times: PairedTimes) -> RowWaves:
    return {"paired_waves": len(times)} if "wave" in own and own["wave"].notna().any() else {}


def _own_compared(
    own: pd.DataFrame,
    baseline: ArmIdentity | None,
    compared: RowComparison,
    by_arm: Mapping[str, pd.DataFrame],
    *,
    anytime: bool,
) -> OwnComparison:
    """The speedup over the ArS of the arm's own engine; not computed twice where that is the baseline."""
    name = None if baseline is None else baseline["arm"]
    if name is None or name not in by_arm:
        return {"own_baseline": None, "own_speedup": None}
    if name == compared["baseline"]:
        return {"own_baseline": name, "own_speedup": compared["speedup"]}
    return {
        "own_baseline": name,
        "own_speedup": _interval(paired_speedup(by_arm[name], own, anytime=anytime)),
    }


def _interval(found: Speedup | None) -> RatioInterval | None:
    return None if found is None else {"ratio": found.ratio, "low": found.low, "high": found.high}


def _add_alpha_leviathan(rows: list[ArmRow], by_arm: Mapping[str, pd.DataFrame]) -> None:
    """What teacher forcing of ArS text says is a fact about the SpS arms of the same sampling."""
    of_sampling: dict[str, float | None] = {}
    for row in rows:
        if row["method"] == "ars" and row["arm"] in by_arm and of_sampling.get(row["sampling"]) is None:
            of_sampling[row["sampling"]] = alpha_leviathan(by_arm[row["arm"]])
    for row in rows:
        if row["acceptance"] is not None and not unusual(row):  # it is the draft model's, under Chen's rule
            row["acceptance"]["alpha_leviathan"] = of_sampling.get(row["sampling"])


def _loops_of_finished(loops: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Leave out what a failed sequence did before it failed."""
    done = finished(own)
    if len(done) == len(own) or loops.empty:
        return loops
    key = [name for name in ("process", "example_id", "sample_index") if name in loops and name in done]
    return loops.merge(done[key], on=key, sort=False)


def _from_loops(loops: pd.DataFrame, arm: ArmIdentity) -> RowLoops:
    if loops.empty:
        return {
            "acceptance": None,
            "acceptance_z": None,
            "tokens_per_loop": None,
            "drafted_per_loop": None,
            "loop_time": None,
        }
    speculative = arm["method"] == "sps"
    return {
        "acceptance": _acceptance(loops, arm) if speculative else None,
        "acceptance_z": disagreement(loops) if speculative else None,
        "tokens_per_loop": _mean(loops, "emitted"),
        "drafted_per_loop": _mean(loops, "drafted"),
        "loop_time": {
            "draft_ms": _mean(loops, "draft_s", 1e3),
            "verify_ms": _mean(loops, "verify_s", 1e3),
            "sample_ms": _mean(loops, "sample_s", 1e3),
            "other_ms": _mean(loops, "other_s", 1e3),
            **_communication(loops),
            "loop_ms": _mean(loops, "loop_s", 1e3),
        },
    }


class _Communication(TypedDict, total=False):
    comm_ms: float | None


def _communication(loops: pd.DataFrame) -> _Communication:
    """A phase more where the target is split over processes, and nothing of any other."""
    spent = _mean(loops, "comm_s", 1e3) if "comm_s" in loops else None
    return {} if spent is None else {"comm_ms": spent}


def _acceptance(loops: pd.DataFrame, arm: ArmIdentity) -> Acceptance | None:
    """See ``acceptance``; the alphas are of tokens, and a beam search tests steps."""
    found = acceptance(loops, int(arm["k"]))
    if found is not None and is_beam(arm):
        for names in (found, found["macro"]):
            names["alpha_tested"] = names["alpha_beta"] = names["alpha_iid"] = None
    return found


def _mean(loops: pd.DataFrame, column: str, unit: float = 1.0) -> float | None:
    return finite(unit * loops[column].astype("float64").mean())


def _details(arm: ArmIdentity, info: Mapping[str, Any]) -> RowDetails:
    """What only the runner knows; a verification rule belongs to arms that verify."""
    recorded: Mapping[str, Any] = next(
        (entry for entry in info.get("arms") or [] if entry["arm"] == arm["arm"]), {}
    )
    name = arm["arm"]
    # The peak is of this process.
    separate = ((info.get("engines") or {}).get(name) or {}).get("separate", False)
    return {
        "verification_rule": _for_arm(info, "verification_rule", name) if arm["method"] == "sps" else None,
        "peak_memory_bytes": None if separate else _for_arm(info, "peak_memory_bytes", name),
        "target_mode": _for_arm(info, "target_mode", name),
        "draft_mode": _for_arm(info, "draft_mode", name),
        "draft_forwards": recorded.get("draft_forwards", arm["k"]),
        "lossless": recorded.get("lossless", True),
    }


def _for_arm(info: Mapping[str, Any], key: str, arm: str) -> Any:
    value = info.get(key)
    return value.get(arm) if isinstance(value, Mapping) else value


def _labels(info: Mapping[str, Any]) -> Labels:
    task = info.get("task")
    labels: Labels = {
        "task": task,
        "task_label": info.get("task_label") or task,
        "synthetic": bool(info.get("synthetic", False)),
        "pair": info.get("pair"),
        "data": info.get("data"),
        "headline_metric": info.get("headline_metric"),
    }
    recorded = (info.get("metrics") or {}).items()
    signatures = {name: metric["signature"] for name, metric in recorded if "signature" in metric}
    if signatures:
        labels["metric_signatures"] = signatures
    if info.get("extract"):
        labels["extract"] = info["extract"]
    if info.get("stopping"):
        labels["stopping"] = info["stopping"]
    if info.get("engines"):
        labels["engines"] = _engines(info)
    return labels


def _engines(info: Mapping[str, Any]) -> Engines:
    """What answered for each arm, and where they ran with other settings."""
    recorded = info["engines"]
    arms = [entry for entry in info.get("arms") or [] if entry["arm"] in recorded]
    of_arms: list[EngineOfArm] = [
        {
            "arm": arm["arm"],
            "name": recorded[arm["arm"]]["engine"],
            "version": recorded[arm["arm"]]["version"],
            "rule": _for_arm(info, "verification_rule", arm["arm"]) if arm["method"] == "sps" else None,
            "settings": recorded[arm["arm"]]["settings"],
            "limits": recorded[arm["arm"]]["limits"],
            "unseen": recorded[arm["arm"]]["unseen"],
        }
        for arm in arms
    ]
    ran = [Ran(label(arm), arm["engine"], recorded[arm["arm"]]["settings"]) for arm in arms]
    sampled = any(not (arm.get("params") or {}).get("greedy") for arm in arms)
    return {"arms": of_arms, "unequal": unequal(ran, sampled=sampled)}
