"""Tasks of text: a prompt of columns in YAML, a reference, any metric."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.metrics.builtin import final_number
from spsbench.tasks.text_tokenizer import TextTokenizer

EXAMPLE = Path(__file__).parents[2] / "examples/gsm8k.yaml"
ROWS = [
    {"question": "What is 2 + 3?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5", "level": 1},
    {"question": "What is 600 + 600?", "answer": "600 + 600 = 1200\n#### 1,200", "level": 2},
]


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., str]:
    """The example with changes, as a file of its own."""

    def write(**changes: Any) -> str:
        path = tmp_path / "task.yaml"
        content = yaml.safe_load(EXAMPLE.read_text()) | changes
        path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
        return str(path)

    return write


def test_the_example_asks_and_scores_rows_of_gsm8k(
    write: Callable[..., Path], tokenizer: TextTokenizer
) -> None:
    task = load_task(str(EXAMPLE))
    data = task.load(str(write(ROWS)), None, 0)
    prompts = [task.prompt(example, data, tokenizer, 10_000, 256) for example in data.examples]
    by_reference = {prompt.reference: prompt for prompt in prompts}
    first, second = (by_reference[str(row["answer"])] for row in ROWS)
    assert first.text.endswith("#### 7\n\nQuestion: What is 2 + 3?\nAnswer:")
    answers = [" It is 5.\n#### 5", " 5, I think, or 6"]
    assert task.score([first, first], answers) == [{"final_number": 1.0}, {"final_number": 0.0}]
    assert task.score([second], [" So it is $1200.00."]) == [{"final_number": 1.0}]
    assert (task.headline, data.label, data.synthetic) == ("final_number", "gsm8k (rows.jsonl)", False)


def test_rows_without_an_id_have_one_that_no_order_changes(write: Callable[..., Path]) -> None:
    task = load_task(str(EXAMPLE))
    there, back = (task.load(str(write(rows)), None, 0) for rows in (ROWS, ROWS[::-1]))
    assert there.examples == back.examples
    assert there.provenance["content_sha256"] == back.provenance["content_sha256"]
    named = task.load(str(write([{**row, "id": n} for n, row in enumerate(ROWS)])), None, 0)
    assert {example.example_id for example in named.examples} == {"0", "1"}
    with pytest.raises(UnavailableError, match=r"line 2 of .* repeats the id"):
        task.load(str(write([ROWS[0], ROWS[0]])), None, 0)


def test_any_columns_braces_and_metrics(
    write: Callable[..., Path], spec: Callable[..., str], tokenizer: TextTokenizer
) -> None:
    changes = {"prompt": "{{{level}}} {question} {question}", "reference": "level", "headline": "exact_match"}
    task = load_task(spec(**changes, metrics=["exact_match"]))
    data = task.load(str(write(ROWS[:1])), None, 0)
    prompt = task.prompt(data.examples[0], data, tokenizer, 1000, 8)
    assert prompt.text == "{1} What is 2 + 3? What is 2 + 3?"
    assert task.score([prompt], [" 1\n"]) == [{"exact_match": 1.0}]
    with pytest.raises(UnavailableError, match="has no column 'question'"):
        task.load(str(write([{"level": 1}])), None, 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt": "What?"}, "prompt names no column in braces"),
        ({"prompt": "{}"}, "prompt has {}, which is not a column"),
        ({"prompt": "{question.real}"}, "prompt has {question.real}"),
        ({"prompt": "{question!r}"}, "prompt has {question}"),
        ({"prompt": "{question"}, "expected '}' before end of string"),
        ({"reference": None}, "a task of text needs a reference"),
        ({"metrics": None}, "headline is final_number, not one of"),
    ],
)
def test_a_mistake_is_told(spec: Callable[..., str], changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_task(spec(**changes))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("output", "reference", "score"),
    [
        ("So 42.", "#### 42", 1),
        ("#### 42\n\nQuestion: 7", "#### 42", 1),
        ("It is 41, no, 42", "42", 1),
        ("1,234,567", "#### 1234567", 1),
        ("$3.50", "3.5", 1),
        ("50 - 8 = 42", "42", 1),
        ("10-2", "2", 1),
        ("-3", "#### -3", 1),
        ("3", "#### -3", 0),
        ("42 or 43", "42", 0),
        ("#### none, though 42", "#### 43", 0),
        ("no number", "42", 0),
        ("", "42", 0),
        (" yes ", "yes", 1),
        ("12", "yes", 0),
        (r"\boxed{\frac{1}{2}}", "#### .5", 1),
        (r"\boxed{\frac{1}{2}}", "#### 1", 0),
        (r"\boxed{-1\dfrac12}", "#### -1.5", 1),
        (r"\boxed{\frac{1{,}200}{4}}", "#### 300", 1),
        (r"\boxed{2 3/4 \text{ cups}}", "#### 2.75", 1),
        (r"\boxed{1/3}", f"#### {1 / 3}", 1),
        (r"\boxed{60 \text{ miles/hour}}", "#### 60", 1),
        (r"\boxed{3/4/2020}", "#### 3", 1),
        (r"\boxed{\frac{1}{0}}", "#### 1", 1),
        ("#### 1/2", "#### 1", 1),
    ],
)
def test_the_number_that_a_text_arrives_at(output: str, reference: str, score: float) -> None:
    assert final_number(["q"], [output], [reference]) == [score]
