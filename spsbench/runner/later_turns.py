"""Which later turns of conversations a run asks; their prompts follow from answers, see ``dialogue``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from spsbench.base.errors import UsageError
from spsbench.base.records import Prompt
from spsbench.config import RunConfig
from spsbench.runner.material import Prompts
from spsbench.tasks.task import Task
from spsbench.tasks.text_tokenizer import TextTokenizer


class WithLater(NamedTuple):
    """The prompts of a run with those of later turns, each behind the turn before.

    Attributes:
        most_tokens: of a later turn's prompt.
    """

    prompts: tuple[Prompt, ...]
    most_tokens: int = 0


def with_later_turns(
    config: RunConfig, task: Task, asked: Prompts, tokenizer: TextTokenizer, *, asks: bool
) -> WithLater:
    """Put the later turns of each conversation after its first, unless only first turns are asked.

    Whether a turn is asked must not depend on what an arm answers, or arms would be compared on other turns:
    it is asked of all arms if it fits behind answers of full length.

    Raises:
        UsageError: of what a conversation cannot be put into: a shard, whose prompts are dealt out one by
            one, and a run that is judged after every prompt, since the turns of a conversation are not
            independent.
    """
    if config.turns == "own" and not asks:
        why = "turns after an arm's own answers are asked by `run` alone."
        raise UsageError(why, flag="--turns", remedy="Give first, last or all.")
    if config.turns == "first" or not asks:
        return WithLater(asked.prompts)
    prompts = list[Prompt]()
    most = 0
    unfitting = 0
    room, max_new_tokens = asked.room, asked.max_new_tokens
    for example, first in zip(asked.data.examples, asked.prompts, strict=True):
        prompts.append(first)
        conversation = task.conversation(example, first)
        for count in range(1, len(conversation.later) + 1 if conversation is not None else 1):
            assert conversation is not None
            prompt = conversation.prompt(first, [""] * count, tokenizer)
            tokens = len(prompt.ids) + count * max_new_tokens
            if tokens > room:
                unfitting += len(conversation.later) + 1 - count
                break
            prompts.append(replace(prompt, ids=()))
            most = max(most, min(len(prompt.ids) + _AGAIN * count * max_new_tokens, room))
    _require_distinct(prompts)
    later = len(prompts) - len(asked.prompts)
    if later or unfitting:
        asked.data.provenance.pop("unasked_turns", None)
        asked.data.provenance.update(own_turns=later, unfitting_turns=unfitting)
    for flag, value in (("--shard", config.shard), ("--until", config.until_ci)):
        if later and value is not None:
            raise UsageError(
                f"{value} counts prompts one by one, and later turns of a conversation follow from what an "
                "arm has answered before.",
                flag=flag,
                remedy="Leave it out, or give --turns first.",
            )
    return WithLater(tuple(prompts), most)


def _require_distinct(prompts: Iterable[Prompt]) -> None:
    names = set[str]()
    for prompt in prompts:
        if prompt.example_id in names:
            why = f"{prompt.example_id!r} is the name of a later turn and of another prompt."
            raise UsageError(why, flag="TASK", remedy="Give the conversation another id.")
        names.add(prompt.example_id)


_AGAIN = 3
"""As many tokens as one of an answer may become when its text is read: a byte that is no character comes back
as the three bytes of U+FFFD."""
