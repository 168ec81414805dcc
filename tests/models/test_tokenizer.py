"""BOS exactly once, chat templates, one vocabulary for both models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import BOS, CHAT_TEMPLATE, EOS, config_of, make, make_tokenizer, save

from spsbench.base.errors import UsageError
from spsbench.models.source import find
from spsbench.models.tokenizer import Tokenizer, check_same

# Like Qwen 3.
EMPTY_THOUGHT = (
    CHAT_TEMPLATE.replace(
        "{{ m.content }}", "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
    )
    + "{% if add_generation_prompt %}<think></think>{% endif %}"
)
THINKING = CHAT_TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"


def wrap(eos: int = EOS, **settings: Any) -> Tokenizer:
    return Tokenizer(make_tokenizer(**settings), frozenset({eos}))


def test_bos_exactly_once() -> None:
    tokenizer = wrap(bos=True)
    assert tokenizer.bos == "<s>"
    ids = tokenizer.encode("Hello", special=True)
    assert (ids[0], ids.count(BOS)) == (BOS, 1)
    assert BOS not in tokenizer.encode("Hello", special=False)
    assert tokenizer.decode(ids) == "Hello"


def test_no_bos_where_the_tokenizer_adds_none() -> None:
    tokenizer = wrap()
    assert tokenizer.bos is None
    assert tokenizer.encode("Hi", special=True) == tokenizer.encode("Hi", special=False)


@pytest.mark.parametrize("bos", [False, True])
def test_the_templates_own_bos_is_not_doubled(bos: bool) -> None:
    tokenizer = wrap(bos=bos, chat_template=CHAT_TEMPLATE)
    ids = tokenizer.chat("Hello")
    assert (ids[0], ids.count(BOS), ids.count(EOS)) == (BOS, 1, 1)
    assert tokenizer.decode(ids) == "[user]Hello[assistant]"


def test_thinking_is_switched_off() -> None:
    tokenizer = wrap(chat_template=THINKING)
    assert tokenizer.decode(tokenizer.chat("Hello")) == "[user]Hello[assistant]"
    assert tokenizer.decode(tokenizer.conversation([said("user", "Hi")])) == "[user]Hi[assistant]"


@pytest.mark.parametrize(
    ("marks", "kept"),
    [
        (("[THINK]", "[/THINK]"), True),
        (("<|channel>", "<channel|>"), True),
        (("<|start|>", "<|channel|>", "<|message|>"), True),
        (("<|start|>", "<|message|>"), False),  # of another format
    ],
)
def test_the_marks_of_a_thought_stay_in_a_text(marks: tuple[str, ...], kept: bool) -> None:
    """Mistral's and OpenAI's tokenizers call them special, and would leave them out."""
    inner = make_tokenizer(bos=True)
    inner.add_special_tokens({"additional_special_tokens": [*marks]})
    tokenizer = Tokenizer(inner, frozenset({EOS}))
    text = "a b".join(marks) + " c"
    ids = tokenizer.encode(text, special=True)
    assert len(set(ids) & set(inner.convert_tokens_to_ids([*marks]))) == len(marks)
    assert tokenizer.decode(ids) == (text if kept else "a b c")


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_conversation_ends_where_the_next_answer_begins() -> None:
    tokenizer = wrap(bos=True, chat_template=CHAT_TEMPLATE)
    ids = tokenizer.conversation([said("system", "Be kind."), said("user", "Hi"), said("assistant", "Ho")])
    assert tokenizer.decode(ids) == "[system]Be kind.[user]Hi[assistant]Ho[assistant]"
    assert (ids[0], ids.count(BOS)) == (BOS, 1)
    assert tokenizer.conversation([said("user", "Hi")]) == tokenizer.chat("Hi")


_OF_TWO = "{{% if m.role in ['system', 'user'] %}}{}{{% endif %}}"
_RAISES = "{% if m.role == 'developer' %}{{ raise_exception('no such role') }}{% endif %}"


@pytest.mark.parametrize(
    ("said_by_all", "put"),
    [
        ("[{{ m.role }}]{{ m.content }}", "developer"),
        (_OF_TWO.format("[{{ m.role }}]{{ m.content }}"), "system"),  # drops it without a word
        (_RAISES + "[{{ m.role }}]{{ m.content }}", "system"),
    ],
)
def test_a_developer_is_put_as_the_template_allows(said_by_all: str, put: str) -> None:
    tokenizer = wrap(chat_template="{% for m in messages %}" + said_by_all + "{% endfor %}")
    messages = [said("developer", "Be kind."), said("user", "Hi")]
    assert tokenizer.decode(tokenizer.conversation(messages)) == f"[{put}]Be kind.[user]Hi"
    assert tokenizer.takes_role("developer") is (put == "developer")
    assert messages[0]["role"] == "developer"


def test_messages_that_the_template_refuses_are_a_value_error() -> None:
    strict = wrap(chat_template="{{ raise_exception('no system message') }}")
    with pytest.raises(ValueError, match="no system message"):
        strict.conversation([said("system", "Be kind.")])


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(CHAT_TEMPLATE, id="plain"),
        pytest.param(CHAT_TEMPLATE.replace("m.content", "m.content | trim"), id="trims"),
        pytest.param(EMPTY_THOUGHT, id="an empty thought before every answer"),
    ],
)
def test_an_answer_is_begun(template: str) -> None:
    tokenizer = wrap(bos=True, chat_template=template)
    ids = tokenizer.begun_chat("Hello", "```python\ndef f():\n")
    assert ids == [*tokenizer.chat("Hello"), *tokenizer.encode("```python\ndef f():\n", special=False)]
    assert (ids[0], ids.count(BOS), ids.count(EOS)) == (BOS, 1, 1)


def test_a_begun_answer_is_encoded_with_what_stands_before_it() -> None:
    raw = make_tokenizer(chat_template=CHAT_TEMPLATE)
    raw.add_tokens(["]d"])
    ids = Tokenizer(raw, frozenset({EOS})).begun_chat("Hello", "def f():")
    assert ids is not None
    assert raw.convert_ids_to_tokens(ids).count("]d") == 1


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(CHAT_TEMPLATE + "<think>", id="a thought is opened"),
        pytest.param(CHAT_TEMPLATE.replace("m.content", "'[final]' + m.content"), id="a channel"),
        pytest.param("{{ messages[0].content }}\nAnswer:", id="one message only"),
        pytest.param("{{ raise_exception('none') }}", id="another form of messages"),
    ],
)
def test_where_no_answer_can_be_begun(template: str) -> None:
    assert wrap(chat_template=template).begun_chat("Hello", "def f():") is None


def test_a_model_that_ends_its_turns_is_an_instruct_model() -> None:
    assert wrap(chat_template=CHAT_TEMPLATE).is_instruct
    base = wrap(eos=BOS, chat_template=CHAT_TEMPLATE)  # ships the template, but ends at another token
    assert (base.has_chat_template, base.is_instruct) == (True, False)
    plain = wrap()
    assert (plain.has_chat_template, plain.is_instruct) == (False, False)


def test_a_template_without_special_tokens_or_of_another_form_is_trusted() -> None:
    assert wrap(chat_template="{{ messages[0].content }}\nAnswer:").is_instruct
    assert wrap(chat_template="{{ raise_exception('one message only') }}").is_instruct


def test_without_a_template() -> None:
    with pytest.raises(UsageError, match="no chat template"):
        wrap().chat("Hello")


def test_bos_template_and_eos_of_a_saved_model_are_found(tmp_path: Path) -> None:
    folder = save(
        make(config_of("llama")), tmp_path / "m", make_tokenizer(bos=True, chat_template=CHAT_TEMPLATE)
    )
    tokenizer = find(str(folder), None, "--target").tokenizer
    assert tokenizer.encode("Hi", special=True)[0] == BOS
    assert tokenizer.is_instruct
    assert EOS in tokenizer.eos_ids


def test_equal_tokenizers_pass_and_the_first_difference_is_named() -> None:
    check_same(wrap(), wrap(bos=True, chat_template=CHAT_TEMPLATE))
    with pytest.raises(UsageError, match="id 258 is None for the target and '<extra_0>' for the draft"):
        check_same(wrap(), wrap(extra=3))
