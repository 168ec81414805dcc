"""Summarization: loading, the exemplar, the prompt and its truncation, the score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Prompt
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.task import TaskData
from spsbench.tasks.text_tokenizer import TextTokenizer

TASK = load_task("xsum")
WORDS = " ".join(f"w{i}" for i in range(70))


def row(name: str, words: int = 70) -> dict[str, Any]:
    return {"id": name, "document": f"{name} " + " ".join(["é"] * (words - 1)), "summary": f"Sum of {name}."}


@pytest.fixture
def data(write: Callable[..., Path]) -> TaskData:
    write([row("short", 9), row("fit", 60), row("long", 200)], "news_train.jsonl")
    return TASK.load(str(write([row("a"), row("b")], "news.jsonl")), None, seed=0)


def test_data_from_a_file(data: TaskData) -> None:
    assert {e.example_id: e.reference for e in data.examples} == {"a": "Sum of a.", "b": "Sum of b."}
    assert data.exemplar is not None
    assert data.exemplar.example_id == "fit"
    assert (data.label, data.synthetic) == ("xsum (news.jsonl)", False)
    assert data.provenance["exemplar_id"] == "fit"


def test_without_train_data_the_exemplar_is_no_example(write: Callable[..., Path]) -> None:
    loaded = TASK.load(str(write([row("a"), row("b", 10), row("c", 500)])), None, seed=0)
    assert loaded.exemplar is not None
    assert loaded.exemplar.example_id == "a"
    assert {e.example_id for e in loaded.examples} == {"b", "c"}


def test_exemplar_closest_in_length_if_none_fits(write: Callable[..., Path]) -> None:
    loaded = TASK.load(str(write([row("a", 10), row("b", 40), row("c", 500)])), None, seed=0)
    assert loaded.exemplar is not None
    assert loaded.exemplar.example_id == "b"


def test_columns_article_and_numeric_id(write: Callable[..., Path]) -> None:
    rows = [{"id": i, "article": f"Text {i}.", "summary": "S."} for i in range(3)]
    loaded = TASK.load(str(write(rows)), None, seed=0)
    assert loaded.examples[0].fields["document"].startswith("Text ")
    assert isinstance(loaded.examples[0].example_id, str)


def test_prompt_reads_as_documented(data: TaskData, tokenizer: TextTokenizer) -> None:
    example = next(e for e in data.examples if e.example_id == "a")
    prompt = TASK.prompt(example, data, tokenizer, 10_000, 128)
    exemplar = row("fit", 60)
    assert prompt.text == (
        f"Article: {exemplar['document']}\n\nSummarize the above article in one sentence.\n"
        f"Summary: Sum of fit.\n\nArticle: {row('a')['document']}\n\n"
        "Summarize the above article in one sentence.\nSummary:"
    )
    assert list(prompt.ids) == tokenizer.encode(prompt.text, special=True)
    assert (prompt.reference, prompt.truncated_tokens) == ("Sum of a.", 0)


def test_chat_template_wraps_the_prompt(data: TaskData, tokenizer: TextTokenizer) -> None:
    prompt = TASK.prompt(data.examples[0], data, tokenizer, 10_000, 128, chat_template=True)
    assert list(prompt.ids) == tokenizer.chat(prompt.text)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("missing", [1, 2, 3, 10, 100])
def test_truncation_cuts_the_end_of_the_article_alone(
    data: TaskData, tokenizer: TextTokenizer, missing: int, chat: bool
) -> None:
    example = data.examples[0]
    whole = TASK.prompt(example, data, tokenizer, 10_000, 128, chat)
    cut = TASK.prompt(example, data, tokenizer, len(whole.ids) - missing + 128, 128, chat)
    assert len(cut.ids) <= len(whole.ids) - missing
    assert missing <= cut.truncated_tokens <= missing + 1  # a whole two-byte character may have to go
    document = str(example.fields["document"])
    head, tail = whole.text.split(document)
    assert cut.text.startswith(head)
    assert cut.text.endswith(tail)
    assert document.startswith(cut.text.removeprefix(head).removesuffix(tail))


def test_a_window_too_small_for_exemplar_and_instruction(data: TaskData, tokenizer: TextTokenizer) -> None:
    document = str(data.examples[0].fields["document"])
    whole = TASK.prompt(data.examples[0], data, tokenizer, 10_000, 128)
    room = len(whole.ids) - len(document.encode()) + 1
    kept = TASK.prompt(data.examples[0], data, tokenizer, room + 128, 128)
    assert f"Article: {document[0]}\n\n" in kept.text
    with pytest.raises(UsageError, match=f"window of {room + 127} tokens is too small") as caught:
        TASK.prompt(data.examples[0], data, tokenizer, room + 127, 128)
    assert caught.value.remedy


def test_braces_in_an_article_are_text(write: Callable[..., Path], tokenizer: TextTokenizer) -> None:
    rows = [{"id": i, "document": "{summary} {0} {", "summary": "{document}"} for i in "ab"]
    loaded = TASK.load(str(write(rows)), None, seed=0)
    text = TASK.prompt(loaded.examples[0], loaded, tokenizer, 1000, 10).text
    assert text.count("Article: {summary} {0} {\n") == 2
    assert "Summary: {document}\n" in text


def test_score_is_rouge_against_the_reference() -> None:
    prompts = [Prompt(name, "", (1,), "the cat sat") for name in "ab"]
    scores = TASK.score(prompts, [" the cat sat", " dogs"])
    assert [s["rouge2"] for s in scores] == [1.0, 0.0]
    assert scores[0].keys() == {"rouge1", "rouge2", "rougeL", "rougeLsum"}


def test_the_prompts_hash_follows_exemplar_and_template(data: TaskData, write: Callable[..., Path]) -> None:
    write([row("other", 60)], "news_train.jsonl")
    other = TASK.load(str(write([row("a"), row("b")], "news.jsonl")), None, seed=0)
    assert data.provenance["prompt_sha256"] != other.provenance["prompt_sha256"]
    assert data.provenance["content_sha256"] == other.provenance["content_sha256"]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"id": "b", "summary": "S."}, "line 2 of .* has no column 'document' or 'article'"),
        ({"id": "b", "document": "D."}, "line 2 of .* has no column 'summary'"),
        ({"document": "D.", "summary": "S."}, "line 2 of .* has no column 'id'"),
        ({"id": "b", "document": " \n", "summary": "S."}, "line 2 of .*: column 'document' is empty"),
        ({"id": "b", "document": "D.", "summary": ""}, "line 2 of .*: column 'summary' is empty"),
        ({"id": "b", "document": None, "summary": "S."}, "line 2 of .*: column 'document' holds None"),
        ({"id": "b", "document": ["D."], "summary": "S."}, "line 2 of .*: column 'document' holds"),
        (row("a"), "line 2 of .* repeats the id 'a' of line 1"),
    ],
)
def test_bad_rows(write: Callable[..., Path], second: dict[str, Any], told: str) -> None:
    with pytest.raises(UnavailableError, match=told) as caught:
        TASK.load(str(write([row("a"), second])), 1, seed=0)  # beyond the limit, and still told
    assert caught.value.flag == "--data"
    assert caught.value.remedy


def test_a_single_row_cannot_be_both(write: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="single row"):
        TASK.load(str(write([row("a")])), None, seed=0)


def test_limit_below_one(write: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="0 leaves no example"):
        TASK.load(str(write([row("a"), row("b")])), 0, seed=0)


def test_mini_is_called_synthetic() -> None:
    loaded = TASK.load("mini", 5, seed=0)
    assert (loaded.label, loaded.synthetic, len(loaded.examples)) == ("xsum-mini (synthetic)", True, 5)
    assert loaded.exemplar is not None
    assert loaded.exemplar.example_id not in {e.example_id for e in TASK.load("mini", None, 0).examples}
