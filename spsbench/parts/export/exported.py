"""What is exported of a run: its arms with their finished samples, prompt by prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
        samples = [sample for sample in store.samples() if sample.error is None]
    # From the journal: a summary that lies in the folder may be another's.
    summary = read_measured(directory).summary
    rows = {row["arm"]: row for row in summary["rows"]}
    arms = []
    for entry in entries:
        if (name := entry["arm"]) in rows:
            by_prompt = _by_prompt(prompts, [sample for sample in samples if sample.arm == name])
            arms.append(ArmSamples(name, entry, rows[name], by_prompt))
    return ExportedRun(directory.resolve().name, run, summary, arms)


def _by_prompt(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[tuple[Prompt, list[Sample]]]:
    """See ``ArmSamples``, of whose ``samples`` these are."""
    texts = {prompt.example_id: prompt.text for prompt in prompts}
    answers = {(sample.example_id, sample.sample_index): sample.generation.text for sample in samples}
    of_prompt: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        of_prompt[sample.example_id].append(sample)
    pairs: list[tuple[Prompt, list[Sample]]] = []
    for prompt in prompts:
        own = of_prompt[prompt.example_id]
        if (first := prompt.conversation) is None:
            pairs += [(prompt, own)] if own else []
            continue
        earlier = [first, *(f"{first}/{turn}" for turn in range(2, prompt.turn))]
        for sample in own:
            said = [f"{texts[turn]}{answers[turn, sample.sample_index]}\n" for turn in earlier]
            pairs.append((replace(prompt, text="".join([*said, prompt.text])), [sample]))
    return pairs
