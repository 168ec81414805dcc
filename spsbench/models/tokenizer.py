"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.base.environment import little_memory
from spsbench.base.errors import UsageError, as_typed


@dataclass(frozen=True, slots=True)
class Border:
    """The tokens between a source and an output, by which one list of tokens is both."""

    ending: tuple[int, ...]  # that close every source, as the tokenizer writes them (``</s>``); may be empty
    start: tuple[int, ...]

    def source_length(self, tokens: Sequence[int]) -> int:
        """Return the number of source tokens, ``ending`` included.

        The source lasts up to the first ``start`` after an ``ending``.
        """
        mark = self.ending + self.start
        width = len(self.ending)
        for place in range(len(tokens) - len(mark) + 1):
            if tuple(tokens[place : place + len(mark)]) == mark and place + width:
                return place + width
        raise ValueError(f"no source that ends with {list(self.ending)} and {list(self.start)} after it")

    def opened(self, source: Sequence[int]) -> list[int]:
        """Return a source and the tokens that the decoder starts with."""
        tokens = [*source, *self.start]
        if self.source_length(tokens) != len(source):
            raise ValueError("the text holds the tokens with which the decoder starts")
        return tokens


class Tokenizer:
    """A Hugging Face tokenizer, with the few methods that are used here; ``chat`` needs
    ``has_chat_template``."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int], start: tuple[int, ...] = ()) -> None:
        self._tokenizer = self.hugging_face = tokenizer
        self.size = len(tokenizer)
        self.eos_ids = eos_ids
        self.border = Border(self._ending(), start) if start else None
        # No template writes what a decoder starts with.
        self.has_chat_template = self.border is None and bool(getattr(tokenizer, "chat_template", None))
        first = self.encode("a", special=True)[:1]
        plain = self.encode("a", special=False)[:1]
        self.bos = None if first == plain else str(tokenizer.convert_ids_to_tokens(first)[0])
        self._roles: dict[str, bool] = {}
        self.is_instruct = self.has_chat_template and self._ends_its_turns()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return a text's token ids; ``special`` makes it a prompt.

        That adds the tokens that a prompt begins with (BOS). An EOS that some tokenizers append is dropped:
        the prompt is continued. Of an encoder-decoder it stays, and what the decoder begins with follows.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        if special and self.border is not None:
            try:
                return self.border.opened(ids)
            except ValueError as error:
                raise UsageError(f"a prompt cannot be read: {error}.", remedy="Change its text.") from error
        while special and ids and ids[-1] in self.eos_ids:
            ids.pop()
        return ids

    def _ending(self) -> tuple[int, ...]:
        """The tokens that the tokenizer adds after every text."""
        plain, full = (self._tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
        ends = range(len(plain), len(full) + 1)
        return next((tuple(full[end:]) for end in ends if full[end - len(plain) : end] == plain), ())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids without special tokens; spaces are not cleaned up."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def chat(self, text: str) -> list[int]:
        """Return the token ids of a user message in the chat template, up to the start of the answer.

        The template adds BOS itself. Thinking is switched off where the template can: only the answer
        is scored.
        """
        if not self.has_chat_template:
            remedy = "Use none."
            raise UsageError("the tokenizer has no chat template.", flag="--chat-template", remedy=remedy)
        with little_memory():
            return self._conversation([{"role": "user", "content": text}])

    def opened_chat(self, text: str) -> list[int]:
        """Return the token ids of the beginning of a user's message, which the model may continue."""
        mark = "\ue000"  # no template has it
        rendered = self._rendered([{"role": "user", "content": mark}], add_generation_prompt=True)
        return self.encode(rendered.partition(mark)[0] + text, special=False)

    def begun_chat(self, text: str, answer: str) -> list[int] | None:
        """Return the token ids of a user message and of the first words of its answer, which the model
        continues.

        All of it is encoded at once: apart, the two could meet within a token. A template that makes the
        model think first, or choose a channel, does not lead straight to an answer: then it is None.
        """
        user = {"role": "user", "content": text}
        reply = "An answer."
        messages = [user, {"role": "assistant", "content": reply}]
        try:
            written = self._rendered(messages, add_generation_prompt=False)
            question = self._rendered([user], add_generation_prompt=True)
        except Exception:  # a template for another form of messages
            return None
        before, answer_part, _ = written.rpartition(reply)
        if not answer_part or before.rstrip() != question.rstrip():
            return None
        return self.encode(before + answer, special=False)

    def _rendered(self, messages: list[dict[str, str]], **options: bool) -> str:
        with little_memory():
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, enable_thinking=False, **options
                )
            )

    def _ends_its_turns(self) -> bool:
        """Whether the template writes an EOS after an answer.

        Base models often ship a template but end at another token: they never learned to end a turn. A
        template without a special token there is trusted.
        """
        answer = "4"
        messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]
        try:
            with little_memory():
                text = str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        except Exception:  # a template for another form of messages: ``chat`` will raise
            return True
        after = self.encode(text.rpartition(answer)[2], special=False)
        added = set(getattr(self._tokenizer, "added_tokens_decoder", {}))
        marks = set(after) & (set(self._tokenizer.all_special_ids) | added)
        return not marks or bool(marks & self.eos_ids)

    def conversation(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids of messages with ``role`` and ``content`` in the chat template; see ``chat``.

        ``developer`` is put as ``system`` where the template does not take it.
        """
        from jinja2 import TemplateError

        put = {role: "system" for role in {message["role"] for message in messages} if not self._puts(role)}
        try:
            return self._conversation(
                [message | {"role": put.get(message["role"], message["role"])} for message in messages]
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error

    def _puts(self, role: str) -> bool:
        return role != "developer" or self.takes_role(role)

    def takes_role(self, role: str) -> bool:
        """Return whether the chat template writes the content of a first message with this role."""
        mark = "\ue000"  # no template has it
        if role not in self._roles:
            try:
                messages = [{"role": role, "content": mark}, {"role": "user", "content": "a"}]
                self._roles[role] = mark in self._rendered(messages, add_generation_prompt=True)
            except Exception:  # a template may raise an exception of any type
                self._roles[role] = False
        return self._roles[role]

    def _conversation(self, messages: list[dict[str, str]]) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, enable_thinking=False
        )
        if not ids:
            said = as_typed(messages[-1]["content"])
            remedy = "Use none, or correct the template of the target's tokenizer."
            why = f"the chat template writes nothing of the prompt {said}."
            raise UsageError(why, flag="--chat-template", remedy=remedy)
        return ids

    def vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary


def check_same(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a pair whose tokenizers differ: token ids would mean different texts.

    The draft's may lack some of the target's, as Qwen2.5 lacks Qwen3's ``<think>``: the target's encodes,
    and the draft has a row for every id, which ``find_pair`` checks. Both are of encoder-decoders that start
    alike, or of decoders alone.
    """
    if (target.border is None) != (draft.border is None):
        kinds = [
            "a decoder alone" if each.border is None else "an encoder-decoder" for each in (target, draft)
        ]
        raise UsageError(
            f"the target is {kinds[0]} and the draft {kinds[1]}: they read a prompt differently.",
            flag="--draft",
            remedy=f"Choose a draft that is {kinds[0]} with the target's tokenizer.",
        )
    one, other = target.border, draft.border
    if one is not None and other is not None and one != other:
        raise UsageError(
            f"the target's decoder starts with the tokens {as_typed(one.start)} after sources that end with "
            f"{as_typed(one.ending)}, the draft's with {as_typed(other.start)} after "
            f"{as_typed(other.ending)}.",
            flag="--draft",
            remedy="Choose a draft of the target's model family.",
        )
    target_tokens = {index: token for token, index in target.vocabulary().items()}
    draft_tokens = {index: token for token, index in draft.vocabulary().items()}
    if draft_tokens.items() <= target_tokens.items():
        return
    index = min(i for i in draft_tokens if target_tokens.get(i) != draft_tokens[i])
    raise UsageError(
        f"target and draft have different tokenizers: id {index} is {target_tokens.get(index)!r} for the "
        f"target and {draft_tokens[index]!r} for the draft.",
        flag="--draft",
        remedy="Choose a draft of the target's model family.",
    )
