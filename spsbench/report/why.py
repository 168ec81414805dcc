"""Does it pay and with which arm, why this fast, what theory says, and the tails of latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.axes import label, place
from spsbench.predict.factors import (
    ACCEPTANCE,
    CORRELATION,
    DRAFTING,
    END,
    LOOP_TIME,
    REST,
    SHORT,
    VERIFYING,
    residual_cause,
    residual_factors,
)
from spsbench.predict.roofline import BANDWIDTH_BOUND, DISPATCH_BOUND
from spsbench.records import Interval
from spsbench.report import judgement, wording
from spsbench.report.tables import Table, in_full, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import (
    AgainstBest,
    ArmCeiling,
    ArmFactors,
    ArmPositions,
    ArmPrediction,
    ArmTails,
    BreakEven,
    Ceiling,
    Estimate,
    MeanSd,
    SeriesPrediction,
    SpeedVerdict,
    Spread,
    Summary,
)

VERDICT_NOTE = (
    "Ratios of time per token, paired by prompt: how much faster the fastest arm is. Where the interval "
    "contains 1 the two cannot be told apart."
)


def verdicts(summary: Summary) -> list[tuple[str, str]]:
    """For every sampling and batch size a sentence with the answer, and what belongs beside it."""
    found = summary.get("verdict") or []
    return [(answer(entry, _scope(entry, found)), details(entry)) for entry in found]


def _scope(entry: SpeedVerdict, entries: Sequence[SpeedVerdict]) -> str:
    """What sets a verdict apart from the others, e.g. ``nucleus, B=4``; empty for a single one."""
    several = [len({other[axis] for other in entries}) > 1 for axis in ("sampling", "batch")]
    words = [entry["sampling"]] if several[0] else []
    return ", ".join([*words, f"B={entry['batch']}"] if several[1] else words)


def answer(entry: SpeedVerdict, scope: str = "") -> str:
    """Whether to use speculative sampling, with which arm, and what it gains."""
    gain = f"{wording.speedup(entry['speedup'])} per token"
    if entry["end_to_end"] is not None:
        gain += f", {wording.speedup(entry['end_to_end'])} end to end"
    name, where = _name(entry), f", {scope}" if scope else ""
    if entry["outcome"] == "pays":
        return f"Use {name}{where}: {gain}." if entry["others"] else f"{name}{where} pays: {gain}."
    fastest = f"{name}, the fastest of {entry['candidates']}," if entry["others"] else name
    if entry["outcome"] == "does not pay":
        return f"Does not pay here{where}: {fastest} ran {gain}.{_would(entry['break_even'])}"
    return f"No clear gain{where}: {fastest} ran {gain}.{_unclear(entry)}"


def details(entry: SpeedVerdict) -> str:
    """Which arms are as good, the largest loss, and what choosing on other prompts gave."""
    parts = [_alike(entry), _at_the_edge(entry), _elsewhere(entry)]
    if entry["binding"] is not None:
        parts.append(f"Largest loss: {SHORT[entry['binding']]}.")
    if entry["outcome"] == "pays" and entry["tail_s"]["chosen"]["p99"] >= entry["tail_s"]["ars"]["p99"]:
        parts.append("The slowest sequences gain nothing.")
    return " ".join(part for part in parts if part)


def _name(entry: SpeedVerdict) -> str:
    """The arm by its K alone where nothing else sets it apart from the others."""
    return f"K={entry['k']}" if _only_k(entry) else label(entry)


def _only_k(entry: SpeedVerdict) -> bool:
    here = place(entry, "k")
    return bool(entry["others"]) and all(place(other, "k") == here for other in entry["others"])


def _would(even: BreakEven | None) -> str:
    """From where on it would pay, all else as measured."""
    if even is None:
        return ""
    ways = []
    if even["c"] is not None and even["measured_c"] is not None:
        ways.append(f"c below {even['c']:.2f} (measured {even['measured_c']:.2f})")
    if even["alpha"] is not None:
        ways.append(f"alpha above {even['alpha']:.2f} (measured {even['measured_alpha']:.2f})")
    if not ways:
        return " Neither a better nor a cheaper draft is enough."
    return f" It would pay with {' or '.join(ways)}."


def _unclear(entry: SpeedVerdict) -> str:
    """Why there is no answer, and what gives one."""
    if entry["elsewhere"] is None and entry["others"] and entry["speedup"]["low"] is not None:
        few = f"{entry['prompts']} prompts are too few to choose among {entry['candidates']} arms"
        return f" {few}. Raise --limit."
    if entry["speedup"]["low"] is None:
        counted = f"{entry['prompts']} prompt{'' if entry['prompts'] == 1 else 's'}"
        return f" There is no interval over {counted}. Raise --limit."
    return " Raise --limit for a narrower interval."


def _alike(entry: SpeedVerdict) -> str:
    """The arms that the measurement cannot tell from the fastest."""
    if not entry["others"]:
        return ""
    alike = [other for other in entry["others"] if not other["slower"]]
    if not alike:
        return "Every other K is slower." if _only_k(entry) else "Every other arm is slower."
    if _only_k(entry):
        return f"{_ks(entry, alike)} cannot be told apart."
    if len(alike) > wording.MANY:
        return f"{len(alike)} of {len(entry['others'])} other arms cannot be told apart from it."
    return f"Cannot be told apart from it: {', '.join(label(other) for other in alike)}."


def _ks(entry: SpeedVerdict, alike: Sequence[AgainstBest]) -> str:
    """``K=2 to 5`` where every measured K between the ends belongs to it, else ``K=2, 3 and 6``."""
    measured = sorted([entry["k"], *(other["k"] for other in entry["others"])])
    ks = sorted([entry["k"], *(other["k"] for other in alike)])
    between = [k for k in measured if ks[0] <= k <= ks[-1]]
    if between == ks and len(ks) > 2:
        return f"K={ks[0]} to {ks[-1]}"
    return f"K={', '.join(map(str, ks[:-1]))} and {ks[-1]}"


def _at_the_edge(entry: SpeedVerdict) -> str:
    """That the sweep ended at the fastest K: a larger one was not tried."""
    ks = [other["k"] for other in entry["others"]]
    if entry["outcome"] != "pays" or not _only_k(entry) or entry["k"] < max(ks):
        return ""
    return f"K={entry['k']} is the largest that was measured; a larger K may be faster."


def _elsewhere(entry: SpeedVerdict) -> str:
    found = entry["elsewhere"]
    if found is None:
        return ""
    if found["low"] is None and found["ratio"] == 1.0:
        return "Chosen on one half of the prompts, ArS was the fastest."
    return (
        f"Chosen on one half of the prompts and measured on the other, both ways: {wording.speedup(found)}."
    )


def which(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The fastest arm against every other one, where there are several."""
    entries = [entry for entry in summary.get("verdict") or [] if entry["others"]]
    if not entries:
        return []
    lines = ["## Which K" if all(map(_only_k, entries)) else "## Which arm", ""]
    for entry in entries:
        scope = _scope(entry, summary.get("verdict") or [])
        lines += [f"**{escape(answer(entry, scope))}** {escape(details(entry))}", ""]
        lines += [*_against(entry).as_markdown(), ""]
    return [*lines, VERDICT_NOTE]


def _against(entry: SpeedVerdict) -> Table:
    columns = [left("instead"), right(f"{_name(entry)} is faster by", note="95%"), left("verdict")]
    cells = [
        [
            f"K={other['k']}" if _only_k(entry) else label(other),
            wording.speedup(other["gain"]),
            "slower" if other["slower"] else "cannot be told apart",
        ]
        for other in entry["others"]
    ]
    return Table(columns, cells)


Run = Mapping[str, Any]

EVIDENCE = {
    ACCEPTANCE: "alpha {alpha:.3f}: {tokens_per_loop:.2f} tokens per loop",
    CORRELATION: "{tokens_per_loop:.2f} tokens per loop measured",
    END: "{tokens_per_loop:.2f} tokens per loop kept",
    DRAFTING: "{draft_ms_per_token:.3g} ms a draft token, {target_ms:.3g} ms a target step, c {c:.3f}",
    VERIFYING: "{verify_ms:.3g} ms, {ratio:.2f} target steps",
    REST: "{sps_rest_ms:.3g} ms a loop, {sps_sample_ms:.3g} of it sampling; ArS {ars_rest_ms:.3g} ms a step",
    LOOP_TIME: "{loop_ms:.3g} ms a loop, {ars_step_ms:.3g} ms an ArS step",
}
WHY_NOTE = (
    "Each factor multiplies what stands above it, from K+1 (all accepted, one target step a loop and nothing "
    "else) down to the measured speedup, exactly. Acceptance is alpha_beta of this arm: it describes, and "
    "predicts nothing."
)
THEORY_NOTE = (
    "Leviathan et al. 2022: (1 - alpha^(K+1)) / (1 - alpha) / (K c + 1), with alpha by teacher forcing on "
    "ArS text (`alpha_leviathan`). Chen et al. 2023: r'(K+1) t_target / (K t_draft + t_target), with the "
    "measured r'. Residual: measured - predicted; its largest cause is the largest factor of measured over "
    "predicted (Leviathan) in the residual's direction. Both take verifying K+1 tokens as one target step. "
    "Operations: arithmetic per token as a multiple of ArS, by parameters. By replay: tokens per loop as the "
    "ArS texts alone tell them for this K, with the 95% interval over prompts, beside the measured ones."
)


def why(summary: Summary, run: Run) -> list[str]:
    """The factors of the fastest arm of each sampling, then all arms in one table."""
    entries = summary.get("why") or []
    if not entries:
        return []
    lines = ["## Why this fast, and not faster", ""]
    for entry in judgement.fastest(summary):
        lines += [f"**{escape(entry['sentence'])}**", "", *_factors(entry).as_markdown(), ""]
    if len(entries) > 1:
        lines += ["### Factors of every arm", "", *_every_arm(entries).as_markdown(), ""]
    return [*lines, WHY_NOTE]


def _factors(entry: ArmFactors) -> Table:
    cells = [["K+1", "", f"{entry['k'] + 1:.2f}x", "", ""]]
    for factor in entry["factors"]:
        evidence = EVIDENCE[factor["name"]].format_map(factor["evidence"])
        title = factor["title"] + (" (binding)" if factor["name"] == entry["binding"] else "")
        cells.append(
            [title, f"x{factor['factor']:.3f}", f"{factor['running']:.2f}x", evidence, factor["remedy"]]
        )
    columns = [left("factor"), right("value"), right("product"), left("evidence"), left("remedy")]
    return Table(columns, cells)


def _every_arm(entries: list[ArmFactors]) -> Table:
    names = list(dict.fromkeys(factor["name"] for entry in entries for factor in entry["factors"]))
    columns = [right("K+1"), *(right(name.replace("_", " ")) for name in names), right("speedup")]

    def cells(entry: ArmFactors) -> list[str]:
        values = {factor["name"]: factor["factor"] for factor in entry["factors"]}
        shown = [wording.number(values.get(name), 3) for name in names]
        return [str(entry["k"] + 1), *shown, f"{entry['speedup']:.2f}x"]

    return in_full().table(columns, entries, cells)


def theory(summary: Summary, run: Run) -> list[str]:
    """Predicted and measured speedups with the sign of what the theory misses, and the best K."""
    found = summary.get("prediction")
    if not found:
        return []
    columns = [*map(right, ("alpha", "c", "measured", "Leviathan", "residual")), left("largest cause")]
    columns += map(right, ("Chen", "residual", "operations factor", "tokens/loop", "by replay"))
    factors = {entry["arm"]: entry for entry in summary.get("why") or []}
    table = in_full().table(columns, found["arms"], lambda arm: _predicted(arm, factors.get(arm["arm"])))
    lines = ["## Theory", "", *table.as_markdown(), ""]
    notes = [text for sampling in found["samplings"] if (text := _best(sampling) + _loop(sampling))]
    return [*lines, *(f"* {escape(text.strip())}" for text in notes), *([""] if notes else []), THEORY_NOTE]


def _predicted(arm: ArmPrediction, factors: ArmFactors | None) -> list[str]:
    return [
        wording.number(arm["alpha"], 3),
        wording.number(arm["c"], 3),
        wording.number(arm["measured"], 2),
        wording.number(arm["predicted"], 2),
        _signed(arm["residual"]),
        _cause(arm, factors),
        wording.number(arm["chen"], 2),
        _signed(arm["chen_residual"]),
        wording.number(arm["operations_factor"], 2),
        wording.number(arm["tokens_per_loop_kept"], 2),
        _length(arm["tokens_per_loop_replayed"]),
    ]


def _cause(arm: ArmPrediction, factors: ArmFactors | None) -> str:
    """What does most for the residual of Leviathan's formula, with its factor."""
    parts = [] if factors is None else residual_factors(arm, factors)
    cause = residual_cause(arm["residual"], parts)
    return wording.NOTHING if cause is None else f"{cause['title']} (x{cause['factor']:.2f})"


def _length(found: Estimate | None) -> str:
    if found is None:
        return wording.NOTHING
    return wording.interval(Interval(found["estimate"], found["low"], found["high"]))


def _best(found: SeriesPrediction) -> str:
    if found["best_k"] is None:
        return ""
    text = f"{found['sampling']}: the theory's best K is {found['best_k']}, {found['best_speedup']:.2f}x"
    return f"{text}; at least {found['minimum_gain']:.2f}x from alpha and c alone. "


def _loop(found: SeriesPrediction) -> str:
    line = found["loop"]
    if line is None:
        return ""
    text = f"{found['sampling']}: a loop takes {line['intercept_ms']:.3g} + {line['slope_ms']:.3g} K ms"
    if line["drafting_ms_per_token"] is not None:
        text += f", drafting alone {line['drafting_ms_per_token']:.3g} ms per token"
    return f"{text}."


def ceiling(summary: Summary, run: Run) -> list[str]:
    """Floors by memory traffic, or why there are none."""
    found = summary.get("ceiling")
    if not found:
        return []
    lines = ["## The ceiling", "", *_regime(found)]
    if found["regime"] != BANDWIDTH_BOUND:
        return lines
    titles = ("ms/token", "floor", "share of floor", "best speedup")
    columns = [*map(right, titles), left("beats ArS ceiling")]
    return [*lines, "", *in_full().table(columns, found["arms"], _floors).as_markdown()]


def _floors(arm: ArmCeiling) -> list[str]:
    beats = arm["beats_ars_ceiling"]
    notes = wording.NOTHING if beats is None else "yes" if beats else "no"
    return [
        wording.milliseconds(arm["ms_per_token"]),
        wording.milliseconds(arm["floor_ms_per_token"]),
        wording.percent(arm["share"]),
        wording.number(arm["best_speedup"], 2),
        "" if arm["method"] == "ars" else notes,
    ]


def _regime(found: Ceiling) -> list[str]:
    sizes = found["forward_bytes"]
    draft = "" if sizes["draft"] is None else f", the draft {wording.mebibytes(sizes['draft'])}"
    text = f"A forward of the target reads {wording.mebibytes(sizes['target'])} of weights{draft}."
    if found["regime"] == DISPATCH_BOUND:
        return [f"{text} {_cached(found)}"]
    if found["bandwidth_bytes_per_s"] is None:
        return [f"{text} The memory bandwidth was not measured, so no floor is shown."]
    weak = judgement.weak(found)
    return [f"{text} Measured bandwidth: {found['bandwidth_bytes_per_s'] / 1e9:.3g} GB/s.", *weak]


def _cached(found: Ceiling) -> str:
    """Weights within the cache: stated as a condition where the cache may be shared."""
    size = wording.mebibytes(found["cache_bytes"])
    meaning = (
        "dispatch-bound: a speedup comes from fewer forwards to dispatch, not from less memory traffic, and "
        "no bandwidth ceiling applies."
    )
    if found.get("cache_shared"):
        return (
            f"The weights fit in the reported last-level cache ({size}). A hypervisor reports it, and other "
            f"guests of the host may share it. If it is available in full, the regime is {meaning}"
        )
    return f"The weights fit in the reported last-level cache ({size}), so the regime is {meaning}"


def _signed(value: float | None) -> str:
    return wording.NOTHING if value is None else f"{value:+.2f}"


TAILS_NOTE = (
    "Until N tokens: to the end of the loop that brings the N-th, over sequences that have so many. The "
    "paper's clock gives every loop the arm's mean loop time, so that its deviation comes from loop counts."
)


def hindsight(summary: Summary, run: Run) -> list[str]:
    """The bound on what a K per loop could gain."""
    found = summary.get("hindsight") or []
    if not found:
        return []
    lines = ["## Hindsight, a bound", ""]
    for entry in found:
        fixed = "ArS" if entry["best_k"] == 0 else f"the best fixed K={entry['best_k']}"
        lines.append(
            f"* {escape(entry['sampling'])}: the right K in every loop, known only afterwards, would have "
            f"taken {wording.milliseconds(entry['oracle_ms_per_token'])} ms/token against "
            f"{wording.milliseconds(entry['fixed_ms_per_token'])} for {fixed}: at most "
            f"{entry['gain_bound']:.2f}x faster, for K up to {entry['max_k']} (reached in "
            f"{wording.percent(entry['censored'])} of its loops)."
        )
        lines += [f"  * {escape(judgement.adapted(arm))}" for arm in entry.get("adaptive", ())]
    return [*lines, "", "No sampler can know this beforehand: a bound on adapting K, not a promise."]


def tails(summary: Summary, run: Run) -> list[str]:
    """P50, P90 and P99 of latency by arm."""
    found = summary.get("tails")
    if not found:
        return []
    n = found["n_tokens"]
    titles = [
        *("sequence P50 s", "P90 s", "P99 s"),
        *(f"until {n} tokens P50 s", "P90 s", "P99 s", "mean ± sd s", "paper's clock s", "prompts slower"),
    ]
    table = in_full().table([*map(right, titles)], found["arms"], _tail)
    lines = ["## Tails", "", *table.as_markdown(), ""]
    few = any(arm["p99_rests_on_few"] for arm in found["arms"])
    return [*lines, TAILS_NOTE + (" With fewer than 100 sequences P99 is nearly the slowest." if few else "")]


def _tail(arm: ArmTails) -> list[str]:
    whole, until, clock = arm["sequence_s"], arm["until_n_s"], arm["paper_clock_s"]
    return [
        *_quantiles(whole),
        *_quantiles(until),
        _spread(until),
        _spread(clock),
        wording.percent(arm["share_slower"]),
    ]


def _quantiles(found: Spread | None) -> list[str]:
    if found is None:
        return [wording.NOTHING] * 3
    return [wording.number(value, 3) for value in (found["p50"], found["p90"], found["p99"])]


def _spread(found: MeanSd | None) -> str:
    return wording.NOTHING if found is None else f"{found['mean']:.3f} ± {found['sd']:.3f}"


def positions(summary: Summary, run: Run) -> list[str]:
    """Mean acceptance length by where in the output a loop began."""
    found = summary.get("positions") or []
    starts = sorted(
        {(part["start"], part["end"]) for arm in found for part in arm["bins"]}, key=lambda place: place[0]
    )
    if len(starts) < 2:
        return []

    def cells(arm: ArmPositions) -> list[str]:
        at = {
            part["start"]: f"{part['mean_acceptance_length']:.2f} ({part['loops']})" for part in arm["bins"]
        }
        return [at.get(start, wording.NOTHING) for start, _ in starts]

    columns = [right(_bin(*place)) for place in starts]
    table = in_full().table(columns, found, cells)
    lines = ["### Along the output", "", *table.as_markdown(), ""]
    return [*lines, "`mean_acceptance_length` of the loops that began at these output tokens (how many)."]


def _bin(start: int, end: int | None) -> str:
    return f"{start}+" if end is None else f"{start}-{end - 1}"
