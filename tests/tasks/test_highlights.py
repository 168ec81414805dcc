"""Highlights of articles: T5's prompt, an article that is cut, ROUGE by sentences; texts are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spsbench.base.errors import UsageError
from spsbench.base.paths import data_dir
from spsbench.base.records import Prompt
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.text import sentence_per_line
from spsbench.tasks.text_tokenizer import TextTokenizer

TASK = load_task("cnndm")
ARTICLE = "A storm came over the hills. " * 20
ROW = {"id": "a", "article": ARTICLE, "highlights": "A storm came .\nThe hills are wet ."}


def test_only_the_articles_end_is_cut_and_counted(
    write: Callable[..., Path], tokenizer: TextTokenizer
) -> None:
    data = TASK.load(str(write([ROW])), None, 0)
    whole = TASK.prompt(data.examples[0], data, tokenizer, 10_000, 64)
    assert (whole.text, whole.truncated_tokens) == (f"summarize: {ARTICLE}", 0)
    cut = TASK.prompt(data.examples[0], data, tokenizer, 264, 64)
    assert (len(cut.ids), cut.truncated_tokens) == (200, len(whole.ids) - 200)
    assert whole.text.startswith(cut.text)
    with pytest.raises(
        UsageError, match="the rest of the prompt takes 12 and the output, its last draft included, up to 64"
    ) as caught:
        TASK.prompt(data.examples[0], data, tokenizer, 76, 64)
    assert caught.value.flag == "--max-new-tokens"


def test_a_tokenizer_that_ends_the_source_and_begins_the_answer_keeps_both(
    write: Callable[..., Path], tokenizer: TextTokenizer
) -> None:
    """What an encoder-decoder's prompt ends with is the tokenizer's and is never cut."""

    class EncoderDecoder(type(tokenizer)):  # type: ignore[misc]
        def encode(self, text: str, *, special: bool) -> list[int]:
            return [*text.encode(), *([300, 301] if special else [])]

    data = TASK.load(str(write([ROW])), None, 0)
    cut = TASK.prompt(data.examples[0], data, EncoderDecoder(), 264, 64)
    assert (len(cut.ids), cut.ids[-2:]) == (200, (300, 301))
    assert cut.truncated_tokens == len(f"summarize: {ARTICLE}") + 2 - 200


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It rains . the sun is out .", ["It rains .", "the sun is out ."]),
        ("It rains. The sun is out! Is it? Yes.", ["It rains.", "The sun is out!", "Is it?", "Yes."]),
        ('He left. "Why?" She stayed. 30 came.', ["He left.", '"Why?" She stayed.', "30 came."]),
        ("About 3.5 m. of rain, e.g. here", ["About 3.5 m. of rain, e.g. here"]),
        (" One line.\nTwo. Three. ", ["One line.", "Two. Three."]),
        ("Es regnet. Über Nacht.", ["Es regnet.", "Über Nacht."]),
        (
            "Es gibt z.B. über Nacht Regen . über Tag nicht .",
            ["Es gibt z.B. über Nacht Regen .", "über Tag nicht ."],
        ),
        ('At 3 p.m. "we" met. (They left.)', ['At 3 p.m. "we" met.', "(They left.)"]),
        ('She said "No." Then she left.', ['She said "No." Then she left.']),
        ("Ende. 東京です。", ["Ende.", "東京です。"]),
        ("", [""]),
    ],
)
def test_sentences_get_lines_where_there_are_none(text: str, lines: list[str]) -> None:
    assert sentence_per_line(text).split("\n") == lines


def test_rouge_lsum_counts_sentences_of_one_line() -> None:
    prompt = Prompt("a", "", (1,), "Storm came .\nHills are wet .")
    by_lines, in_one = TASK.score(
        [prompt] * 2, ["Hills are wet .\nStorm came .", "Hills are wet . Storm came ."]
    )
    assert by_lines == in_one
    assert (by_lines["rougeLsum"], by_lines["rouge1"]) == (1.0, 1.0)
    assert by_lines["rougeL"] < 1.0
    assert (TASK.headline, set(by_lines)) == ("rouge2", {"rouge1", "rouge2", "rougeL", "rougeLsum"})


def test_the_synthetic_task_reads_the_columns_of_its_file(
    write: Callable[..., Path], tokenizer: TextTokenizer
) -> None:
    task = load_task(str(data_dir("tasks") / "cnndm-mini.yaml"))
    rows = [ROW | {"id": name} for name in "abc"]
    data = task.load(str(write(rows, "cnndm.jsonl")), None, 0)
    assert sorted(example.example_id for example in data.examples) == ["a", "b", "c"]
    prompt = task.prompt(data.examples[0], data, tokenizer, 200, 64)
    assert prompt.text.startswith("summarize: A storm")
    assert prompt.truncated_tokens > 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"truncate": "highlights"}, "truncate is highlights, not one of article"),
        ({"data": {"columns": {"body": ["article"]}}}, "a key of data.columns is body, not one of article"),
        ({"data": {"mini": {"examples": "x", "folder": "other"}}}, "folder"),
        ({"kind": "summarization", "prompt": "default", "reference": None}, "is for tasks of text"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    content = yaml.safe_load((data_dir("tasks") / "cnndm.yaml").read_text()) | {"truncate": None} | changes
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    with pytest.raises(UsageError) as caught:
        load_task(str(path))
    assert told in str(caught.value)
