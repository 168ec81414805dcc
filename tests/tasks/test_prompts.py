"""Prompts files: every layout, what becomes of turns, and what is told of each mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Prompt, SamplingParams
from spsbench.config import resolve
from spsbench.engines.arms import task_and_arms
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.prompts import PromptsTask, read_prompts_file
from spsbench.tasks.text_tokenizer import TextTokenizer

Write = Callable[..., Path]


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def heard(who: str, value: str) -> dict[str, str]:
    return {"from": who, "value": value}


TALK = [said("user", "One?"), said("assistant", "1"), said("user", "Two?"), said("assistant", "2")]


def task_of(path: Path, *, every_turn: bool = True) -> PromptsTask:
    task = load_task(str(path), turns="all" if every_turn else "last")
    assert isinstance(task, PromptsTask)
    return task


def prompts_of(
    path: Path, tokenizer: TextTokenizer, *, chat: bool = False, every_turn: bool = True
) -> dict[str, Prompt]:
    task = task_of(path, every_turn=every_turn)
    data = task.load("official", None, 0)
    made = [task.prompt(example, data, tokenizer, 1000, 10, chat) for example in data.examples]
    return {prompt.example_id: prompt for prompt in made}


def test_a_prompt_is_continued_as_it_stands(write: Write, tokenizer: TextTokenizer) -> None:
    path = write(
        [{"prompt": " def f():\n"}, {"id": "b", "prompt": "B", "category": "x"}, {"id": 7, "prompt": "C"}]
    )
    for chat in (False, True):
        found = prompts_of(path, tokenizer, chat=chat)
        assert found.keys() == {"1", "b", "7"}
        assert found["1"].ids == tuple(tokenizer.encode(" def f():\n", special=True))
        assert (found["1"].chat, found["1"].category, found["b"].category) == (False, None, "x")


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone \r\n\n  two\xe2\x80\xa8still two\n")
    found = prompts_of(path, tokenizer)
    assert {name: prompt.text for name, prompt in found.items()} == {"1": "one ", "2": "  two\u2028still two"}


def test_messages_run_turn_by_turn_behind_the_answers_of_the_file(
    write: Write, tokenizer: TextTokenizer
) -> None:
    path = write([{"id": "t", "messages": [said("system", "S"), *TALK], "reference": "2"}])
    found = prompts_of(path, tokenizer, chat=True)
    assert found["t/1"].ids == tuple(tokenizer.encode("<s:S><u:One?>", special=True))
    assert found["t/2"].ids == tuple(tokenizer.encode("<s:S><u:One?><a:1><u:Two?>", special=True))
    assert (found["t/1"].reference, found["t/2"].reference) == ("", "2")
    assert all(prompt.chat for prompt in found.values())
    assert found["t/2"].text.endswith("assistant: 1\n\nuser: Two?")


def test_of_messages_the_last_turn_is_asked_unless_every_one_is(
    write: Write, tokenizer: TextTokenizer
) -> None:
    path = write(
        [
            {"id": "t", "messages": TALK, "reference": [None, "2"]},
            {"id": "s", "conversations": [heard("human", "A"), heard("gpt", "B")] * 2},
        ]
    )
    found = prompts_of(path, tokenizer, chat=True, every_turn=False)
    assert {*found} == {"t", "s/1", "s/2"}
    assert found["t"].ids == tuple(tokenizer.encode("<u:One?><a:1><u:Two?>", special=True))
    assert found["t"].reference == "2"
    assert {*prompts_of(path, tokenizer, chat=True)} == {"t/1", "t/2", "s/1", "s/2"}


def test_every_turn_of_a_conversation_is_asked_where_that_is_wanted(tmp_path: Path) -> None:
    settings = resolve({"turns": "all", "task": str(tmp_path / "t.jsonl")})
    (tmp_path / "t.jsonl").write_text(json.dumps({"messages": TALK}))
    task, _ = task_and_arms(settings)
    assert isinstance(task, PromptsTask)
    assert len(task.content.examples) == 2


def test_sharegpt_as_lines_and_as_a_list(write: Write, tmp_path: Path) -> None:
    rows = [
        {"id": "a", "conversations": [heard("human", "One?"), heard("gpt", "1"), heard("human", "Two?")]},
        {"id": "b", "conversations": []},
        {"id": "c", "conversations": [heard("gpt", "..."), heard("human", "More")]},
        {"id": "d", "conversations": [heard("system", "S"), heard("user", "Hi")]},
    ]
    listed = tmp_path / "share.json"
    listed.write_text(json.dumps(rows))
    for path in (write(rows), listed):
        found = read_prompts_file(path)
        assert [example.example_id for example in found.examples] == ["a/1", "a/2", "d"]
        assert found.examples[1].fields["messages"] == TALK[:3]
        assert (found.left_out, found.later_turns) == ({"without a turn": 1, "that no user begins": 1}, 0)


SPEC = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again.", "Once more."]}
SPEED = {"question_id": "q", "category": "rag", "sub_category": "s", "source": "x", "src_id": "1"}
SPEED |= {"difficulty": "easy", "multiturn": False}


def test_of_turns_without_answers_the_first_runs(write: Write, tokenizer: TextTokenizer) -> None:
    path = write([SPEC, SPEED | {"turns": ["Read."]}])
    assert task_of(path).content.later_turns == 2
    found = prompts_of(path, tokenizer, chat=True)
    assert {name: (p.text, p.category, p.chat) for name, p in found.items()} == {
        "81": ("Write.", "writing", True),
        "q": ("Read.", "rag", True),
    }
    assert found["81"].ids == tuple(tokenizer.chat("Write."))
    plain = prompts_of(path, tokenizer)
    assert (plain["81"].ids, plain["81"].chat) == (tuple(tokenizer.encode("Write.", special=True)), False)


def test_speed_bench_as_its_script_writes_it_and_as_parquet(write: Write, tmp_path: Path) -> None:
    asked = [said("user", "One?"), said("user", "Two?")]
    prepared = read_prompts_file(write([SPEED | {"messages": asked}]))
    assert [example.fields["messages"] for example in prepared.examples] == [asked[:1]]
    assert prepared.later_turns == 1
    published = tmp_path / "test.parquet"
    pq.write_table(pa.Table.from_pylist([SPEED | {"turns": ["One?", "Two?"]}]), published)
    found = read_prompts_file(published)
    assert (found.examples[0].example_id, found.examples[0].fields["turn"]) == ("q", "One?")


def test_references_by_turn_or_several_of_one(write: Write, tokenizer: TextTokenizer) -> None:
    path = write(
        [
            {"id": "by turn", "messages": TALK, "reference": [None, "two"]},
            {"id": "several", "prompt": "A", "reference": ["a cat sat", "the dog ran"]},
            {"id": "first", "turns": ["A", "B"], "reference": ["a", "b"]},
            {"id": "last", "turns": ["A", "B"], "reference": "b"},
            {"id": "none", "prompt": "B", "reference": None},
        ]
    )
    found = prompts_of(path, tokenizer, chat=True)
    kept = {name: (prompt.reference, *prompt.other_references) for name, prompt in found.items()}
    assert kept == {
        "by turn/1": ("",),
        "by turn/2": ("two",),
        "several": ("a cat sat", "the dog ran"),
        "first": ("a",),
        "last": ("",),
        "none": ("",),
    }


def test_the_best_of_several_references_counts_and_none_gives_no_score(
    write: Write, tokenizer: TextTokenizer
) -> None:
    path = write([{"prompt": "A", "reference": ["a cat sat", "the dog ran home"]}, {"prompt": "B"}])
    task, found = task_of(path), prompts_of(path, tokenizer)
    scores = task.score([found["1"], found["1"], found["2"]], ["a cat sat", "the dog ran", "a cat sat"])
    assert [one.get("rouge2") for one in scores] == [1.0, pytest.approx(0.8), None]
    assert scores[2] == {}
    assert [task.is_scored(found[name]) for name in ("1", "2")] == [True, False]
    assert task.headline == "rouge2"


def test_without_any_reference_there_is_no_metric(write: Write) -> None:
    task = task_of(write([{"prompt": "A"}]))
    assert (task.metrics, task.headline) == ((), None)


def test_how_it_samples_and_stops(write: Write) -> None:
    task = task_of(write([{"prompt": "A"}]))
    assert (task.name, task.default_sampling, task.max_new_tokens, task.stop) == (
        "rows.jsonl",
        "nucleus",
        256,
        (),
    )
    assert task.samplings["nucleus"] == SamplingParams(temperature=0.8, top_p=0.95)
    assert task.samplings["greedy"].greedy


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"prompt": "A"}, (False, False, False)),
        ({"turns": ["A"]}, (False, False, True)),
        ({"messages": TALK}, (False, True, True)),
    ],
)
def test_when_the_template_is_used(write: Write, row: dict[str, Any], wanted: tuple[bool, ...]) -> None:
    """No template, one that was not learned, and one that was."""
    task = task_of(write([row]))
    kinds = [
        {"has_chat_template": has, "is_instruct": learned}
        for has, learned in ((False, False), (True, False), (True, True))
    ]
    found = [task.uses_template(cast("TextTokenizer", SimpleNamespace(**kind))) for kind in kinds]
    assert tuple(found) == wanted


def test_messages_need_a_template(write: Write, tokenizer: TextTokenizer) -> None:
    with pytest.raises(UsageError, match=r"1/[12] is a list of messages.*`prompt`"):
        prompts_of(write([{"messages": TALK}]), tokenizer)


def test_messages_that_the_template_refuses_are_named(write: Write, tokenizer: TextTokenizer) -> None:
    messages = [said("user", "A"), said("assistant", "B"), said("system", "C"), said("user", "D")]
    with pytest.raises(UsageError, match=r"the messages of odd/2 \(a late system message\)"):
        prompts_of(write([{"id": "odd", "messages": messages}]), tokenizer, chat=True)


def test_a_prompt_that_does_not_fit_is_named(write: Write, tokenizer: TextTokenizer) -> None:
    with pytest.raises(UsageError, match="the prompt of 1 has 2001 tokens"):
        prompts_of(write([{"prompt": "A" * 2000}]), tokenizer)


def test_other_data_are_refused_beside_it(write: Write) -> None:
    with pytest.raises(UsageError, match=r"--data: other.jsonl is given together with the prompts file"):
        task_of(write([{"prompt": "A"}])).load("other.jsonl", None, 0)


def test_a_larger_limit_extends_a_smaller_one_and_other_prompts_are_another_run(write: Write) -> None:
    path = write([{"prompt": str(number)} for number in range(6)])
    few, many = (task_of(path).load("mini", limit, 3) for limit in (2, 5))
    assert many.examples[:2] == few.examples
    assert many.provenance == few.provenance
    other = task_of(write([{"prompt": str(number)} for number in range(7)])).load("mini", 2, 3)
    assert other.provenance["prompt_sha256"] != few.provenance["prompt_sha256"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (
            {"text": "A"},
            r"line 2 of .* has none of prompt, messages, turns, conversations, body \(its fields: text\)",
        ),
        ({"prompt": "A", "turns": ["A"]}, "line 2 of .* has both prompt and turns"),
        ({"prompt": " "}, "line 2 of .*: column 'prompt' is empty"),
        ({"prompt": ["A"]}, "line 2 of .*: column 'prompt' holds"),
        *(
            (
                {"prompt": value},
                f"line 2 of .*: column 'prompt' holds {re.escape(str(value))} instead of text",
            )
            for value in (3, 1.5, True, [1.5], [3, 4], {}, {"text": "A"})
        ),
        ({"prompt": None}, "line 2 of .* has none of prompt"),
        ({"turns": [3]}, "line 2 of .*: turns holds 3 instead of text"),
        ({"messages": [said("user", 3)]}, "line 2 of .*: message 1: content holds 3 instead of text"),
        ({"prompt": "A", "id": ["x"]}, "line 2 of .*: column 'id' holds"),
        ({"prompt": "A", "category": True}, "line 2 of .*: column 'category' holds True"),
        ({"prompt": "A", "reference": 5}, "line 2 of .*: reference holds 5"),
        ({"prompt": "A", "reference": ["a", ""]}, "line 2 of .*: reference holds ''"),
        ({"turns": ["A", "B"], "reference": ["a"]}, "line 2 of .*: reference has 1 for 2 turns"),
        ({"turns": []}, "line 2 of .*: turns is empty"),
        ({"turns": "A"}, "line 2 of .*: turns holds 'A' instead of a list"),
        ({"turns": ["A", None]}, "line 2 of .*: turns holds None"),
        ({"messages": "A"}, "line 2 of .*: messages holds 'A' instead of a list"),
        ({"messages": []}, "line 2 of .*: messages has none of the role user"),
        ({"messages": [{"role": "user"}]}, "line 2 of .*: message 1 lacks 'role' or 'content'"),
        ({"messages": [said("critic", "A")]}, "line 2 of .*: message 1 has the role 'critic'"),
        ({"messages": [said("user", "")]}, "line 2 of .*: message 1 is empty"),
        (
            {"messages": [{"role": "user", "content": [1]}]},
            "line 2 of .*: message 1: part 1 of content holds 1 instead of text",
        ),
        ({"messages": [said("user", None)]}, "line 2 of .*: message 1: content holds None instead of text"),
        ({"id": "1", "prompt": "A"}, "line 2 of .* repeats the id '1' of line 1"),
        (
            {"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]},
            "line 2 of .* holds SPEED-Bench's placeholder",
        ),
    ],
)
def test_an_error_names_the_line_and_what_is_missing(write: Write, row: dict[str, Any], what: str) -> None:
    with pytest.raises(UnavailableError, match=f"^TASK: {what}"):
        load_task(str(write([{"prompt": "first"}, row])))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.jsonl", b"", "holds no row"),
        ("a.jsonl", b"{", "line 1 of .* is not JSON"),
        ("a.jsonl", b"[]", "line 1 of .* is not a JSON object"),
        ("a.txt", b"\n \n", "holds no prompt"),
        ("a.txt", b"\xff", "is not UTF-8"),
        ("a.json", b"{}", "is not a JSON list"),
        ("a.json", b"[1]", "item 1 of .* is not an object"),
        ("a.json", b'{"prompt": "A"}\n{}', "is not JSON .*jsonl"),
        ("a.json", b"[]", "holds no prompt"),
        ("a.json", b'[{"conversations": []}]', "holds no prompt"),
        ("a.parquet", b"no", "not a readable Parquet"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnavailableError, match=f"^TASK: .*{what}"):
        load_task(str(tmp_path / name))


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"^TASK: .* does not exist"):
        load_task(str(tmp_path / "prompts.jsonl"))
    (tmp_path / "prompts.jsonl").mkdir()
    with pytest.raises(UnavailableError, match=r"^TASK: .* is a folder"):
        load_task(str(tmp_path / "prompts.jsonl"))


def test_the_names_of_turns_do_not_clash_with_an_id(write: Write) -> None:
    rows = [{"id": "t", "messages": TALK}, {"id": "t/2", "prompt": "A"}]
    with pytest.raises(UnavailableError, match="repeats the id 't/2'"):
        load_task(str(write(rows)), turns="all")
