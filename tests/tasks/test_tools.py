"""Tools, calls of tools and names in prompts; variables of templates."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import spsbench
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.cli.settings import template_args
from spsbench.models.tokenizer import Tokenizer
from spsbench.report.facts import reading_notes
from spsbench.tasks.prompts import MESSAGES, TOOLS, PromptsTask, read_prompts_file
from spsbench.tasks.task import thought_switch

MINI = Path(spsbench.__file__).parent / "mini" / "target"
HEAD = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
ASKS = "{% if add_generation_prompt %}assistant: {% endif %}"
TOOLED = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + (
    "{% for m in messages %}{{ m.name | default(m.role) }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.river }}){% endfor %}\n"
    "{% endfor %}"
)
LEVEL = {"type": "function", "function": {"name": "level", "parameters": {}}}
CALL = {"id": "c1", "function": {"name": "level", "arguments": '{"river": "Weser"}'}}
USER = {"role": "user", "content": "How high?"}


@pytest.fixture(scope="module")
def mini() -> Any:
    return AutoTokenizer.from_pretrained(MINI)


def tokenizer_of(mini: Any, template: str) -> Tokenizer:
    own = copy.deepcopy(mini)
    own.chat_template = template
    return Tokenizer(own, frozenset({0}))


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shown(tokenizer: Tokenizer, path: Path) -> tuple[str, list[str]]:
    """What the only prompt says, and what is said of it."""
    content = read_prompts_file(path)
    (example,) = content.examples
    ids = tokenizer.conversation(example.fields[MESSAGES], example.fields.get(TOOLS, ()))
    notes = reading_notes(PromptsTask(content, path).read_by(tokenizer) | {"ignored": content.ignored})
    return tokenizer.decode(ids), notes


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER], "tools": [LEVEL]},
        {"messages": [USER], "tools": json.dumps([LEVEL])},
        {"body": {"messages": [USER], "tools": [LEVEL]}, "custom_id": "a"},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "3 m"}]},
        {"messages": [USER | {"name": "level"}]},
    ],
)
def test_what_a_template_writes_is_in_the_prompt_and_what_not_is_counted(
    mini: Any, row: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "a.jsonl", row)
    text, notes = shown(tokenizer_of(mini, TOOLED + ASKS), path)
    assert "level" in text
    assert not notes
    called = "tool_calls" in str(row)
    assert ("level(Weser)" in text) == called  # arguments that are text become an object
    without, counted = shown(tokenizer_of(mini, HEAD + ASKS), path)
    assert "level" not in without
    part = "tool_calls" if called else "tools" if "tools" in str(row) else "name"
    assert counted == [f"The chat template does not write, by prompts that have them: {part} (1)."]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": [USER], "tools": "level"}, "tools is text and not valid JSON"),
        ({"messages": [USER], "tools": [1]}, r"tools holds \[1\] instead of a list of objects"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "x"}]}, USER]},
            "each with function.name",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": {}}, USER]}, "message 1: tool_calls holds"),
        ({"messages": [{"role": "assistant"}, USER]}, "message 1 lacks 'role' or 'content'"),
        ({"messages": [USER | {"name": 3}]}, "message 1: name holds 3 instead of text"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "has the role 'critic'"),
    ],
)
def test_what_is_wrong_is_refused_by_line(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=why):
        read_prompts_file(written(tmp_path / "a.jsonl", row))


def test_what_nothing_reads_is_counted_by_field(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "tools": [LEVEL]}, {"messages": [USER | {"weight": 2, "refusal": None}]}]
    content = read_prompts_file(written(tmp_path / "a.jsonl", *rows))
    assert content.ignored == {"tools": 1, "messages[].weight": 1}


def test_a_rendered_prompt_keeps_one_beginning(mini: Any) -> None:
    """As texts that apply_chat_template made, of a tokenizer that begins prompts itself."""
    from tokenizers.processors import TemplateProcessing

    own = copy.deepcopy(mini)
    name = own.convert_ids_to_tokens(0)
    own.backend_tokenizer.post_processor = TemplateProcessing(single=f"{name} $A", special_tokens=[(name, 0)])
    tokenizer = Tokenizer(own, frozenset())
    assert tokenizer.bos == name
    assert tokenizer.encode(f"{name}Once", special=True) == tokenizer.encode("Once", special=True)
    assert (
        tokenizer.encode(f"{name}{name}Once", special=True)[:3].count(0) == 2
    )  # the control: nobody's doubling


THINKS = HEAD + "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
SWITCHED = HEAD + (
    "{% if add_generation_prompt %}assistant: "
    "{% if thinking is defined and not thinking %}<think></think>{% else %}<think>\n{% endif %}{% endif %}"
)


def test_a_template_tells_its_switch(mini: Any) -> None:
    assert thought_switch(tokenizer_of(mini, THINKS)) is None
    switched = tokenizer_of(mini, SWITCHED)
    assert thought_switch(switched) == "thinking"
    assert switched.decode(switched.chat("a")).rstrip().endswith("<think>")
    off = switched.with_template_args({"thinking": False})
    assert off.decode(off.chat("a")).endswith("<think></think>")
    assert switched.decode(switched.chat("a")).rstrip().endswith("<think>")  # the one given stays as it was
    with pytest.raises(UsageError, match="has no variable effort: it has thinking"):
        switched.with_template_args({"effort": "low"})
    notes = reading_notes({"opens_thought": {"prompts": 2, "switch": "thinking"}})
    assert "in 2 prompts: --template-arg thinking=false leaves it out" in notes[0]
    assert "no variable of it" in reading_notes({"opens_thought": {"prompts": 2, "switch": None}})[0]


def test_variables_are_read_as_what_they_are() -> None:
    typed = ["enable_thinking=false", "budget=3", "share=0.5", "effort=low", "n=nan"]
    assert template_args(typed) == {
        "enable_thinking": False,
        "budget": 3,
        "share": 0.5,
        "effort": "low",
        "n": "nan",
    }
    with pytest.raises(UsageError, match="must be key=value, got thinking"):
        template_args(["thinking"])
