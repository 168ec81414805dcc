"""What is exported of a run: its arms with their finished samples, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import read as read_measured
from spsbench.store import RunStore

if TYPE_CHECKING:
    from spsbench.base import Prompt, Sample
    from spsbench.store import ArmRow, Summary


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """One arm of a run.

    Attributes:
        entry: as in run.json: axes and parameters.
        row: of the summary.
        by_prompt: each prompt with its finished samples, in the order in which they ran. The text of a later
            turn's is all that was said before an answer, so each of its samples has its own.
    """

    name: str
    entry: Mapping[str, Any]
    row: ArmRow
    by_prompt: list[tuple[Prompt, list[Sample]]]

    @property
    def sampling(self) -> dict[str, Any]:
        """The arm's sampling; ``temperature`` is 0 for greedy decoding, as the field writes it."""
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
        run = store.run_info()
        prompts = store.prompts()
        entries = store.arms()
        samples: dict[tuple[str, str], list[Sample]] = {}
        for sample in store.samples():
            if sample.error is None:
                samples.setdefault((sample.arm, sample.example_id), []).append(sample)
    # From the journal: a summary that lies in the folder may be another's.
    summary = read_measured(directory).summary
    rows = {row["arm"]: row for row in summary["rows"]}

    texts = {prompt.example_id: prompt.text for prompt in prompts}

    def of(arm: str) -> Iterator[tuple[Prompt, list[Sample]]]:
        answers = {
            (example, sample.sample_index): sample.generation.text
            for (name, example), attempts in samples.items()
            for sample in attempts
            if name == arm
        }
        for prompt in prompts:
            arm_samples = samples.get((arm, prompt.example_id), [])
            if prompt.conversation is not None:
                for sample in arm_samples:
                    conversation = _said(prompt, sample.sample_index, texts, answers)
                    yield replace(prompt, text=conversation), [sample]
            elif arm_samples:
                yield prompt, arm_samples

    arms = [
        ArmSamples(entry["arm"], entry, rows[entry["arm"]], list(of(entry["arm"])))
        for entry in entries
        if entry["arm"] in rows
    ]
    return ExportedRun(directory.resolve().name, run, summary, arms)


def _said(
    prompt: Prompt, sample_index: int, texts: Mapping[str, str], answers: Mapping[tuple[str, int], str]
) -> str:
    """Return all messages of a conversation up to a later turn, with the arm's own answers."""
    first = str(prompt.conversation)
    conversation = ""
    for name in (first, *(f"{first}/{turn}" for turn in range(2, prompt.turn))):
        conversation += f"{texts[name]}{answers[name, sample_index]}\n"
    return conversation + prompt.text
