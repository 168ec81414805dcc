"""A prompt of which one document may lose its end, so that prompt and output fit the models' window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spsbench.errors import UsageError
from spsbench.records import Example, Prompt
from spsbench.tasks.task import TextTokenizer


@dataclass(frozen=True, slots=True)
class Room:
    """What a prompt has to fit into, and the words for one that does not.

    Attributes:
        around: subject and verb of what surrounds the document, e.g. ``exemplar and instruction take``.
        cut: what the document is, e.g. ``article``.
    """

    context_window: int
    max_new_tokens: int
    around: str
    cut: str

    @property
    def tokens(self) -> int:
        """What is left for the prompt."""
        return self.context_window - self.max_new_tokens


def cut_prompt(
    example: Example,
    document: str,
    text_with: Callable[[str], str],
    tokenizer: TextTokenizer,
    room: Room,
    chat_template: bool,
) -> Prompt:
    """The prompt with as much of the document's beginning as fits; ``truncated_tokens`` counts the rest."""

    def build(part: str) -> tuple[str, tuple[int, ...]]:
        text = text_with(part)
        return text, tuple(tokenizer.chat(text) if chat_template else tokenizer.encode(text, special=True))

    (text, ids), cut = build(document), 0
    if len(ids) > room.tokens:
        text, ids, cut = _cut(document, build, tokenizer, room)
    return Prompt(example.example_id, text, ids, example.reference, cut, chat_template)


def _cut(
    document: str, build: Callable[[str], tuple[str, tuple[int, ...]]], tokenizer: TextTokenizer, room: Room
) -> tuple[str, tuple[int, ...], int]:
    """(text, ids, tokens cut)."""
    tokens = tokenizer.encode(document, special=False)
    keep, excess = len(tokens), len(build(document)[1]) - room.tokens
    while excess > 0:  # cut tokens may join differently with what follows: look again
        keep -= excess
        if keep < 1:
            break
        # A cut within a character leaves U+FFFD at the end.
        text, ids = build(tokenizer.decode(tokens[:keep]).rstrip("\ufffd"))
        excess = len(ids) - room.tokens
        if excess <= 0:
            return text, ids, len(tokens) - keep
    bare = len(build("")[1])
    raise UsageError(
        f"a context window of {room.context_window} tokens is too small: {room.around} {bare} "
        f"and the output up to {room.max_new_tokens}, which leaves nothing for the {room.cut}.",
        flag="--max-new-tokens",
        remedy="Choose fewer new tokens or models with a larger window.",
    )
