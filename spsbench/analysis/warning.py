"""What a reader must know before believing a table: sentences, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spsbench.axes import label

FEW_PROMPTS = 20
SUSPICIOUS_Z = 4.0


def warnings(
    rows: list[dict[str, Any]],
    losslessness: dict[str, Any] | None = None,
    parity: dict[str, Any] | None = None,
) -> list[str]:
    """The sentences that a summary gives reason for, none twice."""
    sentences = [*_few_prompts(rows), *(text for row in rows for text in _of_row(row))]
    for arm in (losslessness or {"arms": []})["arms"]:
        sentences += _of_evidence(arm)
    if parity is not None:
        sentences += _of_parity(parity, rows)
    return list(dict.fromkeys(sentences))


def _of_evidence(arm: dict[str, Any]) -> Iterator[str]:
    """Alarms of the recorded evidence, and greedy outputs that parted from greedy ArS."""
    name = f"{label(arm)}, {arm['sampling']}"
    kinds = {"self_consistency": "self-consistency", "rescored": "losslessness", "decisions": "re-derivation"}
    for kind, title in kinds.items():
        evidence = arm.get(kind)
        if evidence is not None and evidence["verdict"] == "alarm":
            yield (
                f"{name}: {title} fails: {'; '.join(evidence['reasons'])}. Do not use these numbers; run "
                "`spsbench verify`."
            )
    same = arm["identity"]
    if same is not None and same["identical"] < 1:
        first = same["first_divergence"]
        yield (
            f"{name}: {100 * same['identical']:.0f}% of {same['sequences']} outputs are identical to ArS; "
            f"the first to part is {first['example_id']} at token {first['position']}. A numeric tie or a "
            "bug: `spsbench verify` tells."
        )


def _of_parity(parity: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """Arms that score differently, which no lossless sampler does beyond chance."""
    labels = {row["arm"]: f"{label(row)}, {row['sampling']}" for row in rows}
    for found in parity["comparisons"]:
        if found["verdict"] == "different":
            interval = f"{found['difference']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"
            yield (
                f"{labels[found['arm']]}: its {parity['metric']} differs from that of ArS by {interval}. One "
                "lossless run in twenty does this by chance; repeat with another --seed."
            )


def _few_prompts(rows: list[dict[str, Any]]) -> Iterator[str]:
    counts = [row["paired_prompts"] for row in rows if row["speedup"] is not None]
    if counts and min(counts) < FEW_PROMPTS:
        noun = "prompt" if min(counts) == 1 else "prompts"
        yield (
            f"The speedup rests on {min(counts)} {noun}: an interval over fewer than {FEW_PROMPTS} covers "
            "less than it says. Raise --limit."
        )


def _of_row(row: dict[str, Any]) -> Iterator[str]:
    name = f"{label(row)}, {row['sampling']}"
    if row["failed"]:
        total = row["failed"] + row["sequences"]
        yield (
            f"{name}: {row['failed']} of {total} sequences failed and are left out. "
            "Their errors are in samples.jsonl; --resume tries them again."
        )
    if row["missing"]:
        yield f"{name}: {row['missing']} sequences have not been run. Continue with --resume."
    if row["method"] != "ars" and row["baseline"] is None:
        yield f"{name}: no ArS arm to compare with, so no speedup. Run with --arms ars,sps."
    elif row["speedup"] is None and row["baseline"] is not None:
        yield f"{name}: no prompt was finished by it and by ArS, so no speedup. Continue with --resume."
    yield from _of_timing(row, name)


def _of_timing(row: dict[str, Any], name: str) -> Iterator[str]:
    if row["drifted"]:
        first, second = row["speedup_halves"]
        yield (
            f"{name}: the speedup was {first:.2f}x in the first half of the run and {second:.2f}x in the "
            "second, outside its interval. Repeat on a quiet machine; one steady run in twenty does "
            "this by chance."
        )
    score = row["acceptance_z"]
    if score is not None and abs(score) > SUSPICIOUS_Z:
        yield (
            f"{name}: alpha_tested and alpha_beta differ by {abs(score):.1f} standard errors, so tokens were "
            "not accepted by the stated rule. Do not use these numbers; run `spsbench verify`."
        )
