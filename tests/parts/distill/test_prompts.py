"""What a target is request_of: the beginnings of requests, functions, prompts of a file."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from support.tiny_models import CHAT_TEMPLATE, EOS, make_tokenizer

from spsbench.base.errors import SpsbenchError
from spsbench.models.tokenizer import Tokenizer
from spsbench.parts.distill.corpus import evaluated_texts
from spsbench.parts.distill.own_text import (
    CHAT,
    Opening,
    _functions,
    begun,
    file_prompts,
    functions,
    opened,
    request_of,
)


def tokenizer(template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    return Tokenizer(make_tokenizer(bos=True, chat_template=template), frozenset({EOS}))


def text(ids: list[int]) -> str:
    return tokenizer().decode(ids)


def test_an_opening_ends_inside_of_the_users_turn() -> None:
    assert text(opened(tokenizer(), Opening(CHAT, "How"))) == "[user]How"
    assert text(opened(tokenizer(None), Opening(CHAT, "How"))) == "How"


def test_a_request_ends_where_the_answer_begins() -> None:
    assert text(request_of(tokenizer(), CHAT, "Why?").ids) == "[user]Why?[assistant]"


def test_an_answer_is_begun_with_the_head_and_a_read_one_goes_on_to_the_end_of_the_fence() -> None:
    head, body = 'def f(x):\n    """Double."""\n', "    return 2 * x"
    prompt, whole = begun(tokenizer(), head), begun(tokenizer(), head, body)
    assert text(prompt.ids).endswith('[assistant]```python\ndef f(x):\n    """Double."""')
    assert whole.ids[: len(prompt.ids)] == prompt.ids
    assert text(whole.ids[len(prompt.ids) :]) == "\n    return 2 * x\n```"


@pytest.mark.thorough
def test_functions_of_the_library_are_whole() -> None:
    found = functions()
    assert len(found) > 1_000
    assert [len(function.head) for function in found] == sorted(len(function.head) for function in found)
    for function in found[:: len(found) // 40]:
        ast.parse(f"{function.head}\n{function.body}")


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        'import os\n\x0c\ndef add(a, b):\n    """Add."""\n    total = a + b\n    return total\n'
    )
    (found,) = _functions(source)
    assert found.head == 'def add(a, b):\n    """Add."""'
    assert found.body == "    total = a + b\n    return total"


def test_prompts_of_a_file_keep_their_form(tmp_path: Path) -> None:
    rows = [
        {"prompt": "as it stands"},
        {"messages": [{"role": "user", "content": "Why?"}]},
        {"turns": ["What?"]},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [text(prompt.ids) for prompt in file_prompts(path, tokenizer())]
    assert found == ["as it stands", "[user]Why?[assistant]", "[user]What?[assistant]"]


@pytest.mark.thorough
def test_evaluated_texts_are_problems_and_their_solutions() -> None:
    found = "\n".join(evaluated_texts())
    assert "def has_close_elements" in found
    assert "def check(candidate)" in found


@pytest.mark.thorough
def test_an_evaluated_file_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(SpsbenchError):
        list(evaluated_texts(["nowhere.jsonl"]))
