"""Later turns of conversations: a prompt that follows from what an arm has answered itself.

A plan has a prompt without ids for each; its ids are built when the arm's earlier turns are in the journal,
and are kept there with the sample, so that what reads or times a text again has the prompt that the arm had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from spsbench.base.errors import UsageError
from spsbench.base.records import Prompt, Sample
from spsbench.tasks.task import Task, TaskData, TextTokenizer

if TYPE_CHECKING:
    from spsbench.runner.plan import Plan
    from spsbench.runner.stopping import Turn
    from spsbench.store import RunStore


class WithLater(NamedTuple):
    """The prompts of a run with those of later turns, each behind the turn before.

    Attributes:
        later: how many later turns are asked.
        unfitting: how many are not, since with the longest answers before them they might not fit the window.
        most_tokens: of a later turn's prompt.
    """

    prompts: tuple[Prompt, ...]
    later: int = 0
    unfitting: int = 0
    most_tokens: int = 0


def with_later_turns(
    task: Task,
    data: TaskData,
    firsts: Sequence[Prompt],
    tokenizer: TextTokenizer,
    room: int,
    max_new_tokens: int,
) -> WithLater:
    """Put the later turns of each conversation behind its first.

    Whether a turn is asked must not depend on what an arm answers, or arms would be compared on other turns:
    it is asked of all arms if it fits behind answers of full length.

    Args:
        room: tokens that a prompt may have.
    """
    prompts, most, unfitting = list[Prompt](), 0, 0
    for example, first in zip(data.examples, firsts, strict=True):
        prompts.append(first)
        found = task.conversation(example, first)
        for count in range(1, len(found.later) + 1 if found is not None else 1):
            assert found is not None
            prompt = found.prompt(first, [""] * count, tokenizer)
            tokens = len(prompt.ids) + count * max_new_tokens
            if tokens > room:
                unfitting += len(found.later) + 1 - count
                break
            prompts.append(replace(prompt, ids=()))
            most = max(most, min(len(prompt.ids) + _AGAIN * count * max_new_tokens, room))
    names = set[str]()
    for prompt in prompts:
        if prompt.example_id in names:
            why = f"{prompt.example_id!r} is the name of a later turn and of another prompt."
            raise UsageError(why, flag="TASK", remedy="Give the conversation another id.")
        names.add(prompt.example_id)
    return WithLater(tuple(prompts), len(prompts) - len(firsts), unfitting, most)


_AGAIN = 3
"""As many tokens as one of an answer may become when its text is read: a byte that is no character comes back
as the three bytes of U+FFFD."""


class Unasked(Exception):
    """A turn that an arm cannot be asked; the message is the sentence that its sample records."""


@dataclass(frozen=True, slots=True)
class Dialogues:
    """Has what every arm was asked and answered."""

    plan: Plan
    store: RunStore

    def asked(self, turn: Turn) -> Turn:
        """The turn with what this arm is asked: of a later one with its own answers.

        Raises:
            Unasked: an earlier turn has no answer, or the prompt is longer than what there is room for.
        """
        if turn.prompt.conversation is None:
            return turn
        before = self._sample(turn.prompt.example_id, turn)
        ids = None if before is None else before.prompt_ids
        prompt = self._built(turn) if ids is None else replace(turn.prompt, ids=tuple(ids))
        return replace(turn, prompt=prompt)

    def _built(self, turn: Turn) -> Prompt:
        plan, name = self.plan, turn.prompt.conversation
        example = next(each for each in plan.data.examples if each.example_id == name)
        first = next(each for each in plan.prompts if each.example_id == name)
        found = plan.task.conversation(example, first)
        assert found is not None
        prompt = found.prompt(first, [*self._answers(turn)], plan.tokenizer)
        if len(prompt.ids) > plan.longest:
            raise Unasked(
                f"the prompt with its own answers has {len(prompt.ids)} tokens, and there is room for "
                f"{plan.longest}"
            )
        return prompt

    def _answers(self, turn: Turn) -> Iterator[str]:
        """What this arm has answered to each turn before."""
        name = turn.prompt.conversation
        for number in range(1, turn.prompt.turn):
            sample = self._sample(name if number == 1 else f"{name}/{number}", turn)
            if sample is None:
                raise Unasked(f"its turn {number} has no answer")
            yield sample.generation.text

    def _sample(self, example_id: str | None, turn: Turn) -> Sample | None:
        """What this arm wrote to another turn; None if it did not, or failed."""
        try:
            sample = self.store.first((str(example_id), turn.sample_index, turn.arm.name))
        except KeyError:
            return None
        return sample if sample.error is None else None
