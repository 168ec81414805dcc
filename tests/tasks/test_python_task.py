"""A task in Python: its examples, prompts and provenance, and what is told of each mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Example, SamplingParams
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.kind import PythonTask, TaskKind
from spsbench.tasks.metrics.registry import metric_kinds
from spsbench.tasks.text_tokenizer import TextTokenizer

EXAMPLES = [Example(str(number), {"n": number}, reference=str(number + 1)) for number in range(6)]


def read(path: Path) -> Iterator[Example]:
    for line in path.read_text().splitlines():
        yield Example(**json.loads(line))


def prompt(example: Example) -> str:
    return f"{example.fields['n']} + 1 ="


KIND = TaskKind("next", "The next number.", lambda: EXAMPLES, prompt, ("exact_match", "rouge1"))


def task(**changes: Any) -> PythonTask:
    kind = replace(KIND, **changes)
    return PythonTask(kind, metric_kinds(kind.metrics))


def test_what_it_says_holds() -> None:
    mine = task(stop=("\n",), max_new_tokens=4)
    assert (mine.name, mine.stop, mine.max_new_tokens, mine.headline) == ("next", ("\n",), 4, "exact_match")
    assert mine.default_sampling == "nucleus"
    assert mine.samplings["greedy"] == SamplingParams(greedy=True)
    assert task(metrics=()).headline is None
    assert not mine.runs_code


def test_a_larger_limit_extends_a_smaller_one() -> None:
    few, many = (task().load("official", limit, seed=3) for limit in (2, 5))
    assert many.examples[:2] == few.examples
    assert few.provenance == many.provenance
    assert task().load("official", 2, seed=4).examples != few.examples


def test_provenance_tells_other_prompts_and_other_examples() -> None:
    before = task().load("official", None, 0).provenance
    others = task(prompt=lambda example: f"After {example.fields['n']}:").load("official", None, 0).provenance
    assert others["prompt_sha256"] != before["prompt_sha256"]
    assert others["content_sha256"] == before["content_sha256"]
    fewer = task(examples=lambda: EXAMPLES[1:]).load("official", None, 0).provenance
    assert fewer["ids_sha256"] != before["ids_sha256"]


def test_its_own_examples_and_those_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({"example_id": "x", "fields": {"n": 7}, "reference": "8"}) + "\n")
    mine = task(read=read, synthetic=True)
    own, other = mine.load("mini", None, 0), mine.load(str(file), None, 0)
    assert (own.label, own.synthetic, len(own.examples)) == ("next (synthetic)", True, 6)
    assert (other.label, other.synthetic, len(other.examples)) == ("next (more.jsonl)", False, 1)
    assert other.provenance["source"] == str(file)
    with pytest.raises(UsageError, match="reads no file"):
        task().load(str(file), None, 0)
    with pytest.raises(UnavailableError, match=r".*.*gone\.jsonl"):
        mine.load(str(tmp_path / "gone.jsonl"), None, 0)


def test_a_prompt_fits_or_is_refused(tokenizer: TextTokenizer) -> None:
    mine = task()
    data = mine.load("official", None, 0)
    found = mine.prompt(EXAMPLES[2], data, tokenizer, 20, 4)
    assert (found.text, found.reference, len(found.ids)) == ("2 + 1 =", "3", 8)
    assert mine.prompt(EXAMPLES[2], data, tokenizer, 20, 4, chat_template=True).chat
    with pytest.raises(UsageError, match="leaves room for 7"):
        mine.prompt(EXAMPLES[2], data, tokenizer, 11, 4)


def fails(*_: object) -> Any:
    raise KeyError("n")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"examples": list}, "has no example"),
        ({"examples": fails}, "gave no examples: KeyError: 'n'"),
        ({"examples": lambda: ["1"]}, "gave str for an Example"),
        ({"examples": lambda: None}, "gave no examples: TypeError"),
        ({"examples": lambda: [Example("1", {}, 3)]}, "id or reference is not text"),
        ({"examples": lambda: EXAMPLES * 2}, "gave the id '0' twice"),
        ({"examples": lambda: [Example("1", {"n": {1}}, "")]}, "cannot be hashed: TypeError"),
        ({"prompt": fails}, "gave no prompt of 0: KeyError: 'n'"),
        ({"prompt": lambda example: ""}, "gave '' for the prompt of 0"),
        ({"prompt": lambda example: 3}, "gave 3 for the prompt of 0"),
    ],
)
def test_what_it_does_wrong_is_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UnavailableError, match="the task next") as caught:
        task(**changes).load("official", None, 0)
    assert told in str(caught.value)


def test_a_task_without_a_sampling_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bare.py"
    file.write_text("from spsbench import TaskKind\nKIND = TaskKind('bare', '', list, str, samplings={})\n")
    with pytest.raises(UsageError, match="the task bare has no sampling"):
        load_task(f"{file}:KIND")


def test_answers_of_a_python_task_hold_no_code(tmp_path: Path) -> None:
    file = tmp_path / "bare.py"
    file.write_text("from spsbench import TaskKind\nKIND = TaskKind('bare', '', list, str)\n")
    with pytest.raises(UsageError, match="contain no code"):
        load_task(f"{file}:KIND", extract="fence")
