"""The report's sections on why this fast: the factors, the papers' predictions, the ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.predict.factors import ACCEPTANCE, CORRELATION, DRAFTING, END, LOOP_TIME, REST, VERIFYING
from spsbench.predict.residuals import residual_cause, residual_factors
from spsbench.predict.roofline import BANDWIDTH_BOUND, DISPATCH_BOUND
from spsbench.records import Interval
from spsbench.report import judgement, wording
from spsbench.report.naming import in_full
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import (
    ArmCeiling,
    ArmFactors,
    ArmPrediction,
    Ceiling,
    Estimate,
    SeriesPrediction,
    Summary,
)

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


SECTIONS = (why, theory, ceiling)
