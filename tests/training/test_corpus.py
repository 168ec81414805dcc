from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from spsbench.paths import mini_dir
from training.corpus import draw_context, encode


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
