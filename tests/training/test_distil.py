from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from training.corpus import Corpus
from training.distil import Distillation, distil, loss_of, rejected
from training.lessons import KEPT, Lessons, joined, teach
from training.model import Shape, build, load

TINY = Shape(layers=2, hidden=32, head_dim=16)


def small_corpus() -> Corpus:
    """Contexts of 6 to 9 tokens of 40, answered from the third token on."""
    generator = np.random.default_rng(0)
    lengths = 6 + np.arange(32) % 4
    answers = np.concatenate([np.arange(length) >= 2 for length in lengths])
    ids = generator.integers(1, 41, lengths.sum()).astype(np.uint16)
    return Corpus(ids, answers, np.concatenate([[0], np.cumsum(lengths)]))


@pytest.fixture(scope="module")
def lessons() -> Lessons:
    torch.manual_seed(0)
    target = build(TINY).eval()
    with torch.no_grad():
        target.model.embed_tokens.weight.mul_(20)  # random weights, but with something to say
    return teach(small_corpus(), target)


def test_the_target_is_asked_about_every_answer(lessons: Lessons) -> None:
    torch.manual_seed(0)
    target = build(TINY).eval()
    with torch.no_grad():
        target.model.embed_tokens.weight.mul_(20)
    corpus = lessons.corpus
    row = 0
    for begin, end in zip(corpus.starts[:-1], corpus.starts[1:], strict=True):
        ids = torch.from_numpy(corpus.ids[begin:end].astype(np.int64))[None]
        with torch.inference_mode():
            best = target(input_ids=ids).logits[0].log_softmax(-1).topk(KEPT)
        for place in range(2, int(end - begin)):
            assert lessons.logs[row] == pytest.approx(best.values[place - 1].numpy(), abs=0.02)
            assert lessons.tokens[row, 0] == best.indices[place - 1, 0]
            row += 1
    assert row == len(lessons.tokens)


def test_a_lesson_holds_the_rows_asked_for_behind_padding(lessons: Lessons) -> None:
    corpus, rows = lessons.corpus, np.array([3, 0])
    lesson = lessons.lesson(rows, 1.0, np.random.default_rng(0))
    assert lesson.ids.shape == (2, 9)
    assert lesson.answers.sum(1).tolist() == [7, 4]
    assert lesson.prompts.sum(1).tolist() == [1, 1]  # the second token: the first follows nothing
    before = [int(corpus.answers[: corpus.starts[row]].sum()) for row in rows]
    assert lesson.tokens[0].tolist() == lessons.tokens[before[0]].tolist()
    assert lesson.tokens[7].tolist() == lessons.tokens[before[1]].tolist()
    assert not lessons.lesson(rows, 0.0, np.random.default_rng(0)).prompts.any()


def test_joined_lessons_keep_their_answers(lessons: Lessons) -> None:
    both = joined([lessons, lessons])
    rows = np.array([5])
    generator = np.random.default_rng(0)
    first = both.lesson(rows, 0.0, generator)
    second = both.lesson(rows + len(lessons.corpus), 0.0, generator)
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.logs, second.logs)


def test_what_lies_outside_the_nucleus_is_not_asked_for() -> None:
    wanted = torch.tensor([[0.5, 0.45, 0.05]])
    offered = torch.tensor([[0.25, 0.25, 0.5]]).log()
    assert rejected(offered, wanted).item() == pytest.approx(0.5)
    certain = torch.tensor([[0.95, 0.05, 0.0]])
    assert rejected(certain.log(), certain).item() == pytest.approx(0.05)


def test_the_rate_warms_up_stays_and_falls_to_zero() -> None:
    recipe = Distillation(flat=1000, falling=500)
    assert recipe.rate(99) == pytest.approx(0.5)
    assert recipe.rate(900) == 1.0
    assert recipe.rate(1249) == pytest.approx(0.5)
    assert recipe.rate(1499) == pytest.approx(0.0)


@pytest.mark.thorough
def test_a_draft_comes_closer_to_its_target_and_the_same_seed_gives_the_same_one(
    lessons: Lessons, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    recipe = Distillation(TINY, tokens_per_batch=64, flat=150, falling=50)
    lesson = lessons.lesson(np.arange(32), 0.0, np.random.default_rng(0))
    torch.manual_seed(recipe.seed)
    untaught = loss_of(build(TINY), lesson, last_part=True)
    assert loss_of(distil(recipe, lessons, tmp_path / "taught"), lesson, last_part=True) < 0.8 * untaught
    assert (tmp_path / "taught" / "training.json").exists()
    for name in ("one", "two"):
        distil(replace(recipe, flat=6, falling=4), lessons, tmp_path / name)
    one, two = (load(tmp_path / name, "cpu").state_dict() for name in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)
