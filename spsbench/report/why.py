"""Does it pay and with which arm, why this fast, what theory says, and the tails of latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from spsbench.base.axes import EAGER, MODIFIED_REJECTION, label, place
from spsbench.base.messages import Message
from spsbench.report import judgement, wording
from spsbench.report.measured import series_name
from spsbench.report.messages import speedups
from spsbench.report.messages.losslessness import PolicyAgainstFixedK
from spsbench.report.tables import IN_FULL, Column, Table, bullets, entry, left, paragraphs, right, table_of
from spsbench.report.wording import NOTHING, Run, escape, milliseconds, number, percent, signed, speedup
from spsbench.stats.conditions import contention_reasons, more_prompts
from spsbench.stats.messages import OfArm
from spsbench.stats.messages.factors import JUDGING, TEXTS
from spsbench.stats.messages.runs import RAISE_LIMIT
from spsbench.stats.messages.timings import contention_named
from spsbench.stats.predict import FEWEST_PROMPTS
from spsbench.stats.predict.factors import residual_cause, residual_factors
from spsbench.stats.predict.roofline import BANDWIDTH_BOUND, DISPATCH_BOUND
from spsbench.store.summary_types import (
    AgainstBest,
    ArmFactors,
    ArmPositions,
    ArmPrediction,
    MeanSd,
    Residual,
    SeriesPrediction,
    SpeedVerdict,
    Spread,
    Summary,
)


def verdicts(summary: Summary) -> list[tuple[str, str]]:
    """For every sampling and batch size a sentence with the answer, and what belongs beside it."""
    found = summary.get("verdict") or []
    more = more_prompts(summary["rows"], summary.get("data"))
    reasons = contention_reasons(summary)
    return [(str(answer(each, _scope(each, found), more, reasons)), details(each)) for each in found]


def _scope(verdict: SpeedVerdict, verdicts: Sequence[SpeedVerdict]) -> str:
    """What sets a verdict apart from the others, e.g. ``nucleus, B=4``; empty for a single one."""
    samplings, batches = ({other[axis] for other in verdicts} for axis in ("sampling", "batch"))
    words = [verdict["sampling"]] if len(samplings) > 1 else []
    return ", ".join([*words, f"B={verdict['batch']}"] if len(batches) > 1 else words)


def answer(
    verdict: SpeedVerdict, scope: str = "", more: str = RAISE_LIMIT, reasons: Sequence[str] = ()
) -> Message:
    """Whether to use speculative sampling, with which arm, and what it gains; how to get ``more`` prompts.

    ``reasons`` are those of ``lost_share``, see ``contention_reasons``.
    """
    gain = speedups.Gain(verdict["speedup"], verdict["end_to_end"])
    name, fastest = _name(verdict), _fastest(verdict)
    leaning = verdict.get("leaning")
    if leaning is not None or (verdict["outcome"] == "unclear" and "lost_share" in verdict):
        remedy, who = None, name
        if leaning is None:
            # No interval for want of prompts, rather than for CPU contention.
            none = verdict["speedup"]["low"] is None and verdict["lost_share"] < 1.0
            remedy = _too_few(verdict, more) or (_more_prompts(verdict, more) if none else None)
            who = fastest
        lost, ratio = verdict["lost_share"], verdict["speedup"]["ratio"]
        return speedups.HiddenByContention(
            leaning, who, scope, ratio, contention_named(reasons), lost, remedy
        )
    if verdict["outcome"] == "pays":
        return speedups.Pays(name, scope, gain, chosen=bool(verdict["others"]))
    if verdict["outcome"] == "does not pay":
        return speedups.DoesNotPay(fastest, scope, gain, verdict["break_even"])
    return speedups.NoClearGain(fastest, scope, gain, _more_prompts(verdict, more))


def details(verdict: SpeedVerdict) -> str:
    """Which arms are as good, the largest loss, and what choosing on other prompts gave."""
    if verdict["outcome"] == "unclear" and "lost_share" in verdict:
        return ""  # CPU contention is no reason of an arm's
    found: list[Message | str] = [*_alike(verdict)]
    ks = [other["k"] for other in verdict["others"]]
    if verdict["outcome"] == "pays" and _only_k(verdict) and verdict["k"] >= max(ks):
        found.append(speedups.LargestKMeasured(verdict["k"]))
    if (elsewhere := verdict["elsewhere"]) is not None:
        by_ars = elsewhere["low"] is None and elsewhere["ratio"] == 1.0
        found.append(speedups.ChosenOnHalf(None if by_ars else elsewhere))
    if verdict["binding"] is not None:
        found.append(speedups.LargestLoss(TEXTS[verdict["binding"]].short))
    tail = verdict["tail_s"]
    if verdict["outcome"] == "pays" and tail["chosen"]["p99"] >= tail["ars"]["p99"]:
        found.append(speedups.SLOWEST_GAIN_NOTHING)
    return " ".join(map(str, found))


def _name(verdict: SpeedVerdict, arm: SpeedVerdict | AgainstBest | None = None) -> str:
    """An arm, of itself the chosen one, by its K alone where nothing else sets the verdict's arms apart."""
    arm = arm or verdict
    return f"K={arm['k']}" if _only_k(verdict) else label(arm)


def _fastest(verdict: SpeedVerdict) -> str:
    name = _name(verdict)
    return f"{name}, the fastest of {verdict['candidates']}," if verdict["others"] else name


def _only_k(verdict: SpeedVerdict) -> bool:
    here = place(verdict, "k")
    return bool(verdict["others"]) and all(place(other, "k") == here for other in verdict["others"])


def _more_prompts(verdict: SpeedVerdict, more: str) -> Message:
    if too_few := _too_few(verdict, more):
        return too_few
    if verdict["speedup"]["low"] is None:
        return speedups.NoIntervalOver(verdict["prompts"], more)
    return speedups.IntervalTooWide(more)


def _too_few(verdict: SpeedVerdict, more: str) -> speedups.TooFewToChoose | None:
    if not verdict["others"] or verdict["prompts"] >= FEWEST_PROMPTS:
        return None
    return speedups.TooFewToChoose(verdict["candidates"], verdict["prompts"], more)


def _alike(verdict: SpeedVerdict) -> Iterator[Message]:
    others = verdict["others"]
    alike = [other for other in others if not other["slower"]]
    if not alike:
        if others:
            yield speedups.OthersSlower("K" if _only_k(verdict) else "arm")
    elif not _only_k(verdict):
        yield speedups.ArmsAlike(tuple(label(other) for other in alike), len(others))
    else:
        ks = sorted([verdict["k"], *(other["k"] for other in alike)])
        between = [k for k in (verdict["k"], *(other["k"] for other in others)) if ks[0] <= k <= ks[-1]]
        yield speedups.KsAlike(tuple(ks), gapless=sorted(between) == ks)


def which(summary: Summary, run: Run) -> list[str]:
    """The fastest arm against every other one, where there are several."""
    every = summary.get("verdict") or []
    verdicts = [each for each in every if each["others"]]
    if not verdicts:
        return []
    parts: list[str | Table] = []
    more = more_prompts(summary["rows"], summary.get("data"))
    reasons = contention_reasons(summary)
    for each in verdicts:
        columns = [
            left("instead", partial(_name, each)),
            right(f"{_name(each)} is faster by", entry("gain", speedup), note="95%"),
            left("verdict", lambda other: "slower" if other["slower"] else "cannot be told apart"),
        ]
        parts.append(
            f"**{escape(answer(each, _scope(each, every), more, reasons))}** {escape(details(each))}"
        )
        parts.append(table_of(columns, each["others"]))
    noun = "K" if all(map(_only_k, verdicts)) else "arm"
    return paragraphs(f"## Which {noun}", *parts, speedups.VERDICT_NOTE)


def why(summary: Summary, run: Run) -> list[str]:
    """The factors of the fastest arm of each sampling, then all arms in one table."""
    explained = summary.get("why") or []
    if not explained:
        return []
    parts: list[str | Table] = []
    for each in judgement.fastest(summary):
        parts += [f"**{escape(each['sentence'])}**", *_left_by_the_rule(summary, each), _factors(each)]
    if len(explained) > 1:
        names = list(dict.fromkeys(factor["name"] for each in explained for factor in each["factors"]))
        columns = [
            right("K+1", lambda arm: str(arm["k"] + 1)),
            *(right(name.replace("_", " "), partial(_factor, name)) for name in names),
            right("speedup", entry("speedup", wording.times)),
        ]
        parts += ["### Factors of every arm", IN_FULL.table(columns, explained)]
    at_once = any(factor["name"] == JUDGING for each in explained for factor in each["factors"])
    note = f"{speedups.FACTORS_NOTE} {speedups.JUDGING_NOTE}" if at_once else speedups.FACTORS_NOTE
    return paragraphs("## Why this fast, and not faster", *parts, note)


def _left_by_the_rule(summary: Summary, arm: ArmFactors) -> Iterator[str]:
    """What the best rule would accept of the same drafts, where the interval says that it is more."""
    for row in summary["rows"]:
        found = row.get("share_of_optimum") if row["arm"] == arm["arm"] else None
        most = None if found is None else found["high"]
        if most is not None and most < 1 and row["rule"] == MODIFIED_REJECTION and row["engine"] == EAGER:
            yield str(speedups.BelowBestRule(wording.share_of_optimum(row)))


def _factor(name: str, arm: ArmFactors) -> str:
    return number({factor["name"]: factor["factor"] for factor in arm["factors"]}.get(name), 3)


def _factors(arm: ArmFactors) -> Table:
    cells = [["K+1", "", f"{arm['k'] + 1:.2f}x", "", ""]]
    for found in arm["factors"]:
        evidence = TEXTS[found["name"]].evidence.format_map(found["evidence"])
        title = found["title"] + (" (binding)" if found["name"] == arm["binding"] else "")
        cells.append(
            [title, f"x{found['factor']:.3f}", f"{found['running']:.2f}x", evidence, found["remedy"]]
        )
    columns = [left("factor"), right("value"), right("product"), left("evidence"), left("remedy")]
    return Table(columns, cells)


def theory(summary: Summary, run: Run) -> list[str]:
    """Predicted and measured speedups with the sign of what the theory misses, and the best K."""
    found = summary.get("prediction")
    if not found:
        return []
    factors = {each["arm"]: each for each in summary.get("why") or []}

    def largest(arm: ArmPrediction) -> str:
        """What does most for the residual of Leviathan's formula, with its factor."""
        parts = residual_factors(arm, factors[arm["arm"]]) if arm["arm"] in factors else []
        return cause(residual_cause(arm["residual"], parts))

    columns = [
        right("alpha", entry("alpha", number, 3)),
        right("c", entry("c", number, 3)),
        right("measured", entry("measured", number, 2)),
        right("Leviathan", entry("predicted", number, 2)),
        right("residual", entry("residual", signed)),
        left("largest cause", largest),
        right("Chen", entry("chen", number, 2)),
        right("residual", entry("chen_residual", signed)),
        right("operations factor", entry("operations_factor", number, 2)),
        right("tokens/loop", entry("tokens_per_loop_kept", number, 2)),
        right("by replay", entry("tokens_per_loop_replayed", wording.estimate)),
    ]
    notes = bullets(text for each in found["samplings"] if (text := _best(each)))
    return paragraphs("## Theory", IN_FULL.table(columns, found["arms"]), notes, speedups.THEORY_NOTE)


def cause(residual: Residual | None) -> str:
    return NOTHING if residual is None else f"{residual['title']} (x{residual['factor']:.2f})"


def _best(series: SeriesPrediction) -> str:
    name, found = series_name(series), list[OfArm]()
    if series["best_k"] is not None:
        best = speedups.TheoreticalK(series["best_k"], series["best_speedup"], series["minimum_gain"])
        found.append(OfArm(name, best))
    if series["loop"] is not None:
        found.append(OfArm(name, speedups.LoopTakes(series["loop"])))
    return " ".join(map(str, found))


CEILING = (
    right("ms/token", entry("ms_per_token", milliseconds)),
    right("floor", entry("floor_ms_per_token", milliseconds)),
    right("share of floor", entry("share", percent)),
    right("best speedup", entry("best_speedup", number, 2)),
    left(
        "beats ArS ceiling",
        lambda arm: (
            ""
            if arm["method"] == "ars"
            else {None: NOTHING, True: "yes", False: "no"}[arm["beats_ars_ceiling"]]
        ),
    ),
)


def ceiling(summary: Summary, run: Run) -> list[str]:
    """Floors by memory traffic, or why there are none."""
    found = summary.get("ceiling")
    if not found:
        return []
    sizes, bandwidth, weak = found["forward_bytes"], found["bandwidth_bytes_per_s"], list[str]()
    said: Message | str = speedups.BANDWIDTH_UNKNOWN
    if found["regime"] == DISPATCH_BOUND:
        said = speedups.DispatchBound(found["cache_bytes"], bool(found.get("cache_shared")))
    elif bandwidth is not None:
        said, weak = speedups.BandwidthMeasured(bandwidth), judgement.weak(summary)
    text = f"{speedups.ForwardReads(sizes['target'], sizes['draft'])} {said}"
    table = IN_FULL.table(CEILING, found["arms"]) if found["regime"] == BANDWIDTH_BOUND else ""
    return paragraphs("## The ceiling", [text, *weak], table)


def hindsight(summary: Summary, run: Run) -> list[str]:
    """The bound on what a K per loop could gain."""
    lines: list[str] = []
    for found in summary.get("hindsight") or []:
        lines.append(f"* {escape(found['sampling'])}: {speedups.BestKInEveryLoop(found)}")
        lines += [f"  * {escape(PolicyAgainstFixedK(arm))}" for arm in found.get("adaptive", ())]
    return paragraphs("## Hindsight, a bound", lines, speedups.HINDSIGHT_NOTE) if lines else []


def tails(summary: Summary, run: Run) -> list[str]:
    """P50, P90 and P99 of latency by arm."""
    found = summary.get("tails")
    if not found:
        return []
    columns = [
        *_percentiles("sequence", "sequence_s"),
        *_percentiles(f"until {wording.counted(found['n_tokens'], 'token')}", "until_n_s"),
        right("mean ± sd s", entry("until_n_s", _spread)),
        right("paper's clock s", entry("paper_clock_s", _spread)),
        right("prompts slower", entry("share_slower", percent)),
    ]
    few = any(arm["p99_rests_on_few"] for arm in found["arms"])
    note = f"{speedups.TAILS_NOTE} {speedups.FEW_FOR_P99}" if few else speedups.TAILS_NOTE
    return paragraphs("## Tails", IN_FULL.table(columns, found["arms"]), note)


def _percentiles(title: str, name: str) -> list[Column]:
    def shown(spread: Spread | None, percentile: str) -> str:
        values: Mapping[str, Any] = spread or {}
        return number(values.get(percentile), 3)

    titles = {"p50": f"{title} P50 s", "p90": "P90 s", "p99": "P99 s"}
    return [right(heading, entry(name, shown, key)) for key, heading in titles.items()]


def _spread(values: MeanSd | None) -> str:
    return NOTHING if values is None else f"{values['mean']:.3f} ± {values['sd']:.3f}"


def positions(summary: Summary, run: Run) -> list[str]:
    """Mean acceptance length by where in the output a loop began."""
    found = summary.get("positions") or []
    bins = {(part["start"], part["end"]) for arm in found for part in arm["bins"]}
    if len(bins) < 2:
        return []

    def mean(start: int, arm: ArmPositions) -> str:
        parts = [part for part in arm["bins"] if part["start"] == start]
        return f"{parts[-1]['mean_acceptance_length']:.2f} ({parts[-1]['loops']})" if parts else NOTHING

    columns = [
        right(f"{start}+" if end is None else f"{start}-{end - 1}", partial(mean, start))
        for start, end in sorted(bins, key=lambda place: place[0])
    ]
    return paragraphs("### Along the output", IN_FULL.table(columns, found), speedups.POSITIONS_NOTE)
