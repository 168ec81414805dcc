"""Text on disk, what is left out of it and what is held out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spsbench.parts.distill.corpus import (
    WORDS,
    Corpus,
    Evaluated,
    Lessons,
    Shard,
    is_held_out,
    lessons_of,
    shard_of,
)
from spsbench.parts.distill.sampler import Sampled

PROBLEM = "Write a function that returns the second largest number of a list without sorting it first please"


def sequence(*ids: int, start: int = 1) -> Sampled:
    tokens = torch.tensor(ids)
    return Sampled(tokens, start, torch.randn(len(ids) - 1, 4), torch.randn(len(ids) - start))


def shard(*prompts: str) -> Shard:
    return shard_of("chat", prompts, [sequence(1, 2, 3 + i) for i in range(len(prompts))])


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    parts = [sequence(1, 2, 3, 4), sequence(5, 6, 7, start=2)]
    corpus = Corpus(tmp_path)
    corpus.write(3, shard_of("code", ["a", "b"], parts))
    assert (corpus.numbers(), corpus.drawn(3)) == ([3], 4)
    found = corpus.read(3)
    assert (found.kind, found.prompts) == ("code", ["a", "b"])
    for one, other in zip(parts, found.sequences(), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.start == other.start
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.log_masses, other.log_masses)


def test_a_shard_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    corpus, made = Corpus(tmp_path), []
    for _ in range(2):
        corpus.require(0, lambda: made.append(1) or shard("a"))  # type: ignore[func-returns-value]
    assert len(made) == 1


def test_a_shard_that_was_being_written_is_no_shard(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.path(0).with_suffix(".part").write_bytes(b"half")
    assert corpus.numbers() == []
    corpus.require(0, lambda: shard("a"))
    assert corpus.read(0).prompts == ["a"]


def test_thirteen_words_in_a_row_are_an_overlap_and_twelve_are_none() -> None:
    words = PROBLEM.split()
    evaluated = Evaluated([PROBLEM])
    assert evaluated.overlaps("and so: " + " ".join(words[2 : 2 + WORDS]).upper() + "!")
    assert not evaluated.overlaps(" ".join(words[2 : 1 + WORDS]) + " else")
    assert not Evaluated([]).overlaps(PROBLEM)


def test_what_overlaps_is_left_out_and_counted(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.write(0, shard("a", "b", "c"))

    def decode(ids: object) -> str:
        return PROBLEM if ids == [1, 2, 4] else "nothing of the kind"

    found = lessons_of(corpus, 100, decode, Evaluated([PROBLEM]))
    kept = [item for group in (found.learnt, found.held_out) for part in group.values() for item in part]
    assert (found.contaminated, len(kept)) == (1, 2)
    assert all(item.tokens.tolist() != [1, 2, 4] for item in kept)


def test_a_request_is_learnt_from_or_held_out_and_never_both(tmp_path: Path) -> None:
    prompts = [f"request {i // 2}" for i in range(200)]
    corpus = Corpus(tmp_path)
    corpus.write(0, shard(*prompts))
    found = lessons_of(corpus, 1_000, lambda ids: "", Evaluated([]))
    held = sum(map(is_held_out, prompts))
    assert 0 < held < 40
    assert held % 2 == 0
    assert (len(found.held_out["chat"]), len(found.learnt["chat"])) == (held, 200 - held)


def test_only_as_much_text_as_was_asked_for_is_read(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for number in range(3):
        corpus.write(number, shard("a", "b"))
    found = lessons_of(corpus, 5, lambda ids: "", Evaluated([]))
    assert sum(len(group) for group in (*found.learnt.values(), *found.held_out.values())) == 4


@pytest.mark.parametrize("size", [2, 3])
def test_the_vocabulary_is_what_was_written_most_often_and_the_ends(size: int) -> None:
    lessons = Lessons({"chat": [sequence(1, 5, 5, 5, 7, 7, 2)]})
    wanted = {2: [5, 9], 3: [5, 7, 9]}[size]
    assert lessons.vocabulary(size, [9], 12).tolist() == wanted
