"""The tasks that papers quote acceptance on, against a hub on this machine with made-up rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commandline import call
from support.hub import Hub, connected

from spsbench.base.errors import UnavailableError
from spsbench.base.paths import mini_dir
from spsbench.base.records import Prompt
from spsbench.models import downloads
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.spec import FIELD_TASKS
from spsbench.tasks.task import TaskData, YamlTask
from spsbench.tasks.text_tokenizer import TextTokenizer
from training.field import write_field

Rows = list[dict[str, Any]]
Publish = Callable[[str, dict[str, Rows]], None]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """Put files of rows into the repository of a task, at the commit that the task pins."""
    with Hub(tmp_path / "served") as hub, connected(hub, tmp_path / "home", monkeypatch):

        def put(task: str, files: dict[str, Rows]) -> None:
            (source,) = spec(task).data.hub
            for name, rows in files.items():
                path = tmp_path / "served/datasets" / source.repository / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix == ".parquet":
                    pq.write_table(pa.Table.from_pylist(rows), path)
                else:
                    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            hub.set(source.repository, pinned=source.revision)

        yield put


def spec(task: str) -> Any:
    loaded = load_task(task)
    assert isinstance(loaded, YamlTask)
    return loaded.spec


def asked(task: str, data: TaskData, tokenizer: TextTokenizer, *, chat: bool = False) -> list[Prompt]:
    loaded = load_task(task)
    return [loaded.prompt(example, data, tokenizer, 1_000_000, 64, chat) for example in data.examples]


def word_problems(first: int, count: int) -> Rows:
    return [
        {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
        for n in range(first, first + count)
    ]


GSM8K = {
    "main/test-00000-of-00001.parquet": word_problems(100, 3),
    "main/train-00000-of-00001.parquet": word_problems(0, 12),
    "socratic/test-00000-of-00001.parquet": word_problems(500, 2),
}


def test_gsm8k_has_eight_shots_of_its_own_train_split_and_none_in_a_chat(
    publish: Publish, tokenizer: TextTokenizer
) -> None:
    publish("gsm8k", GSM8K)
    data = load_task("gsm8k").load("official", None, 0)
    prompts = asked("gsm8k", data, tokenizer)
    assert sorted(prompt.reference[:9] for prompt in prompts) == ["100 + 1 =", "101 + 1 =", "102 + 1 ="]
    solved = "".join(f"Question: {r['question']}\nAnswer: {r['answer']}\n\n" for r in word_problems(0, 8))
    assert all(prompt.text.startswith(f"{solved}Question: What is 10") for prompt in prompts)
    assert all(prompt.text.endswith("?\nAnswer:") for prompt in prompts)
    assert data.provenance["revision"] == spec("gsm8k").data.hub[0].revision
    in_chat = asked("gsm8k", data, tokenizer, chat=True)
    assert sorted(prompt.text for prompt in in_chat) == [f"What is {n} + 1?" for n in (100, 101, 102)]
    task = load_task("gsm8k")
    assert (task.stop_for(prompts[0]), task.stop_for(in_chat[0])) == (("\n\n", "\nQuestion:"), ())
    text = " 100 and 1 make <<100+1=101>>101.\n#### 101"
    first = next(prompt for prompt in prompts if "is 100" in prompt.text)
    assert task.score([first, first], [text, "It is 10."]) == [{"final_number": 1.0}, {"final_number": 0.0}]


def test_other_solved_examples_are_another_task(publish: Publish) -> None:
    publish("gsm8k", GSM8K)
    before = load_task("gsm8k").load("official", None, 0).provenance["prompt_sha256"]
    train = word_problems(1, 12)
    publish("gsm8k", {"main/train-00000-of-00001.parquet": train})
    downloads.forget()
    local = load_task("gsm8k").load("mini", None, 0).provenance["prompt_sha256"]
    assert before != local


@pytest.mark.parametrize("split", ["test", "train"])
def test_a_column_that_its_owners_renamed_is_named_before_anything_is_loaded(
    publish: Publish, split: str
) -> None:
    renamed = [{"query": row["question"], "answer": row["answer"]} for row in word_problems(0, 9)]
    publish("gsm8k", GSM8K | {f"main/{split}-00000-of-00001.parquet": renamed})
    with pytest.raises(UnavailableError) as caught:
        load_task("gsm8k").load("official", None, 0)
    revision = spec("gsm8k").data.hub[0].revision
    assert caught.value.message == (
        f"openai/gsm8k at {revision} has no column question (its columns: query, answer)."
    )
    assert "data.columns" in str(caught.value.remedy)


def test_a_file_of_ones_own_gives_its_first_rows_as_solved_examples_unless_others_lie_beside_it(
    write: Callable[..., Path],
) -> None:
    path = write(word_problems(0, 11), "own.jsonl")
    task = load_task("gsm8k")
    data = task.load(str(path), None, 0)
    assert sorted(example.fields["question"] for example in data.examples) == sorted(
        row["question"] for row in word_problems(8, 3)
    )
    assert "What is 7 + 1?" in data.shots
    with pytest.raises(UnavailableError, match="no row beyond the 8 solved examples"):
        task.load(str(write(word_problems(0, 8), "few.jsonl")), None, 0)
    with pytest.raises(UnavailableError, match="has 7 rows for the 8 solved examples"):
        task.load(str(write(word_problems(0, 7), "fewer.jsonl")), None, 0)
    write(word_problems(50, 8), "own_train.jsonl")
    beside = task.load(str(path), None, 0)
    assert len(beside.examples) == 11
    assert "What is 57 + 1?" in beside.shots


def test_the_stand_ins_are_what_their_generator_writes(tmp_path: Path) -> None:
    write_field(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (mini_dir() / "data" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", FIELD_TASKS)
def test_every_task_of_the_field_has_a_stand_in_that_is_called_so_and_a_greedy_sampling(name: str) -> None:
    task = load_task(name)
    data = task.load("mini", 3, 0)
    assert (data.label, data.synthetic, len(data.examples)) == (f"{name}-mini (synthetic)", True, 3)
    assert task.samplings["greedy"].greedy
    assert all(len(source.revision) == 40 for source in spec(name).data.hub) or name == "cnndm"


def problem(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "task_id": number,
        "text": f"Write a function to add {number}.",
        "code": f"def add{number}(x):\r\n    return x + {number}",
        "test_list": [
            f"assert add{number}(1) == {number + 1}",
            f"assert set(add{number}((2,)[0]) for i in 'ab')",
        ],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
    return row | changes


def test_mbpp_shows_problems_2_to_4_and_judges_what_the_assertions_say(
    publish: Publish, tokenizer: TextTokenizer
) -> None:
    needs_a_class = problem(
        12, code="class Pair: ...\ndef add12(x):\n    return 1", test_list=["assert add12(Pair()) == 1"]
    )
    imports = problem(13, test_setup_code="import math", test_list=["assert math.isclose(add13(1), 14)"])
    several_lines = problem(14, test_list=["assert add14(1) == 15\nassert '''a\n b''' != add14(2)"])
    files = {
        "full/test-00000-of-00001.parquet": [problem(11), needs_a_class, imports, several_lines],
        "full/prompt-00000-of-00001.parquet": [problem(n) for n in range(1, 11)],
        "full/train-00000-of-00001.parquet": [problem(601)],
        "sanitized/test-00000-of-00001.parquet": [problem(77)],
    }
    publish("mbpp", files)
    task = load_task("mbpp")
    data = task.load("official", None, 0)
    assert sorted(example.example_id for example in data.examples) == ["11", "13", "14"]
    assert data.provenance["skipped_untestable"] == 1
    by_id = {prompt.example_id: prompt for prompt in asked("mbpp", data, tokenizer)}
    text = by_id["11"].text
    assert [f"add{n}(x)" in text for n in (1, 2, 3, 4, 5)] == [False, True, True, True, False]
    assert text.count("[BEGIN]\n") == 4
    assert text.count("[DONE]") == 3
    assert "\r" not in text
    right = "def add{0}(x):\n    return x + {0}\n"
    prompts = [by_id[name] for name in ("11", "13", "14", "11")]
    answers = [right.format(11), right.format(13), right.format(14), "def add11(x):\n    return x\n"]
    passed = [score["passed"] for score in task.score(prompts, answers)]
    assert passed == [1.0, 1.0, 1.0, 0.0]
    (in_chat, *_) = [one for one in asked("mbpp", data, tokenizer, chat=True) if one.example_id == "11"]
    assert in_chat.text.startswith("Write a function to add 11. Your code should pass these tests:\n\nassert")
    assert task.stop_for(in_chat) == ()
    fenced = f"Here it is.\n```python\n{right.format(11)}```\nDone."
    assert task.score([in_chat], [fenced])[0]["passed"] == 1.0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"test_list": "assert True"}, "'test_list' holds 'assert True' instead of a list of assertions"),
        ({"test_list": ["assert ("]}, "holds code that is not Python"),
    ],
)
def test_a_problem_that_is_none_is_named(
    write: Callable[..., Path], changes: dict[str, Any], told: str
) -> None:
    rows = [*(problem(n) for n in range(1, 7)), problem(7, **changes)]
    with pytest.raises(UnavailableError, match=told):
        load_task("mbpp").load(str(write(rows)), None, 0)


def test_math500_is_asked_for_a_box_and_has_no_solved_example(
    publish: Publish, tokenizer: TextTokenizer
) -> None:
    row = {
        "problem": "What is $1+1$?",
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "subject": "Algebra",
    }
    publish("math500", {"test.jsonl": [row | {"level": 1, "unique_id": "test/algebra/1.json"}]})
    data = load_task("math500").load("official", None, 0)
    (plain,), (chat,) = (asked("math500", data, tokenizer, chat=chat) for chat in (False, True))
    ask = "What is $1+1$?{}Reason step by step, and put the final answer in \\boxed{{}}."
    assert plain.text == f"Problem: {ask.format(chr(10))}\nSolution:"
    assert chat.text == ask.format("\n\n")
    assert (plain.reference, data.provenance["revision"]) == ("2", spec("math500").data.hub[0].revision)


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("so it is $\\boxed{\\frac{26}{48}}$.", "\\frac{13}{24}", 1.0),
        ("The answer is 0.5", "\\frac12", 1.0),
        ("we get \\boxed{(3,\\pi/2)}", "\\left( 3, \\frac{\\pi}{2} \\right)", 1.0),
        ("At first $\\boxed{1}$, in the end $\\boxed{2}$.", "2", 1.0),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", 1.0),
        ("It is 4.", "5", 0.0),
        ("\\boxed{", "5", 0.0),
        ("", "5", 0.0),
    ],
)
def test_answers_are_equal_as_mathematics(answer: str, reference: str, equal: float) -> None:
    pytest.importorskip("math_verify")
    from spsbench.tasks.metrics.equal_answers import math_answer

    assert math_answer([""], [answer], [reference]) == [equal]


def test_a_run_that_would_be_scored_without_the_library_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from spsbench.tasks.metrics import equal_answers

    monkeypatch.setattr(equal_answers, "find_spec", lambda name: None)
    refused = call("run", "math500", "--limit", "1", "--out", tmp_path / "run")
    assert refused.code == 3
    assert "needs the package math-verify" in refused.err
    assert "--no-score" in refused.err
    assert not (tmp_path / "run").exists()


def test_alpaca_asks_with_and_without_an_input(publish: Publish, tokenizer: TextTokenizer) -> None:
    rows = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "Add. 1 and 2 3"},
        {"instruction": "Sing.", "input": "", "output": "La.", "text": "Sing. La."},
        {"instruction": "Say nothing.", "input": "", "output": "", "text": "Say nothing."},
    ]
    publish("alpaca", {"data/train-00000-of-00001-0123456789abcdef.parquet": rows})
    data = load_task("alpaca").load("official", None, 0)
    assert data.provenance["skipped_empty"] == 1
    texts = [
        sorted(prompt.text for prompt in asked("alpaca", data, tokenizer, chat=chat))
        for chat in (False, True)
    ]
    assert texts == [
        ["Instruction: Add.\n1 and 2\nResponse:", "Instruction: Sing.\n\nResponse:"],
        ["Add.\n\n1 and 2", "Sing."],
    ]


def test_mt_bench_asks_first_turns_by_category_and_the_second_after_an_answer(
    publish: Publish, tokenizer: TextTokenizer
) -> None:
    rows = [
        {"prompt": ["Describe it.", "Shorter."], "prompt_id": 81, "category": "writing", "reference": []},
        {"prompt": ["What is 2 + 2?", "And 3?"], "prompt_id": 111, "category": "math", "reference": ["4"]},
    ]
    publish("mt-bench", {"data/train-00000-of-00001.parquet": rows})
    task = load_task("mt-bench")
    data = task.load("official", None, 0)
    prompts = asked("mt-bench", data, tokenizer, chat=True)
    found = sorted((one.example_id, one.text, one.category, one.reference) for one in prompts)
    assert found == [("111", "What is 2 + 2?", "math", ""), ("81", "Describe it.", "writing", "")]
    assert data.provenance["unasked_turns"] == 2
    assert (task.headline, task.metrics) == (None, ())
    example, first = next(
        pair for pair in zip(data.examples, prompts, strict=True) if pair[1].example_id == "81"
    )
    talk = task.conversation(example, first)
    assert talk is not None
    second = talk.prompt(first, ["It is big."], tokenizer)
    assert (second.example_id, second.turn, second.conversation) == ("81/2", 2, "81")
    assert (second.text, second.category) == ("Shorter.", "writing")
    said = [("user", "Describe it."), ("assistant", "It is big."), ("user", "Shorter.")]
    messages = [{"role": role, "content": text} for role, text in said]
    assert second.ids == tuple(tokenizer.conversation(messages))
    assert all(one.text.startswith("Question: ") for one in asked("mt-bench", data, tokenizer))


def test_turns_that_are_none_are_named(write: Callable[..., Path]) -> None:
    path = write([{"prompt": [], "prompt_id": 1}])
    with pytest.raises(UnavailableError, match="holds \\[\\] instead of a list of turns"):
        load_task("mt-bench").load(str(path), None, 0)
