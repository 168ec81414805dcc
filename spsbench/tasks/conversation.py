"""A conversation of several turns, each after the model's own answer to the turn before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import UsageError
from spsbench.base.records import Prompt
from spsbench.tasks.thoughts import spoken

if TYPE_CHECKING:
    from spsbench.tasks.text_tokenizer import TextTokenizer

Message = dict[str, Any]
"""``role`` and ``content``, and perhaps ``name``, ``tool_calls``, ``tool_call_id``."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is said to a model, turn by turn.

    Attributes:
        asked: the messages of the first turn.
        later: of each later turn its messages, which follow an answer.
        references: of each later turn, where any has one.
        tools: what a model may call.
    """

    asked: Sequence[Message]
    later: Sequence[Sequence[Message]]
    references: Sequence[Sequence[str]] = ()
    tools: Sequence[dict[str, Any]] = ()

    def prompt(self, first: Prompt, answers: Sequence[str], tokenizer: TextTokenizer) -> Prompt:
        """Return the prompt of the turn after the first one and so many answers.

        In a chat the template puts everything that was said, without the thoughts before answers; else a turn
        stands a line behind the answer. The answers are read as text, so that the same texts make the same
        prompt.
        """
        turn = len(answers) + 1
        name = first.example_id
        new_text = "\n".join(message["content"] for message in self.later[turn - 2])
        reference, *others = (self.references[turn - 2] if self.references else ()) or ("",)
        return replace(
            first,
            example_id=f"{name}/{turn}",
            text=new_text,
            ids=tuple(self._ids_so_far(first, answers, tokenizer)),
            reference=reference,
            other_references=tuple(others),
            truncated_tokens=0,
            turn=turn,
            conversation=name,
        )

    def _ids_so_far(self, first: Prompt, answers: Sequence[str], tokenizer: TextTokenizer) -> Sequence[int]:
        spoken_answers = [spoken(answer, opened=first.thinks).answer for answer in answers]
        pairs = [*zip(spoken_answers, self.later, strict=False)]
        if not first.chat:
            added = (
                "".join([answer, *(f"\n{message['content']}" for message in turn)]) for answer, turn in pairs
            )
            return tokenizer.encode("".join([first.text, *added]), special=True)
        messages = [*self.asked]
        for answer, turn in pairs:
            messages += [{"role": "assistant", "content": answer}, *turn]
        try:
            return tokenizer.conversation(messages, self.tools)
        except ValueError as error:
            raise UsageError(
                f"the chat template refuses the conversation {first.example_id} ({error}).",
                flag="--turns",
                remedy="Give --turns first, or a model whose template takes several turns.",
            ) from error
