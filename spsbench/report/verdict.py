"""Does it pay, with which arm, and what is lost: what a reader needs first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.axes import label, place
from spsbench.predict.factors import SHORT
from spsbench.report import wording
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import escape
from spsbench.summary_types import AgainstBest, BreakEven, SpeedVerdict, Summary

NOTE = (
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


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The fastest arm against every other one, where there are several."""
    entries = [entry for entry in summary.get("verdict") or [] if entry["others"]]
    if not entries:
        return []
    lines = ["## Which K" if all(map(_only_k, entries)) else "## Which arm", ""]
    for entry in entries:
        scope = _scope(entry, summary.get("verdict") or [])
        lines += [f"**{escape(answer(entry, scope))}** {escape(details(entry))}", ""]
        lines += [*_against(entry).as_markdown(), ""]
    return [*lines, NOTE]


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
