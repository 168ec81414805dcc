"""Files as users have them: each kind whole, from inputs that were written before their readers were read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spsbench.base.errors import UnavailableError
from spsbench.config.files import read_yaml
from spsbench.report.facts import reading_notes
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.messages import FileRead
from spsbench.tasks.metrics.builtin import rouge_reads
from spsbench.tasks.prompts import layout_of, read_prompts_file
from spsbench.tasks.sources import read_rows
from spsbench.tasks.text_tokenizer import TextTokenizer

Write = Callable[..., Path]

INPUTS = Path(__file__).parents[1] / "support/inputs"


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def fields_of(name: str) -> dict[str, dict[str, Any]]:
    return {example.example_id: example.fields for example in read_prompts_file(INPUTS / name).examples}


def test_parts_of_text_are_joined() -> None:
    assert fields_of("parts_joined.jsonl") == {
        "a": {"messages": [said("system", "Be brief."), said("user", "Name a river.\nIn one word.")]},
        "b": {"messages": [said("user", "Name a hill.")]},
        "c": {"messages": [said("user", "Name a lake.")]},
    }


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([{"type": "input_audio", "input_audio": {}}], "part 1 of content is of the type 'input_audio'"),
        ([{"type": "text", "text": "a"}, {"type": "text"}], "part 2 of content holds None instead of text"),
        ([], r"content holds \[\] instead of text"),
        ([{"type": "text", "text": " "}], "is empty"),
    ],
)
def test_other_parts_are_refused_by_their_place(write: Write, content: list[Any], what: str) -> None:
    path = write([{"messages": [said("user", "A")]}, {"messages": [{"role": "user", "content": content}]}])
    with pytest.raises(UnavailableError, match=f"^TASK: line 2 of .*: message 1:? {what}"):
        read_prompts_file(path)


def test_an_image_among_the_parts_is_refused_by_its_place() -> None:
    with pytest.raises(
        UnavailableError, match=r"line 2 of .*parts_image.jsonl: message 1: part 2 .*'image_url'"
    ):
        read_prompts_file(INPUTS / "parts_image.jsonl")


def test_lines_of_the_batch_api_are_read_and_what_is_not_used_is_said() -> None:
    path = INPUTS / "batch_endpoints.jsonl"
    assert fields_of(path.name) == {
        "c1": {"messages": [said("developer", "Be brief."), said("user", "Name a river.")]},
        "c2": {"prompt": "The river Elbe rises in"},
        "c3": {"messages": [said("system", "Be brief."), said("user", "Name a hill.")]},
        "c4": {"messages": [said("user", "Name a lake.")]},
    }
    assert layout_of(str(path)) == FileRead(str(path), None, ("body",))
    assert str(FileRead("b.jsonl", None, ("body",))) == "Reading b.jsonl as prompts (body)."
    (note,) = reading_notes(load_task(str(path)).load("official", None, 0).provenance)
    assert note == (
        "Not used of the file: body.model (4), body.max_completion_tokens (1), body.temperature (1), "
        "body.max_tokens (1), body.stop (1)."
    )


@pytest.mark.parametrize(
    ("row", "unused"),
    [
        (
            {"messages": [said("user", "A")], "functions": [{}], "tool_choice": "none", "temperature": 0.2},
            "functions (1), tool_choice (1), temperature (1)",
        ),
        ({"prompt": "A", "chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs (1)"),
        ({"conversations": [{"from": "human", "value": "A"}], "system": "Be brief."}, "system (1)"),
        ({"messages": [said("user", "A"), said("assistant", "B")]}, "the answer at the end of messages (1)"),
        ({"messages": [said("user", "A"), said("assistant", "B"), said("user", "C")], "stop": []}, ""),
    ],
)
def test_what_a_record_says_of_its_own_request_is_counted(write: Write, row: Any, unused: str) -> None:
    path = write([row])
    notes = reading_notes(load_task(str(path)).load("official", None, 0).provenance)
    assert notes == ([f"Not used of the file: {unused}."] if unused else [])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"url": "/v1/embeddings"}, "url is '/v1/embeddings', which writes no text"),
        ({"body": "A"}, "body holds 'A' instead of an object"),
        ({"body": {"model": "m"}}, "body has none of messages, prompt, input"),
        ({"body": {"prompt": "A", "messages": []}}, "body has messages and prompt"),
        ({"body": {"prompt": ["A", "B"]}}, r"column 'prompt' holds \['A', 'B'\] instead of text"),
        ({"body": {"messages": [{"role": "tool", "content": "A"}]}}, "messages has none of the role user"),
        ({"custom_id": "r1"}, "repeats the id 'r1' of line 1"),
    ],
)
def test_a_line_of_the_batch_api_without_a_request_is_refused(
    write: Write, changes: dict[str, Any], what: str
) -> None:
    line = {"custom_id": "r1", "url": "/v1/chat/completions", "body": {"messages": [said("user", "A")]}}
    path = write([line, line | {"custom_id": "r2"} | changes])
    with pytest.raises(UnavailableError, match=f"^TASK: line 2 of .*{what}"):
        read_prompts_file(path)


def test_a_batch_of_embeddings_is_refused_by_its_line() -> None:
    with pytest.raises(UnavailableError, match=r"line 2 of .*: url is '/v1/embeddings'"):
        read_prompts_file(INPUTS / "batch_embeddings.jsonl")


def test_an_article_with_a_body_is_no_batch(write: Write) -> None:
    assert layout_of(str(write([{"document": "A", "summary": "a", "body": "b"}]))).task == "xsum"


def test_odd_conversations_are_left_out_and_counted() -> None:
    path = INPUTS / "sharegpt_odd.json"
    assert [*fields_of(path.name)] == ["s0/1", "s0/2", "s4", "s7"]
    notes = reading_notes(load_task(str(path)).load("official", None, 0).provenance)
    assert notes == [
        "Left out, conversations that no user begins: 1; conversations without a turn: 2; "
        "conversations with an empty turn of the user: 1; conversations with a turn that holds no text: 2; "
        "conversations with a turn of 'bard': 1."
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"conversations": [{"from": "human", "value": "\ud800"}]},
        {"conversations": [{"from": ["human"], "value": "A"}]},
        {"conversations": ["A"]},
        {"conversations": "A"},
        {"conversations": [{"from": "human", "value": "A"}], "id": ["x"]},
        {"conversations": [{"from": "human", "value": "A"}], "category": {}},
        {"conversations": [{"from": "human", "value": "A"}], "id": "good"},
    ],
)
def test_no_conversation_refuses_the_others(write: Write, odd: dict[str, Any]) -> None:
    good = {"id": "good", "conversations": [{"from": "human", "value": "A"}]}
    found = read_prompts_file(write([good, odd]))
    assert [example.example_id for example in found.examples] == ["good"]
    assert sum(found.left_out.values()) == 1


def test_speakers_of_many_names_are_counted_together(write: Write) -> None:
    rows = [{"conversations": [{"from": f"s{number}", "value": "A"}]} for number in range(50)]
    found = read_prompts_file(write([*rows, {"conversations": [{"from": "human", "value": "A"}]}]))
    assert found.left_out["odd in other ways"] == 38
    assert sum(found.left_out.values()) == 50


def test_a_file_without_a_usable_conversation_is_refused() -> None:
    what = (
        r"^TASK: .*sharegpt_unusable.json holds no prompt; conversations that were left out: "
        r"1 with a turn of 'bing' \(first: item 1 of .*\); 1 without a turn \(first: item 2 of .*\)\."
    )
    with pytest.raises(UnavailableError, match=what):
        read_prompts_file(INPUTS / "sharegpt_unusable.json")


def test_nan_is_no_category_and_no_id() -> None:
    found = fields_of("pandas_nan.jsonl")
    assert {name: fields.get("category") for name, fields in found.items()} == {
        "1": None,
        "2": "news",
        "3": None,
    }


def test_floats_of_pandas_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    columns = {"id": [1.0, 2.0], "category": [float("nan"), 1.5], "prompt": ["A", "B"]}
    pq.write_table(pa.table(columns), path)
    found = {example.example_id: example.fields for example in read_prompts_file(path).examples}
    assert found == {"1": {"prompt": "A"}, "2": {"prompt": "B", "category": "1.5"}}


def test_marks_of_byte_order_are_no_text(tmp_path: Path) -> None:
    assert [fields["prompt"][:3] for fields in fields_of("bom_prompts.txt").values()] == ["The", "Two"]
    assert [dict(row.fields)["id"] for row in read_rows(INPUTS / "bom_table.csv", "test")] == ["1", "2"]
    assert read_yaml(INPUTS / "bom_config.yaml", "--config") == {"limit": 1, "max_tokens": 8}
    listed = tmp_path / "p.json"
    listed.write_text(json.dumps([{"prompt": "A"}]), encoding="utf-8-sig")
    assert layout_of(str(listed)).fields == ("prompt",)
    assert len(read_prompts_file(listed).examples) == 1
    with pytest.raises(UnavailableError, match=r"^TASK: line 1 of .*bom_utf16.jsonl is not UTF-8.*Convert"):
        read_prompts_file(INPUTS / "bom_utf16.jsonl")


@pytest.mark.parametrize(
    ("takes", "noted"),
    [(True, "as the chat template has them"), (False, "put as system, as the template has no such role")],
)
def test_how_messages_of_developers_are_put_is_said(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, takes: bool, noted: str
) -> None:
    monkeypatch.setattr(tokenizer, "takes_role", lambda role: takes and role == "developer")
    task = load_task(str(INPUTS / "batch_endpoints.jsonl"))
    (note,) = reading_notes(task.read_by(tokenizer))
    assert note == f"Messages of the role developer: 1, {noted}."
    assert load_task(str(INPUTS / "parts_joined.jsonl")).read_by(tokenizer) == {}


def test_references_that_rouge_drops_have_no_score_and_are_counted(tokenizer: TextTokenizer) -> None:
    """Of English, Thai, Greek and punctuation."""
    task = load_task(str(INPUTS / "scripts_mixed.jsonl"))
    data = task.load("official", None, 0)
    prompts = sorted(
        (task.prompt(example, data, tokenizer, 1000, 10) for example in data.examples),
        key=lambda prompt: prompt.example_id,
    )
    scores = task.score(prompts, ["A new counter opened."] * 4)
    assert [one.get("rouge2") for one in scores] == [1.0, None, None, None]
    assert [task.is_scored(prompt) for prompt in prompts] == [True, False, False, False]
    assert reading_notes(data.provenance) == [
        "ROUGE cannot read 3 of 4 references, which have no score: it keeps the letters a to z and digits "
        "alone."
    ]


def test_of_several_references_those_count_that_rouge_can_read(
    write: Write, tokenizer: TextTokenizer
) -> None:
    task = load_task(str(write([{"prompt": "A", "reference": ["港口", "a cat sat"]}])))
    data = task.load("official", None, 0)
    prompt = task.prompt(data.examples[0], data, tokenizer, 1000, 10)
    assert task.score([prompt], ["a cat sat"])[0]["rouge2"] == 1.0
    assert "unread_by_rouge" not in data.provenance


def test_articles_of_another_script_have_no_rouge_either(write: Write, tokenizer: TextTokenizer) -> None:
    """One of the three rows is the exemplar."""
    task = load_task("xsum")
    rows = [{"id": str(number), "document": "A", "summary": "大桥"} for number in range(3)]
    data = task.load(str(write(rows)), None, 0)
    assert (data.provenance["unread_by_rouge"], data.provenance["references"]) == (2, 2)
    prompts = [task.prompt(example, data, tokenizer, 5000, 10) for example in data.examples]
    assert task.score(prompts, ["大桥"] * 2) == [{}, {}]
    assert not any(map(task.is_scored, prompts))


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("Übermäßig schön", True),
        ("2023", True),
        ("港口 2023", False),
        ("Tôi là sinh viên", True),
        ("?!", False),
        ("", False),
    ],
)
def test_what_rouge_reads(text: str, reads: bool) -> None:
    assert rouge_reads(text) is reads
