"""Text to token ids and back."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.base.environment import little_memory
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.thoughts import HARMONY, THOUGHT_MARKS


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


NO_THOUGHT: Mapping[str, Any] = {"enable_thinking": False}
"""The variable by which most templates leave a thought out; others do not look at it."""


class Tokenizer:
    """A Hugging Face tokenizer, with the few methods that are used here; ``chat`` needs
    ``has_chat_template``.

    Attributes:
        template_args: variables of the chat template that the user has set.
    """

    template_args: Mapping[str, Any] = {}

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int], start: tuple[int, ...] = ()) -> None:
        self._tokenizer = self.hugging_face = tokenizer
        self.size = len(tokenizer)
        self.eos_ids = eos_ids
        self.border = Border(self._ending(), start) if start else None
        # No template writes what a decoder starts with.
        self.has_chat_template = self.border is None and bool(getattr(tokenizer, "chat_template", None))
        self.bos: str | None = None
        first = self.encode("a", special=True)[:1]
        plain = self.encode("a", special=False)[:1]
        self.bos = None if first == plain else str(tokenizer.convert_ids_to_tokens(first)[0])
        self._marks = self._special_marks()
        self._roles: dict[str, bool] = {}
        self.is_instruct = self.has_chat_template and self._ends_its_turns()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return a text's token ids; ``special`` makes it a prompt.

        That adds the tokens that a prompt begins with (BOS). An EOS that some tokenizers append is dropped:
        the prompt is continued. Of an encoder-decoder it stays, and what the decoder begins with follows.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        if special and self.bos is not None and text.startswith(self.bos) and ids[:1] == ids[1:2]:
            del ids[0]  # the text was rendered by a template, and begins with its own
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
        """Return the text of token ids without special tokens, but with the marks of a thought; spaces are
        not cleaned up.
        """
        parts, begin = [], 0
        marked = [place for place, token in enumerate(ids) if token in self._marks] if self._marks else []
        for place in marked:
            parts += [self._plain(ids[begin:place]), self._marks[ids[place]]]
            begin = place + 1
        return "".join([*parts, self._plain(ids[begin:])])

    def _plain(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _special_marks(self) -> dict[int, str]:
        """Of a thought, by their ids: those that the tokenizer leaves out of texts."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        special = {str(token): number for number, token in added.items() if token.special}
        known = [each.tokens for each in (*THOUGHT_MARKS, HARMONY) if special.keys() >= {*each.tokens}]
        return {special[mark]: mark for tokens in known for mark in tokens}

    def chat(self, text: str) -> list[int]:
        """Return the token ids of a user message in the chat template, up to the start of the answer.

        The template adds BOS itself. Thinking is switched off where the template can, unless
        ``template_args`` say otherwise: only the answer is scored.
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

    def with_template_args(self, variables: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer with these variables of its chat template.

        Raises:
            UsageError: the template has no such variable, or there is none.
        """
        if not variables:
            return self
        known = self.template_variables()
        for name in variables:
            if name not in known:
                has = f"has {', '.join(sorted(known)) or 'none'}" if self.has_chat_template else "is missing"
                why = f"the chat template has no variable {as_typed(name)}: it {has}."
                remedy = "Give one that it has, or leave the option out."
                raise UsageError(why, flag="--template-arg", remedy=remedy)
        other = copy.copy(self)
        other.template_args, other._roles = {**self.template_args, **variables}, {}
        return other

    def template_variables(self) -> set[str]:
        """Return what the chat template reads and a caller may set."""
        from jinja2 import Environment, TemplateError, meta

        template = self._tokenizer.chat_template if self.has_chat_template else ""
        texts = template.values() if isinstance(template, dict) else [template]
        found = set[str]()
        for text in texts:
            try:
                # ``generation`` is a tag of transformers alone.
                plain = re.sub(r"{%-?\s*(?:end)?generation\s*-?%}", "", text)
                parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
                found |= meta.find_undeclared_variables(parsed)
            except TemplateError:
                continue  # rendering it will say what is wrong
        return found - _GIVEN - set(getattr(self._tokenizer, "special_tokens_map", {}))

    def _rendered(self, messages: list[dict[str, Any]], **options: Any) -> str:
        with little_memory():
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, **{**NO_THOUGHT, **self.template_args, **options}
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

    def conversation(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Return the token ids of messages with ``role`` and ``content`` in the chat template; see ``chat``.

        ``developer`` is put as ``system`` where the template does not take it.

        Args:
            tools: what the model may call; see ``unused_in``.
        """
        from jinja2 import TemplateError

        try:
            return self._conversation(self._put(messages), tools)
        except TemplateError as error:
            raise ValueError(str(error)) from error
        except (TypeError, KeyError, AttributeError) as error:  # of an expression within the template
            if not tools and not any(key in message for message in messages for key in PARTS):
                raise
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def _put(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        put = {role: "system" for role in {message["role"] for message in messages} if not self._puts(role)}
        return [message | {"role": put.get(message["role"], message["role"])} for message in messages]

    def unused_in(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[str]:
        """Return which of tools, calls of tools and names the template does not write: text is the same
        without."""
        put, found = self._put(messages), list[str]()
        parts = list(_parts_left_out(put, tools))
        try:
            written = self._rendered(put, add_generation_prompt=True, **_tools(tools)) if parts else ""
        except Exception:  # a template may raise an exception of any type: what it refuses it looks at
            return found
        for name, (fewer, fewer_tools) in parts:
            try:
                without = self._rendered(fewer, add_generation_prompt=True, **_tools(fewer_tools))
            except Exception:
                continue
            found += [name] if written == without else []
        return found

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

    def _conversation(
        self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **{**NO_THOUGHT, **self.template_args, **_tools(tools)},
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


TOOLS = "tools"
PARTS = ("tool_calls", "name", "tool_call_id")
"""What a message may have beside its role and content."""

_GIVEN = frozenset(
    ("messages", TOOLS, "documents", "add_generation_prompt", "raise_exception", "strftime_now")
) | frozenset(("continue_final_message", "bos_token", "eos_token", "pad_token", "unk_token"))
"""Variables of a template that are no setting."""


def _tools(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {TOOLS: list(tools)} if tools else {}


def _parts_left_out(
    messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, tuple[list[dict[str, Any]], Sequence[dict[str, Any]]]]]:
    """Each part that is there, with messages and tools without it."""
    if tools:
        yield TOOLS, (messages, ())
    for part in PARTS:
        if any(part in message for message in messages):
            fewer = [{key: value for key, value in each.items() if key != part} for each in messages]
            yield part, (fewer, tools)


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
        why = f"the target is {kinds[0]} and the draft {kinds[1]}: they read a prompt differently."
        remedy = f"Choose a draft that is {kinds[0]} with the target's tokenizer."
        raise UsageError(why, flag="--draft", remedy=remedy)
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
