"""``summary.json``: everything that a run's tables say, in one object."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from spsbench.base.axes import EAGER, RECOMMENDED, ArmIdentity, identity, is_beam, label, own_ars, unusual
from spsbench.base.gpu import OTHERS, SM_CLOCK, THROTTLED
from spsbench.base.messages import Message
from spsbench.base.other_layers import kernels_of_models, slow_kernels, slower_than_asked
from spsbench.base.records import CUTS, SCHEMA_VERSION, Loop, Processing
from spsbench.parts.external.engine import PeerRun, unequal
from spsbench.stats.acceptance import acceptance_by_name, disagreement, share_of_optimum
from spsbench.stats.bootstrap import finite, plain, ratio
from spsbench.stats.certainty import OVER_TIME, Certainty
from spsbench.stats.conditions import contention, separated, slow_sequences, unlike_workers, warnings
from spsbench.stats.corpus import CorpusMetric, corpus_metrics, intervals, without_figure
from spsbench.stats.latency import energy, positions, tails
from spsbench.stats.losslessness import alpha_leviathan, losslessness
from spsbench.stats.messages.runs import PROCESSES_DIFFER, EngineNotStarted, PromptsCut, RanEager, SlowDtype
from spsbench.stats.messages.timings import CONTENTION_NOT_COUNTED, RepeatsDiffer
from spsbench.stats.parity import metrics, parity
from spsbench.stats.predict.costs import hindsight, prediction, replayed
from spsbench.stats.predict.factors import why
from spsbench.stats.predict.roofline import ceiling
from spsbench.stats.predict.verdict import verdicts
from spsbench.stats.speedup import SEQUENCE, drifted, finished, halves, in_both, loops_of, pair, share_slower
from spsbench.stats.surface import surfaces
from spsbench.stats.times import doubts
from spsbench.store.summary_types import (
    Acceptance,
    ArmRow,
    CategoryPart,
    CategoryRow,
    Diagnostics,
    Engines,
    GpuSeen,
    Labels,
    Numbers,
    Summary,
    TurnPart,
)
from spsbench.store.timings import LOST
from spsbench.tasks.metrics.kind import MetricKind

if TYPE_CHECKING:
    import pandas as pd


PHASES = ("draft", "verify", "sample", "other", "loop")
"""Of every loop; what only some have, e.g. ``comm`` of a split target, stands before the last."""

_LATER_PHASES = [
    field.name[:-2] for field in fields(Loop) if field.name.endswith("_s") and field.default is None
]
_METHOD_ORDER = {"ars": 0, "sps": 1, "draft": 2}
_KEY = ["example_id", "sample_index", "arm"]


def summarise(
    samples: pd.DataFrame,
    loops: pd.DataFrame,
    info: Mapping[str, Any],
    evidence: pd.DataFrame | None = None,
    kinds: Sequence[MetricKind] = (),
) -> Summary:
    """Return the content of summary.json, from the tables of a run.

    Args:
        info: what the tables do not hold, all optional. ``arms``: a list of dicts with ``arm``,
            ``method``, ``k``, ``engine``, ``sampling``, so that an arm without a sample has its
            row; ``models`` with ``target`` and its ``dtype``; ``task``, ``task_label``,
            ``synthetic``, ``pair``, ``data``, ``headline_metric``, ``metrics``, ``corpus_figures``; and, for
            all arms or as a dict by arm, ``expected_sequences``, ``verification_rule``,
            ``peak_memory_bytes``, ``target_mode``, ``draft_mode``.
        evidence: one row per token that was read again, the columns of ``evidence.parquet``; without it
            nothing is replayed.
    """
    return separated(samples, loops, info, partial(_summary_of_one_condition, evidence=evidence, kinds=kinds))


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the rows are made from: sequences of one and the same conditions."""

    samples: Mapping[str, pd.DataFrame]
    loops: Mapping[str, pd.DataFrame]
    info: Mapping[str, Any]
    corpora: Mapping[str, CorpusMetric]
    certainty: Certainty

    def of_arm(self, key: str, arm: str) -> Any:
        """Return what the runner recorded for all arms or by arm."""
        value = self.info.get(key)
        return value.get(arm) if isinstance(value, Mapping) else value


def _summary_of_one_condition(
    samples: pd.DataFrame,
    loops: pd.DataFrame,
    info: Mapping[str, Any],
    evidence: pd.DataFrame | None,
    kinds: Sequence[MetricKind],
) -> Summary:
    lost = contention(samples, info)
    samples = _with_loop_counts(samples, loops)
    run = _Measured(
        samples={str(arm): part for arm, part in samples.groupby("arm", sort=False)},
        loops={str(arm): part for arm, part in loops.groupby("arm", sort=False)} if len(loops) else {},
        info=info,
        corpora=corpus_metrics(info, kinds),
        certainty=Certainty(
            anytime=bool((info.get("stopping") or {}).get("anytime")),
            over_time=info.get("interval") == OVER_TIME,
            lost={} if lost["trusted"] else lost["lost_by_arm"],
        ),
    )
    anytime = run.certainty.anytime
    arms = _ordered_arms(info)
    rows = [_arm_row(run, arm, arms, run.samples.get(arm["arm"], samples.iloc[:0])) for arm in arms]
    _add_alpha_leviathan(rows, run.samples)
    rows = plain(rows)
    dtype = ((info.get("models") or {}).get("target") or {}).get("dtype")
    judged = plain(losslessness(run.samples, rows, None if dtype is None else str(dtype), info.get("proof")))
    quality = plain(parity(run.samples, rows, info.get("headline_metric"), info.get("metrics"), run.corpora))
    labels = _labels(run)
    if joules := energy(run.samples, rows, info, run.certainty):
        labels["energy"] = plain(joules)
    alarmed = {arm["arm"] for arm in judged["arms"] if arm["verdict"] == "alarm"} if judged else set()
    sized = plain(surfaces(run.samples, rows, clean=run.certainty.clean))
    summary: Summary = {
        "schema_version": SCHEMA_VERSION,
        **labels,
        "rows": rows,
        "by_category": plain(list(_by_category(run, rows))),
        "by_turn": plain(list(_by_turn(run, rows))),
        "parity": quality,
        "losslessness": judged,
        **_diagnostics(run, rows, evidence, alarmed),
        "contention": plain(lost),
        "doubted_times": doubts(run.samples, run.loops, rows),
        "surfaces": sized,
        "token_sha256": token_hash(samples),
        "complete": not any(row["failed"] or row["missing"] for row in rows),
        "warnings": [
            str(warning)
            for warning in (
                *_of_the_run(info),
                *unlike_workers(info),
                *_of_timings(samples, info),
                *_of_the_outputs(samples, info),
                *without_figure(finished(samples), run.corpora),
                *warnings(rows, judged, quality, anytime=anytime, data=labels["data"]),
                *slow_sequences(run.samples, rows),
            )
        ],
        "conditions": [],
    }
    if not summary["doubted_times"]:
        del summary["doubted_times"]
    if not sized:
        del summary["surfaces"]
    if not summary["by_turn"]:
        del summary["by_turn"]
    return summary


def _with_loop_counts(samples: pd.DataFrame, loops: pd.DataFrame) -> pd.DataFrame:
    """0 where none were seen."""
    if not len(loops) or "arm" not in loops:
        return samples.assign(loop_count=0)
    key = [name for name in (*SEQUENCE, "arm") if name in samples and name in loops]
    counts = loops.groupby(key, sort=False, observed=True).size().rename("loop_count")
    return samples.drop(columns="loop_count", errors="ignore").join(counts, on=key).fillna({"loop_count": 0})


def _ordered_arms(info: Mapping[str, Any]) -> list[ArmIdentity]:
    """By sampling, ArS first, then by K."""
    arms = [identity(entry) for entry in info.get("arms") or []]
    for arm in arms:
        if arm["arm"] in (info.get("engine_fallbacks") or {}):
            arm["engine"] = EAGER
    samplings = list(dict.fromkeys(arm["sampling"] for arm in arms))
    drafters = list(
        dict.fromkeys(value for arm in arms for value in (arm["drafter"], arm["rule"], arm["policy"]))
    )
    return sorted(
        arms,
        key=lambda arm: (
            samplings.index(arm["sampling"]),
            _METHOD_ORDER.get(arm["method"], 3),
            *(drafters.index(value) for value in (arm["drafter"], arm["rule"], arm["policy"])),
            arm["batch"],
            arm["k"],
        ),
    )


def _arm_row(run: _Measured, arm: ArmIdentity, arms: Sequence[ArmIdentity], own: pd.DataFrame) -> ArmRow:
    """What needs a baseline is null for the baseline itself."""
    name = arm["arm"]
    done = finished(own)
    speculative = arm["method"] == "sps"
    baseline = _fastest_ars(arm, arms, run.samples)
    of_engine = own_ars(arm, arms)
    base = None if baseline is None else run.samples[baseline]
    own_baseline = of_engine["arm"] if of_engine is not None and of_engine["arm"] in run.samples else None
    times = None if base is None else pair(base, own)
    # Halves are compared with the ordinary 95% interval, not with a confidence sequence, which is wider: the
    # half of a steady run then leaves it in about one case of twenty.
    ordinary = replace(run.certainty, anytime=False).without_contention(base, own)
    tokens = int(done["new_tokens"].sum())
    decode_s = float(done["decode_s"].sum())
    expected = run.of_arm("expected_sequences", name)
    loops = loops_of(run.loops[name], done, len(own)) if name in run.loops else None
    loops = None if loops is None or loops.empty else loops
    recorded: Mapping[str, Any] = next(
        (entry for entry in run.info.get("arms") or [] if entry["arm"] == name), {}
    )
    # The peak is of this process.
    separate = ((run.info.get("engines") or {}).get(name) or {}).get("separate", False)
    anytime = run.certainty.anytime
    speedup = run.certainty.speedup(base, own) if anytime else run.certainty.interval(ordinary, base, own)
    row: ArmRow = {
        **arm,
        "sequences": len(done),
        "prompts": int(done["example_id"].nunique()),
        "processes": int(done["process"].nunique()) if "process" in done else 1,
        "tokens": tokens,
        "failed": len(own) - len(done),
        "missing": max(0, int(expected) - len(own)) if expected is not None else 0,
        "ms_per_token": _ms(decode_s, tokens),
        "end_to_end_ms_per_token": _ms(decode_s + float(done["prefill_s"].sum()), tokens),
        "metrics": metrics(done, run.corpora, name),
        "metric_intervals": intervals(done, run.corpora, name),
        "baseline": baseline,
        "speedup": speedup,
        "end_to_end_speedup": run.certainty.speedup(base, own, prefill=True),
        "speedup_halves": None if times is None else [*halves(times)],
        "share_slower": None
        if base is None
        else share_slower(pair(base.drop(columns="wave", errors="ignore"), own)),
        "paired_prompts": None if base is None else int(in_both(base, own)[1]["example_id"].nunique()),
        "paired_waves": 0 if times is None else len(times),
        "paired_conversations": 0 if times is None else len(times),
        "drifted": run.certainty.clean
        and times is not None
        and ordinary is not None
        and drifted(times, ordinary),
        "own_baseline": own_baseline,
        "own_speedup": speedup
        if own_baseline == baseline
        else run.certainty.speedup(run.samples.get(own_baseline or ""), own),
        "acceptance": _acceptance(loops, arm) if loops is not None and speculative else None,
        "acceptance_z": disagreement(loops) if loops is not None and speculative else None,
        "share_of_optimum": share_of_optimum(loops) if loops is not None and speculative else None,
        "tokens_per_loop": _mean(loops, "emitted"),
        "drafted_per_loop": _mean(loops, "drafted"),
        "nodes_per_loop": _mean(loops, "nodes") if loops is not None and "nodes" in loops else None,
        "loop_time": None if loops is None else _mean_phases(loops),
        "verification_rule": run.of_arm("verification_rule", name) if speculative else None,
        "peak_memory_bytes": None if separate else run.of_arm("peak_memory_bytes", name),
        "target_mode": run.of_arm("target_mode", name),
        "draft_mode": run.of_arm("draft_mode", name),
        "draft_forwards": recorded.get("draft_forwards", arm["k"]),
        "lossless": recorded.get("lossless", True),
        "refuted": recorded.get("enumerated", ""),
        "prediction": None,
    }
    if row["lossless"] or not row["refuted"]:
        del row["refuted"]
    if row["nodes_per_loop"] is None:
        del row["nodes_per_loop"]
    if not run.corpora:
        del row["metric_intervals"]
    if base is None or "wave" not in own or own["wave"].isna().all():
        del row["paired_waves"]
    if base is None or "paired_waves" in row or "turn" not in own or own["turn"].isna().all():
        del row["paired_conversations"]
    return row


def _fastest_ars(
    arm: ArmIdentity, arms: Sequence[ArmIdentity], by_arm: Mapping[str, pd.DataFrame]
) -> str | None:
    """Of the same sampling and batch; None for itself and where there is none."""
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


def _ms(seconds: float, tokens: int) -> float | None:
    per_token = ratio(seconds, tokens)
    return None if per_token is None else 1e3 * per_token


def _mean(loops: pd.DataFrame | None, column: str, unit: float = 1.0) -> float | None:
    return None if loops is None else finite(unit * loops[column].astype("float64").mean())


def _mean_phases(loops: pd.DataFrame) -> Numbers:
    """In milliseconds; phases of later versions only where a loop has them."""
    later = [name for name in _LATER_PHASES if f"{name}_s" in loops and loops[f"{name}_s"].notna().any()]
    phases = (*PHASES[:-1], *later, PHASES[-1])
    return {f"{name}_ms": _mean(loops, f"{name}_s", 1e3) for name in phases}


def _acceptance(loops: pd.DataFrame, arm: ArmIdentity) -> Acceptance | None:
    """Without alphas for a beam search, which tests steps and not tokens."""
    acceptance_record = acceptance_by_name(loops, int(arm["k"]))
    if acceptance_record is not None and is_beam(arm):
        for names in (acceptance_record, acceptance_record["macro"]):
            names["alpha_tested"] = names["alpha_beta"] = names["alpha_iid"] = None
    return acceptance_record


def _add_alpha_leviathan(rows: Sequence[ArmRow], by_arm: Mapping[str, pd.DataFrame]) -> None:
    """Add alpha_leviathan, measured on ArS text, to the SpS arms of the same sampling."""
    of_sampling: dict[str, float | None] = {}
    for row in rows:
        if row["method"] == "ars" and row["arm"] in by_arm and of_sampling.get(row["sampling"]) is None:
            of_sampling[row["sampling"]] = alpha_leviathan(by_arm[row["arm"]])
    for row in rows:
        if row["acceptance"] is not None and not unusual(row):  # it is the draft model's, under Chen's rule
            row["acceptance"]["alpha_leviathan"] = of_sampling.get(row["sampling"])


def _by_category(run: _Measured, rows: Sequence[ArmRow]) -> Iterator[CategoryPart]:
    """Every arm's row for each, by the same estimators; nothing unless there are several."""
    columns = [samples["category"] for samples in run.samples.values() if "category" in samples]
    named = sorted({str(value) for values in columns for value in values.dropna()})
    categories = [*named, *([None] if any(values.isna().any() for values in columns) else [])]
    for category in categories if len(categories) > 1 else ():
        arms = {}
        for arm, samples in run.samples.items():
            values = samples["category"]
            arms[arm] = samples[values.isna() if category is None else values == category]
        examples = {example for samples in arms.values() for example in samples["example_id"]}
        category_rows = [_row_of_part(run, row, arms) for row in rows if row["arm"] in arms]
        yield {"category": category, "prompts": len(examples), "rows": category_rows}


def _by_turn(run: _Measured, rows: Sequence[ArmRow]) -> Iterator[TurnPart]:
    """Every arm's row for each turn of conversations; nothing where only first turns were asked."""
    turns = {arm: samples["turn"].fillna(1) for arm, samples in run.samples.items() if "turn" in samples}
    numbers = sorted({int(turn) for values in turns.values() for turn in values})
    for number in numbers if len(numbers) > 1 else ():
        arms = {arm: run.samples[arm][values == number] for arm, values in turns.items()}
        examples = {example for samples in arms.values() for example in samples["example_id"]}
        turn_rows = [_row_of_part(run, row, arms) for row in rows if row["arm"] in arms]
        yield {"turn": number, "prompts": len(examples), "rows": turn_rows}


def _row_of_part(run: _Measured, row: ArmRow, own: Mapping[str, pd.DataFrame]) -> CategoryRow:
    samples, baseline = own[row["arm"]], row["baseline"]
    done = finished(samples)
    tokens = int(done["new_tokens"].sum())
    loops = run.loops.get(row["arm"])
    seen = None if loops is None or done.empty else loops_of(loops, done, -1)
    return {
        **identity(row),
        "sequences": len(done),
        "prompts": int(done["example_id"].nunique()),
        "failed": len(samples) - len(done),
        "tokens": tokens,
        "ms_per_token": _ms(float(done["decode_s"].sum()), tokens),
        "baseline": baseline,
        "speedup": None if baseline is None else run.certainty.speedup(own[baseline], samples),
        "tokens_per_loop": None if seen is None or seen.empty else _mean(seen, "emitted"),
        "metrics": metrics(done, run.corpora),
        "lossless": row["lossless"],
    }


def _diagnostics(
    run: _Measured, rows: Sequence[ArmRow], evidence: pd.DataFrame | None, alarmed: Collection[str]
) -> Diagnostics:
    """What explains the rows; each part null where it has nothing to say.

    Times that others disturbed so much that nothing is decided explain nothing. Each row also gets its own
    ``prediction``, null for arms that predict nothing.
    """
    # A loop of a beam search counts steps of the search: no model of tokens per loop is about them.
    sampled = [row for row in rows if not is_beam(row)]
    arms = {row["arm"] for row in sampled} & run.samples.keys()
    loops = {
        arm: loops_of(part, finished(run.samples[arm]), len(run.samples[arm]))
        for arm, part in run.loops.items()
        if arm in arms
    }
    explained = why(run.samples, run.loops, sampled)
    judged = verdicts(run.samples, rows, explained, run.certainty, alarmed=alarmed)
    decided = run.certainty.clean or (
        bool(judged) and all(each["outcome"] != "unclear" for each in judged or ())
    )
    parts: Diagnostics = {
        "prediction": prediction(sampled, run.info, {} if evidence is None else replayed(evidence, sampled)),
        "why": explained if decided else None,
        "ceiling": ceiling(run.samples, sampled, run.info) if decided else None,
        "tails": tails(run.samples, loops, rows),
        "positions": positions(loops, rows),
        "hindsight": hindsight(run.samples, loops, rows) if decided else None,
        "verdict": judged,
    }
    parts = plain(parts)
    predicted = {arm["arm"]: arm for arm in parts["prediction"]["arms"]} if parts["prediction"] else {}
    for row in rows:
        if (arm := predicted.get(row["arm"])) is not None:
            row["prediction"] = {"leviathan": arm["predicted"], "chen": arm["chen"]}
    return parts


def token_hash(samples: pd.DataFrame) -> str | None:
    """SHA-256 over the ids of all finished sequences, whatever their order in the journal."""
    done = finished(samples)
    if done.empty or "token_ids" not in done:
        return None
    hashes = set()
    for part in [part for _, part in done.groupby("process")] if "process" in done else [done]:
        digest = hashlib.sha256()
        columns = part.sort_values(_KEY)[[*_KEY, "token_ids"]].astype({"sample_index": int})
        for line in columns.to_numpy(dtype=object).tolist():
            digest.update(json.dumps(line, default=int).encode() + b"\n")
        hashes.add(digest.hexdigest())
    return hashes.pop() if len(hashes) == 1 else None


def _of_the_run(info: Mapping[str, Any]) -> Iterator[Message | str]:
    """How arms were run, and what was not."""
    for arm, reason in other_fallbacks(info, engine_of(info) or ""):
        yield RanEager(arm, reason)
    models = info.get("models") or {}
    target = models.get("target") or {}
    if slow_layers := slow_kernels(kernels_of_models(models)):
        yield slow_layers
    yield from slower_than_asked(models)
    identity = info.get("identity") or {}
    left_to_it = identity.get("device") == "cpu" and identity.get("dtype") == "auto"
    slow = target.get("backend") == "torch" and target.get("dtype") in ("bfloat16", "float16")
    if left_to_it and slow:  # few CPUs compute fast in the checkpoint's 16 bit
        yield SlowDtype(target["dtype"])
    for arm, reason in (info.get("engines_left_out") or {}).items():
        yield EngineNotStarted(arm, reason)


def _of_timings(samples: pd.DataFrame, info: Mapping[str, Any]) -> Iterator[Message | str]:
    """What was timed again, and what could not be seen."""
    if differing := (info.get("remeasured") or {}).get("differing"):
        yield RepeatsDiffer(len(differing), differing[0])
    if info.get("interval") and not finished(samples).empty:
        seen = [
            state for state in samples["conditions"] if isinstance(state, Mapping) and {*LOST} & state.keys()
        ]
        if not seen:
            yield CONTENTION_NOT_COUNTED


def _of_the_outputs(samples: pd.DataFrame, info: Mapping[str, Any]) -> Iterator[Message | str]:
    if count := info.get("truncated_prompts"):
        yield PromptsCut(count)
    if "process" in samples and not finished(samples).empty and token_hash(samples) is None:
        yield PROCESSES_DIFFER


def _labels(run: _Measured) -> Labels:
    """What every table must say of a run."""
    info = run.info
    labels: Labels = {
        "task": info.get("task"),
        "task_label": info.get("task_label") or info.get("task"),
        "synthetic": bool(info.get("synthetic", False)),
        "pair": info.get("pair"),
        "data": info.get("data"),
        "headline_metric": info.get("headline_metric"),
    }
    recorded = (info.get("metrics") or {}).items()
    if signatures := {name: metric["signature"] for name, metric in recorded if "signature" in metric}:
        labels["metric_signatures"] = signatures
    if info.get("model"):
        labels["model"] = info["model"]
    if info.get("tags"):
        labels["tags"] = info["tags"]
    texts = {"law": law_of(info), "engine": engine_of(info)}
    labels |= cast("Labels", {name: text for name, text in texts.items() if text})
    if info.get("extract"):
        labels["extract"] = info["extract"]
    identity = info.get("identity") or {}
    if identity.get("fixed_length") and (length := identity.get("max_new_tokens")):
        labels["fixed_length"] = length
    if info.get("stopping"):
        labels["stopping"] = info["stopping"]
    if info.get("engines"):
        labels["engines"] = _engines(run)
    if info.get("gpu"):
        labels["gpu"] = _gpu_seen(run)
    models = ((role, (info.get("models") or {}).get(role) or {}) for role in ("target", "draft"))
    if how := {role: str(model["rollback"]) for role, model in models if model.get("rollback")}:
        labels["rollback"] = how
    return labels


def law_of(info: Mapping[str, Any]) -> str:
    """Return where a run samples otherwise than its task: ``T=0.5, min-p 0.1 (transformers)``; empty
    where nothing was changed. If samplings differ in it, by their names.
    """
    shown = {"temperature": "T={:g}", "top_k": "top-k {}", "top_p": "top-p {:g}"}
    changes: dict[str, str] = {}
    for arm in info.get("arms") or []:
        sampled = arm.get("params") or {}
        names = CUTS if arm["sampling"] == RECOMMENDED else info.get("changed_sampling") or []
        parts = [] if sampled.get("greedy") else [shown[name].format(sampled[name]) for name in names]
        if process := sampled.get("process"):
            parts.append(Processing(**process).described)
        changes[arm["sampling"]] = ", ".join(parts)
    if len({*changes.values()}) < 2:
        return "".join({*changes.values()})
    return "; ".join(f"{sampling}: {change}" for sampling, change in changes.items() if change)


def engine_of(info: Mapping[str, Any]) -> str | None:
    """Return what ran the loops where the run named no engine and its device has a usual one; with the
    reason where that is not graphs. None elsewhere.
    """
    usual = info.get("usual_engine")
    fallbacks = info.get("engine_fallbacks") or {}
    if not usual:
        return None
    name = usual["name"]
    reason = usual.get("reason")
    if fallbacks and all(arm["arm"] in fallbacks for arm in info.get("arms") or []):
        name = EAGER
        reason = next(iter(fallbacks.values()))
    return f"{name} (CUDA graphs)" if reason is None else f"{name}: {reason}"


def other_fallbacks(info: Mapping[str, Any], engine: str) -> list[tuple[str, str]]:
    """Return arms that ran eager in place of graphs, each with the reason if ``engine`` does not say it."""
    fallbacks = info.get("engine_fallbacks") or {}
    return [(arm, reason) for arm, reason in fallbacks.items() if reason not in engine]


def _gpu_seen(run: _Measured) -> GpuSeen:
    """The device, and what the driver said of it as each finished sequence ended."""
    facts = run.info["gpu"]
    done = [finished(own) for own in run.samples.values()]
    states = [each for own in done for each in own["conditions"] if isinstance(each, Mapping)]
    known = [state for state in states if SM_CLOCK in state]
    clocks = [each[SM_CLOCK] for each in known]
    reasons = Counter(
        name.removeprefix(THROTTLED) for each in known for name in each if name.startswith(THROTTLED)
    )
    others = [each[OTHERS] for each in known if OTHERS in each]
    return {
        "device": f"{facts['name']}, {facts['device']}",
        "sequences": len(known),
        "sm_clock_mhz": (min(clocks), max(clocks), median(clocks)) if clocks else None,
        "throttled": dict(reasons),
        "shared": sum(count > 0 for count in others) if others else None,
    }


def _engines(run: _Measured) -> Engines:
    """What answered for each arm, and where they ran with other settings."""
    recorded = run.info["engines"]
    arms = [entry for entry in run.info.get("arms") or [] if entry["arm"] in recorded]
    ran = [PeerRun(label(arm), arm["engine"], recorded[arm["arm"]]["settings"]) for arm in arms]
    sampled = any(not (arm.get("params") or {}).get("greedy") for arm in arms)
    return {
        "arms": [
            {
                "arm": arm["arm"],
                "name": recorded[arm["arm"]]["engine"],
                "version": recorded[arm["arm"]]["version"],
                "rule": run.of_arm("verification_rule", arm["arm"]) if arm["method"] == "sps" else None,
                "settings": recorded[arm["arm"]]["settings"],
                "limits": recorded[arm["arm"]]["limits"],
                "unseen": recorded[arm["arm"]]["unseen"],
            }
            for arm in arms
        ],
        "unequal": unequal(ran, sampled=sampled),
    }
