"""The report's sections on whether to believe it: losslessness and parity of quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.axes import label, place
from spsbench.report import judgement, wording
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import escape
from spsbench.stats.losslessness import leakage_bound
from spsbench.summary_types import ArmLosslessness, Evidence, Leakage, ParityComparison, Solved, Summary

Run = Mapping[str, Any]

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
PARITY_LEGEND = (
    "Paired by prompt. Equivalent: two one-sided tests put the difference within the margin (p < .05). "
    "Different: the interval leaves out 0. Normalised: (ArS - SpS) / (ArS - draft alone)."
)


def losslessness(summary: Summary, run: Run) -> list[str]:
    """The evidence per arm and kind, the verdicts, and what each kind can show."""
    judged = summary["losslessness"]
    if judged is None:
        return []
    cells = [
        _evidence(f"{label(arm)}, {arm['sampling']}", title, found)
        for arm in judged["arms"]
        for kind, title in judgement.KINDS.items()
        if (found := arm[kind]) is not None
    ]
    columns = [
        *(left("arm"), left("evidence"), right("sequences"), right("positions")),
        *(right("leakage", note="95%"), right("at most (95%)"), right("log10 e-value")),
        *(right("log-score z"), right("transform p"), right("impossible"), left("verdict")),
    ]
    lines = ["## Losslessness", ""]
    lines += [*Table(columns, cells).as_markdown(), ""] if cells else []
    for arm in judged["arms"]:
        bound = None if judgement.is_confirmed(arm) else arm.get("bound")
        reasons = f": {'; '.join(arm['reasons'])}" if arm["reasons"] else ""
        verdict = judgement.worded(arm["verdict"], bound) + reasons
        lines.append(f"* {escape(label(arm))}, {escape(arm['sampling'])}: {escape(verdict)}.")
    lines += [*_decisions(judged["arms"]), *_drawn(judged["arms"])]
    return [*lines, "", LOSSLESSNESS_LEGEND] if cells else lines


def _decisions(arms: list[ArmLosslessness]) -> list[str]:
    """Per arm what came of deriving its decisions again, of the sequences drawn for it too."""
    found = [(f"{label(arm)}, {arm['sampling']}", arm.get("decisions")) for arm in arms]
    found += [
        (f"{label(arm)}, at temperature 1", made["decisions"])
        for arm in _proved(arms)
        if (made := arm["proof"])
    ]
    cells = [
        [
            name,
            f"{notes['sequences']} ({wording.percent(notes['share'])})",
            *(f"{notes[column]:,}" for column in ("decisions", "rounding", "contradicted")),
            f"{notes['closest']:.1e}",
            notes["dtype"],
            "as recorded" if notes.get("recorded") else "independent",
            "exact" if notes["exact"] else notes["verdict"],
        ]
        for name, notes in found
        if notes is not None
    ]
    numbers = ("sequences", "decisions", "only by rounding", "contradicted", "closest")
    table = Table(
        [left("arm"), *map(right, numbers), *map(left, ("dtype", "draft's rows", "verdict"))], cells
    )
    return ["", *table.as_markdown(), "", DECISIONS_LEGEND] if cells else []


def _proved(arms: list[ArmLosslessness]) -> list[ArmLosslessness]:
    """One arm of each way of drafting for which sequences were drawn: they do not depend on the sampling."""
    return list({place(arm, "sampling"): arm for arm in arms if arm.get("proof")}.values())


def _drawn(arms: list[ArmLosslessness]) -> list[str]:
    """What the sequences that were drawn at temperature 1 say of leakage."""
    sentences = [(label(arm), judgement.proof([arm])) for arm in _proved(arms)]
    lines = [f"* {escape(name)}: {escape(text)}" for name, text in sentences if text]
    return ["", *lines] if lines else []


def _evidence(name: str, title: str, kind: Evidence) -> list[str]:
    leakage, score, cells = kind["leakage"], kind["log_score"], kind["transform"]
    return [
        name,
        title,
        f"{kind['sequences']} ({wording.percent(kind['share'])})",
        str(kind["positions"]),
        wording.NOTHING if leakage is None else _estimate(leakage),
        wording.NOTHING if leakage is None else judgement.bound(leakage["bound"]),
        wording.number(kind["log10_e_value"], 1),
        wording.number(None if score is None else score["z"], 1),
        wording.number(None if cells is None else cells["p_value"], 3),
        str(kind["impossible"]),
        judgement.worded(kind["verdict"], leakage_bound(kind)),
    ]


def _estimate(leakage: Leakage) -> str:
    estimate, low, high = (judgement.share(leakage[name]) for name in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def parity(summary: Summary, run: Run) -> list[str]:
    """Quality against ArS, with the margin, the power, and how much the target is worth."""
    judged = summary["parity"]
    if judged is None or not judged["comparisons"]:
        return []
    names = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in summary["rows"]}
    digits = wording.difference_digits(judged["metric"])
    columns = [
        *(left("arm"), right("prompts"), right("ArS"), right("arm"), right("difference", note="95%")),
        *(right("normalised"), right("margin"), right("TOST p"), left("verdict")),
    ]
    same = judgement.identical(summary)
    cells = [
        [
            names[found["arm"]],
            str(found["prompts"]),
            *(wording.number(found[name], digits) for name in ("baseline_mean", "arm_mean")),
            _difference(found, digits),
            wording.number(found["normalised_difference"], 3),
            f"±{found['margin']:.{digits}f}",
            wording.number(found["tost_p_value"], 3),
            judgement.verdict_name(found, identical=found["arm"] in same),
        ]
        for found in judged["comparisons"]
    ]
    lines = [f"## Parity of {escape(wording.metric_title(judged['metric']))}", ""]
    lines += [*Table(columns, cells).as_markdown(), ""]
    notes = [*judgement.parity(summary), *judgement.advantages(summary)]
    notes += [
        _solved(names[found["arm"]], found["solved"]) for found in judged["comparisons"] if found["solved"]
    ]
    if not judged["target_over_draft"]:
        notes.append("How much better the target is than the draft alone: --arms ars,sps,draft measures it.")
    return [*lines, *(f"* {escape(text)}" for text in notes), "", PARITY_LEGEND]


def _difference(found: ParityComparison, digits: int) -> str:
    if found["difference"] is None:
        return wording.NOTHING
    interval = "" if found["low"] is None else f" [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
    return f"{found['difference']:+.{digits}f}{interval}"


def _solved(name: str, solved: Solved) -> str:
    test = solved["reason"] if solved["p_value"] is None else f"McNemar p {solved['p_value']:.3f}"
    return (
        f"{name}: problems solved by any sample: {solved['both']} by both, {solved['only_ars']} by ArS "
        f"alone, {solved['only_sps']} by SpS alone; {test}."
    )
