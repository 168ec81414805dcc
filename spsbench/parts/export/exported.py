"""What is exported of a run: its arms with their finished samples, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.store import RunStore, read_summary

if TYPE_CHECKING:
    from spsbench.base import Prompt, Sample
    from spsbench.store import ArmRow, Summary


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """One arm of a run.

    Attributes:
        entry: as in run.json: axes and parameters.
        row: of the summary.
        by_prompt: each prompt with its finished samples, in the order in which they ran.
    """

    name: str
    entry: Mapping[str, Any]
    row: ArmRow
    by_prompt: list[tuple[Prompt, list[Sample]]]

    @property
    def sampling(self) -> dict[str, Any]:
        """``temperature`` is 0 for greedy decoding, as the field writes it."""
        drawn = self.entry.get("params") or {}
        if drawn.get("greedy"):
            return {"temperature": 0.0}
        return {name: drawn[name] for name in ("temperature", "top_p", "top_k") if drawn.get(name)}


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run with its own record and summary."""

    name: str
    run: Mapping[str, Any]
    summary: Summary
    arms: list[ArmSamples]


def read(directory: Path) -> ExportedRun:
    """Read a finished run, with every arm that has samples."""
    with RunStore.open(directory) as store:
        run, prompts, entries = store.run_info(), store.prompts(), store.arms()
        samples: dict[tuple[str, str], list[Sample]] = {}
        for sample in store.samples():
            if sample.error is None:
                samples.setdefault((sample.arm, sample.example_id), []).append(sample)
    summary = read_summary(directory)
    rows = {row["arm"]: row for row in summary["rows"]}

    def of(arm: str) -> Iterator[tuple[Prompt, list[Sample]]]:
        for prompt in prompts:
            if own := samples.get((arm, prompt.example_id)):
                yield prompt, own

    arms = [
        ArmSamples(entry["arm"], entry, rows[entry["arm"]], list(of(entry["arm"])))
        for entry in entries
        if entry["arm"] in rows
    ]
    return ExportedRun(directory.resolve().name, run, summary, arms)
