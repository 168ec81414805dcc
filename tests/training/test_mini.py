"""The pair as it ships: complete, loadable, small, labelled."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer

from spsbench.base.paths import mini_dir
from training.gates import passes, rows_of, shipped_bytes
from training.model import DRAFT, TARGET, Shape


@pytest.mark.parametrize(("name", "shape"), [("target", TARGET), ("draft", DRAFT)])
def test_the_shipped_models_have_the_shapes_of_the_recipe(name: str, shape: Shape) -> None:
    config = AutoConfig.from_pretrained(mini_dir() / name)
    assert (config.num_hidden_layers, config.hidden_size) == (shape.layers, shape.hidden)
    assert config.max_position_embeddings >= 2048
    with safe_open(mini_dir() / name / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_both_models_have_one_tokenizer_with_single_digits_and_no_bos() -> None:
    files = [(mini_dir() / name / "tokenizer.json").read_bytes() for name in ("target", "draft")]
    assert files[0] == files[1]
    tokenizer = AutoTokenizer.from_pretrained(mini_dir() / "target")
    assert len(tokenizer) == 1024
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token == "<|endoftext|>"
    text = "    result = [x + 12 for x in values]\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_at_most_25_megabytes_ship_and_the_card_says_synthetic() -> None:
    assert shipped_bytes(mini_dir()) <= 25_000_000
    assert "synthetic" in (mini_dir() / "README.md").read_text().splitlines()[0]


def test_every_shipped_problem_is_solved_by_its_solution_and_by_no_trivial_one() -> None:
    problems = rows_of(mini_dir() / "data" / "humaneval.jsonl")
    answers = [problem["test"].split(" == ", 1)[1].split("\n", 1)[0] for problem in problems]
    firsts = [
        problem["prompt"].split(f"{problem['entry_point']}(", 1)[1].split(")")[0].split(",")[0].split(":")[0]
        for problem in problems
    ]
    assert passes([problem["canonical_solution"] for problem in problems], problems).all()
    assert not passes(["    pass\n" for _ in problems], problems).any()
    assert not passes([f"    return {answer}\n" for answer in answers], problems).any()
    assert not passes([f"    return {first}\n" for first in firsts], problems).any()


def test_the_record_of_the_training_is_there() -> None:
    for name in ("target", "draft"):
        record = json.loads((mini_dir() / name / "training.json").read_text())
        assert record["updates"] > 0
        assert record["device"]
