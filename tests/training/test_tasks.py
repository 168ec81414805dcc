from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from spsbench.base.paths import mini_dir
from training.corpus import draw_context, encode
from training.gates import Gate, difference_interval, passes, ratio_interval, rouge2, table
from training.tasks import write_tasks

COUNTS = {"xsum": 400, "xsum_train": 60, "xsum_unseen_templates": 120, "humaneval": 150}


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tasks(folder)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_the_shipped_data_is_what_the_seed_gives(written: Path, name: str, count: int) -> None:
    shipped = rows(mini_dir() / "data", name)
    assert len(shipped) == count
    assert shipped == rows(written, name)


def test_no_item_is_there_twice_and_none_of_the_exemplars_is_tested(written: Path) -> None:
    documents = [row["document"] for name in COUNTS if name != "humaneval" for row in rows(written, name)]
    assert len(set(documents)) == len(documents)
    prompts = [row["prompt"] for row in rows(written, "humaneval")]
    assert len(set(prompts)) == len(prompts)


def test_fields_are_those_of_xsum_and_humaneval(written: Path) -> None:
    assert set(rows(written, "xsum")[0]) == {"id", "document", "summary"}
    fields = {"task_id", "prompt", "entry_point", "canonical_solution", "test"}
    assert set(rows(written, "humaneval")[0]) == fields


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(mini_dir() / "target" / "tokenizer.json"))


def test_answers_and_the_end_are_marked_and_nothing_is_lost(tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(30):
        context = draw_context(rng)
        ids, answers = encode(context, tokenizer, eos=0)
        assert tokenizer.decode(ids[:-1]) == "".join(text for text, _ in context)
        wanted = "".join(text for text, answered in context if answered)
        answered = [token for token, flag in zip(ids[:-1], answers[:-1], strict=True) if flag]
        assert tokenizer.decode(answered) == wanted
        assert ids[-1] == 0
        assert answers[-1]


def test_the_one_shot_context_is_the_prompt_of_the_benchmark() -> None:
    rng = random.Random(5)
    texts = ["".join(text for text, _ in draw_context(rng)) for _ in range(60)]
    question = "\n\nSummarize the above article in one sentence.\nSummary: "
    assert any(text.count(question) == 2 for text in texts)
    assert all(text.endswith("\n") for text in texts)


def test_digits_stay_single_and_no_token_is_put_before_the_text(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer.encode("2024").ids] == list("2024")


PROBLEM = {
    "prompt": "def double(x):\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.mark.thorough
def test_programs_pass_fail_and_are_stopped_when_they_hang() -> None:
    bodies = ["    return 2 * x\n", "    return x\n", "    while True: pass\n", "    return (\n"]
    assert passes(bodies, [PROBLEM] * 4).tolist() == [1, 0, 0, 0]


def test_rouge_2_is_one_for_the_reference_and_zero_for_another_text() -> None:
    assert rouge2(["a b c", "x y z"], ["a b c", "a b c"]).tolist() == [1, 0]


def test_intervals_hold_the_estimate_and_are_paired() -> None:
    target = np.linspace(0.4, 0.9, 60) + np.tile([0.01, -0.01], 30)
    estimate, low, high = ratio_interval(target, target / 2 + np.tile([0.0, 0.002], 30))
    assert low <= estimate <= high
    assert high - low < 0.02
    gap, low, high = difference_interval(target, np.zeros(60))
    assert low < gap < high
    assert gap == pytest.approx(target.mean())


def test_the_table_names_what_failed() -> None:
    text = table([Gate("a", ">= 1", "0.5", False), Gate("b", "", "2", None)])
    assert "| a | >= 1 | 0.5 | FAIL |" in text
