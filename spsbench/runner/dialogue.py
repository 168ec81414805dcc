"""Later turns of conversations: a prompt that follows from what an arm has answered itself.

A plan has a prompt without ids for each; its ids are built when the arm's earlier turns are in the journal,
and are kept there with the sample, so that what reads or times a text again has the prompt that the arm had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spsbench.base.records import Prompt, Sample

if TYPE_CHECKING:
    from spsbench.runner.planning import Plan
    from spsbench.runner.turns import Turn
    from spsbench.store import RunStore


class Unasked(Exception):
    """A turn that an arm cannot be asked; the message is the sentence that its sample records."""


@dataclass(frozen=True, slots=True)
class Dialogues:
    """Has what every arm was asked and answered."""

    plan: Plan
    store: RunStore

    def asked(self, turn: Turn) -> Turn:
        """Return the turn with this arm's prompt, which holds its own answers to earlier turns.

        Raises:
            Unasked: an earlier turn has no answer, or the prompt is longer than what there is room for.
        """
        if turn.prompt.conversation is None:
            return turn
        before = self._finished_sample(turn.prompt.example_id, turn)
        ids = None if before is None else before.prompt_ids
        prompt = self._build_prompt(turn) if ids is None else replace(turn.prompt, ids=tuple(ids))
        return replace(turn, prompt=prompt)

    def _build_prompt(self, turn: Turn) -> Prompt:
        plan, name = self.plan, turn.prompt.conversation
        example = next(each for each in plan.data.examples if each.example_id == name)
        first = next(each for each in plan.prompts if each.example_id == name)
        conversation = plan.task.conversation(example, first)
        assert conversation is not None
        prompt = conversation.prompt(first, [*self._earlier_answers(turn)], plan.tokenizer)
        if len(prompt.ids) > plan.longest:
            raise Unasked(
                f"the prompt with its own answers has {len(prompt.ids)} tokens, and there is room for "
                f"{plan.longest}"
            )
        return prompt

    def _earlier_answers(self, turn: Turn) -> Iterator[str]:
        name = turn.prompt.conversation
        for number in range(1, turn.prompt.turn):
            sample = self._finished_sample(name if number == 1 else f"{name}/{number}", turn)
            if sample is None:
                raise Unasked(f"its turn {number} has no answer")
            yield sample.generation.text

    def _finished_sample(self, example_id: str | None, turn: Turn) -> Sample | None:
        try:
            sample = self.store.first((str(example_id), turn.sample_index, turn.arm.name))
        except KeyError:
            return None
        return sample if sample.error is None else None
