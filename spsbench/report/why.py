"""Does it pay and with which arm, why this fast, what theory says, and the tails of latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from spsbench.base.axes import EAGER, MODIFIED_REJECTION, label, place
from spsbench.report import judgement, wording
from spsbench.report.measured import series_name
from spsbench.report.tables import IN_FULL, Column, Table, bullets, entry, left, paragraphs, right, table_of
from spsbench.report.wording import NOTHING, Run, escape, milliseconds, number, percent, signed, speedup
from spsbench.stats.conditions import contention_reasons, more_prompts
from spsbench.stats.messages.factors import JUDGING, TEXTS
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

VERDICT_NOTE = (
    "Ratios of time per token, paired by prompt: how much faster the fastest arm is. Where the interval "
    "contains 1 the two cannot be told apart."
)


def verdicts(summary: Summary) -> list[tuple[str, str]]:
    """For every sampling and batch size a sentence with the answer, and what belongs beside it."""
    found = summary.get("verdict") or []
    more = more_prompts(summary["rows"], summary.get("data"))
    reasons = contention_reasons(summary)
    return [(answer(each, _scope(each, found), more, reasons), details(each)) for each in found]


def _scope(verdict: SpeedVerdict, verdicts: Sequence[SpeedVerdict]) -> str:
    """What sets a verdict apart from the others, e.g. ``nucleus, B=4``; empty for a single one."""
    samplings, batches = ({other[axis] for other in verdicts} for axis in ("sampling", "batch"))
    words = [verdict["sampling"]] if len(samplings) > 1 else []
    return ", ".join([*words, f"B={verdict['batch']}"] if len(batches) > 1 else words)


_LIKELY = {"pays": "Probably pays", "does not pay": "Probably does not pay"}


def answer(
    verdict: SpeedVerdict, scope: str = "", more: str = "Raise --limit", reasons: Sequence[str] = ()
) -> str:
    """Whether to use speculative sampling, with which arm, and what it gains; how to get ``more`` prompts.

    ``reasons`` are those of ``lost_share``, see ``contention_reasons``.
    """
    by = contention_named(reasons)
    gain = f"{speedup(verdict['speedup'])} per token"
    if verdict["end_to_end"] is not None:
        gain += f", {speedup(verdict['end_to_end'])} end to end"
    name, where = _name(verdict), f", {scope}" if scope else ""
    if (leaning := verdict.get("leaning")) is not None:
        likely = _LIKELY.get(leaning, "No clear gain")
        about = f"{name} ran about {wording.times(verdict['speedup']['ratio'])} per token"
        lost = judgement.share(verdict["lost_share"])
        return f"{likely}{where}: {about}; {by} took {lost} of the time."
    if verdict["outcome"] == "unclear" and "lost_share" in verdict:
        taken = f"{by} took {judgement.share(verdict['lost_share'])} of the time"
        ran = f"{_fastest(verdict)} ran about {wording.times(verdict['speedup']['ratio'])} per token"
        none = verdict["speedup"]["low"] is None and verdict["lost_share"] < 1.0  # not for CPU contention
        fewer = _too_few(verdict, more) or (_unclear(verdict, more) if none else "")
        return f"No clear gain{where}: {ran}; {taken}.{fewer}"
    if verdict["outcome"] == "pays":
        return f"Use {name}{where}: {gain}." if verdict["others"] else f"{name}{where} pays: {gain}."
    if verdict["outcome"] == "does not pay":
        return f"Does not pay here{where}: {_fastest(verdict)} ran {gain}.{_needed_draft(verdict)}"
    return f"No clear gain{where}: {_fastest(verdict)} ran {gain}.{_unclear(verdict, more)}"


def details(verdict: SpeedVerdict) -> str:
    """Which arms are as good, the largest loss, and what choosing on other prompts gave."""
    if verdict["outcome"] == "unclear" and "lost_share" in verdict:
        return ""  # CPU contention is no reason of an arm's
    parts = [_alike(verdict)]
    ks = [other["k"] for other in verdict["others"]]
    if verdict["outcome"] == "pays" and _only_k(verdict) and verdict["k"] >= max(ks):
        parts.append(f"K={verdict['k']} is the largest that was measured; a larger K may be faster.")
    elsewhere, chosen = verdict["elsewhere"], "Chosen on one half of the prompts"
    if elsewhere is not None and elsewhere["low"] is None and elsewhere["ratio"] == 1.0:
        parts.append(f"{chosen}, ArS was the fastest.")
    elif elsewhere is not None:
        parts.append(f"{chosen} and measured on the other, both ways: {speedup(elsewhere)}.")
    if verdict["binding"] is not None:
        parts.append(f"Largest loss: {TEXTS[verdict['binding']].short}.")
    tail = verdict["tail_s"]
    if verdict["outcome"] == "pays" and tail["chosen"]["p99"] >= tail["ars"]["p99"]:
        parts.append("The slowest sequences gain nothing.")
    return " ".join(part for part in parts if part)


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


def _needed_draft(verdict: SpeedVerdict) -> str:
    """Say with which c or alpha an arm that does not pay would; empty where that is unknown."""
    even = verdict["break_even"]
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


def _unclear(verdict: SpeedVerdict, more: str) -> str:
    if too_few := _too_few(verdict, more):
        return too_few
    if verdict["speedup"]["low"] is None:
        return f" There is no interval over {wording.counted(verdict['prompts'], 'prompt')}. {more}."
    return f" {more} for a narrower interval."


def _too_few(verdict: SpeedVerdict, more: str) -> str:
    """Say that there are too few prompts to choose an arm on some and measure it on others."""
    if not verdict["others"] or verdict["prompts"] >= FEWEST_PROMPTS:
        return ""
    return (
        f" Choosing among {verdict['candidates']} arms takes {FEWEST_PROMPTS} prompts; these are "
        f"{verdict['prompts']}. {more}."
    )


def _alike(verdict: SpeedVerdict) -> str:
    others = verdict["others"]
    alike = [other for other in others if not other["slower"]]
    if not alike:
        noun = "K" if _only_k(verdict) else "arm"
        return f"Every other {noun} is slower." if others else ""
    if not _only_k(verdict):
        if len(alike) > wording.MANY:
            return f"{len(alike)} of {len(others)} other arms cannot be told apart from it."
        return f"Cannot be told apart from it: {', '.join(label(other) for other in alike)}."
    ks = sorted([verdict["k"], *(other["k"] for other in alike)])
    between = [k for k in (verdict["k"], *(other["k"] for other in others)) if ks[0] <= k <= ks[-1]]
    shown = f"{', '.join(map(str, ks[:-1]))} and {ks[-1]}"
    if sorted(between) == ks and len(ks) > 2:  # every measured K between the ends belongs to it
        shown = f"{ks[0]} to {ks[-1]}"
    return f"K={shown} cannot be told apart."


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
    return paragraphs(f"## Which {noun}", *parts, VERDICT_NOTE)


WHY_NOTE = (
    "Each factor multiplies what stands above it, from K+1 (all accepted, one target step a loop and nothing "
    "else) down to the measured speedup, exactly. Acceptance is alpha_beta of this arm: it describes, and "
    "predicts nothing."
)
_AT_ONCE = (
    "Verifying and judging: where a CUDA graph does a forward and what follows it at once, a target step is "
    "the forward and the draw of an ArS step together."
)


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
    note = f"{WHY_NOTE} {_AT_ONCE}" if at_once else WHY_NOTE
    return paragraphs("## Why this fast, and not faster", *parts, note)


def _left_by_the_rule(summary: Summary, arm: ArmFactors) -> Iterator[str]:
    """What the best rule would accept of the same drafts, where the interval says that it is more."""
    for row in summary["rows"]:
        found = row.get("share_of_optimum") if row["arm"] == arm["arm"] else None
        most = None if found is None else found["high"]
        if most is not None and most < 1 and row["rule"] == MODIFIED_REJECTION and row["engine"] == EAGER:
            yield (
                f"{wording.share_of_optimum(row)} of the tokens that the best lossless rule (block "
                "verification) would accept of these drafts on average: `--rule block`."
            )


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


THEORY_NOTE = (
    "Leviathan et al. 2022: (1 - alpha^(K+1)) / (1 - alpha) / (K c + 1), with alpha by teacher forcing on "
    "ArS text (`alpha_leviathan`). Chen et al. 2023: r'(K+1) t_target / (K t_draft + t_target), with the "
    "measured r'. Residual: measured - predicted; its largest cause is the largest factor of measured over "
    "predicted (Leviathan) in the residual's direction. Both take verifying K+1 tokens as one target step. "
    "Operations: arithmetic per token as a multiple of ArS, by parameters. By replay: tokens per loop as the "
    "ArS texts alone tell them for this K, with the 95% interval over prompts, beside the measured ones."
)


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
    return paragraphs("## Theory", IN_FULL.table(columns, found["arms"]), notes, THEORY_NOTE)


def cause(residual: Residual | None) -> str:
    return NOTHING if residual is None else f"{residual['title']} (x{residual['factor']:.2f})"


def _best(series: SeriesPrediction) -> str:
    name, line, sentences = series_name(series), series["loop"], []
    if series["best_k"] is not None:
        text = f"{name}: the theory's best K is {series['best_k']}, {series['best_speedup']:.2f}x"
        sentences.append(f"{text}; at least {series['minimum_gain']:.2f}x from alpha and c alone.")
    if line is not None:
        text = f"{name}: a loop takes {wording.loop_line(line)}"
        if line["drafting_ms_per_token"] is not None:
            text += f", drafting alone {line['drafting_ms_per_token']:.3g} ms per token"
        sentences.append(f"{text}.")
    return " ".join(sentences)


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
    draft = "" if sizes["draft"] is None else f", the draft {wording.mebibytes(sizes['draft'])}"
    text = f"A forward of the target reads {wording.mebibytes(sizes['target'])} of weights{draft}."
    if found["regime"] == DISPATCH_BOUND:
        so = ", so"
        if found.get("cache_shared"):
            so = (
                ". A hypervisor reports it, and other guests of the host may share it. If it is available in "
                "full,"
            )
        text += (
            f" The weights fit in the reported last-level cache ({wording.mebibytes(found['cache_bytes'])})"
            f"{so} the regime is dispatch-bound: a speedup comes from fewer forwards to dispatch, not from "
            "less memory traffic, and no bandwidth ceiling applies."
        )
    elif bandwidth is None:
        text += " The memory bandwidth was not measured, so no floor is shown."
    else:
        text, weak = f"{text} Measured bandwidth: {bandwidth / 1e9:.3g} GB/s.", judgement.weak(summary)
    table = IN_FULL.table(CEILING, found["arms"]) if found["regime"] == BANDWIDTH_BOUND else ""
    return paragraphs("## The ceiling", [text, *weak], table)


def hindsight(summary: Summary, run: Run) -> list[str]:
    """The bound on what a K per loop could gain."""
    lines: list[str] = []
    for found in summary.get("hindsight") or []:
        fixed = "ArS" if found["best_k"] == 0 else f"the best fixed K={found['best_k']}"
        lines.append(
            f"* {escape(found['sampling'])}: the right K in every loop, known only afterwards, would have "
            f"taken {milliseconds(found['oracle_ms_per_token'])} ms/token against "
            f"{milliseconds(found['fixed_ms_per_token'])} for {fixed}: at most {found['gain_bound']:.2f}x "
            f"faster, for K up to {found['max_k']} (reached in {percent(found['censored'])} of its loops)."
        )
        lines += [f"  * {escape(judgement.adapted(arm))}" for arm in found.get("adaptive", ())]
    note = "No sampler can know this beforehand: a bound on adapting K, not a promise."
    return paragraphs("## Hindsight, a bound", lines, note) if lines else []


TAILS_NOTE = (
    "Until N tokens: to the end of the loop that brings the N-th, over sequences that have so many. The "
    "paper's clock gives every loop the arm's mean loop time, so that its deviation comes from loop counts."
)


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
    note = TAILS_NOTE + (" With fewer than 100 sequences P99 is nearly the slowest." if few else "")
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
    note = "`mean_acceptance_length` of the loops that began at these output tokens (how many)."
    return paragraphs("### Along the output", IN_FULL.table(columns, found), note)
