"""What audits of engines of others found, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spsbench.report.tables import Table, left, right
from spsbench.report.wording import number
from spsbench.stats.losslessness import ALARM
from spsbench.summary_types import EngineAuditRow, Evidence, ReproFacts

EVERY = "every token"
"""The place of an alarm that shows everywhere."""

_WORDS = {"alarm": "ALARM", "quiet": "quiet", "undecided": "undecided"}
_MOST_FAILURES = 3


def audit_table(rows: Sequence[EngineAuditRow]) -> Table:
    """One row a setting; the leakage with its bound where nothing is impossible."""
    columns = [left("setting", whole=True), right("texts"), right("impossible")]
    columns += [right("leakage"), right("at most"), right("log10 e"), left("verdict")]
    return Table(columns, [_row(row) for row in rows])


def _row(row: EngineAuditRow) -> list[str]:
    leakage = row["leakage"]
    return [
        row["setting"],
        str(row["texts"]),
        str(row["impossible"]),
        f"{leakage['estimate']:.1%}" if not row["is_plain"] and leakage is not None else "-",
        f"{row['bound']:.1%}"
        if not row["is_plain"] and row["bound"] is not None and row["decision"] != ALARM
        else "-",
        number(row["log10_e_value"], 1),
        _WORDS[row["decision"]],
    ]


def audit_sentences(rows: Sequence[EngineAuditRow], bound: float | None) -> Iterator[str]:
    """What each row means, and where an alarm comes from."""
    for row in rows:
        yield f"{row['setting']}: {' '.join(_told(row, bound))}"


def _told(row: EngineAuditRow, bound: float | None) -> Iterator[str]:
    if row["decision"] == ALARM:
        yield f"not the target's distribution, known after {_texts(row['decided_after'])}."
        if row["place"] is not None:
            yield f"It shows at {row['place']}" + (f": the engine {row['law']}." if row["law"] else ".")
        yield from (f"{reason}." for reason in row["reasons"])
        yield from _located(row)
    elif row["decision"] == "quiet":
        leak = (
            f"; no leakage above {row['bound']:.1%}, and more is not shown"
            if not row["is_plain"] and row["bound"] is not None
            else ""
        )
        yield f"no alarm after {_texts(row['decided_after'])}{leak}."
    else:
        known = "" if row["bound"] is None else f", and at most {row['bound']:.1%} can leak"
        asked = "" if row["is_plain"] or bound is None else f"; {bound:.1%} was asked for"
        yield f"no alarm after {_texts(row['texts'])}{known}{asked}."
    if row["against"] is not None:
        yield f"Held against what the plain texts follow: {row['against']}."
    if row["retokenised"]:
        yield (
            f"{_texts(row['retokenised'])} came without ids and had to be tokenized again: where the engine "
            "drew other tokens of the same text, that alone can raise an alarm, and a quiet audit says less."
        )
    if row["failures"]:
        shown = "; ".join(list(dict.fromkeys(row["failures"]))[:_MOST_FAILURES])
        yield f"{len(row['failures'])} requests failed: {shown}."
    if row["gone"] is not None:
        yield f"The engine was given up: {row['gone']}."


def _located(row: EngineAuditRow) -> Iterator[str]:
    located = row["located"]
    if located is None:
        return
    for group, places in located["places"].items():
        notes = [
            f"{place['name']} {place['score_z']:+.1f}"
            + (f" ({place['impossible']} of {place['tokens']} impossible)" if place["impossible"] else "")
            for place in places
            if place["score_z"] is not None
        ]
        if notes:
            yield f"Log-score z by {group}: {', '.join(notes)}."
    if located["explanation"] is not None and row["place"] in (None, EVERY):
        best = located["laws"][0]
        left_over = f", {best['impossible']} tokens still impossible" if best["impossible"] else ""
        yield (
            f"Closest of the laws tried: {located['explanation']} "
            f"({best['nats']:.0f} nats likelier than what was asked for{left_over})."
        )


def interim(setting: str, count: int, texts: int, evidence: Evidence | None, bound: float | None) -> str:
    """One line on a setting that is being audited."""
    told = f"{setting}: {count} of {texts} texts"
    if evidence is None:
        return told
    if evidence["verdict"] == ALARM:
        return f"{told}, ALARM: {evidence['reasons'][0]}; more texts show where"
    known = "" if bound is None else f", leakage at most {bound:.1%}"
    return f"{told}, no alarm, e-value 10^{evidence['log10_e_value']:.1f} (alarm at 10^3){known}"


def _texts(count: int) -> str:
    return f"{count} text{'' if count == 1 else 's'}"


def repro_sentence(facts: ReproFacts, folder: Path) -> str:
    """Where the script is, and what it showed."""
    counted = sum(facts["observed"].values())
    p_value = "below 1e-300" if facts["p_value"] < 1e-300 else f"{facts['p_value']:.2g}"
    verdict = "shows it" if facts["clear"] else "does not show it clearly"
    return (
        f"{folder / facts['script']} {verdict}: {facts['setting']}, a prompt of {len(facts['context'])} ids, "
        f"output token {len(facts['prefix']) + 1}, {counted} draws, p-value {p_value}."
    )
