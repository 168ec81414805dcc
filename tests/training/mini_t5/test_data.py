"""Generators: the same seed gives the same data, and what is held out is held out."""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from spsbench.base.paths import mini_dir
from training.gates import rows_of
from training.mini_t5.english import english
from training.mini_t5.examples import draw_example
from training.mini_t5.highlights import HEADLINES, make_report
from training.mini_t5.sentences import Author, Clause, Name, Phrase, Sentence, triples
from training.mini_t5.tasks import REPORTS, TRANSLATIONS, write_tasks
from training.news_templates import EVENTS
from training.split import Part, part_of


@cache
def sentences(part: Part, count: int) -> list[Sentence]:
    author = Author(part, random.Random(7))
    return [author.sentence() for _ in range(count)]


def triples_of(sentence: Sentence) -> set[tuple[str, str, str]]:
    return {triple for clause in (sentence.first, sentence.second) if clause for triple in triples(clause)}


def names_of(clause: Clause) -> set[str]:
    """Family names of a clause and those inside it."""
    found = set()
    for participant in (clause.subject, clause.object):
        if isinstance(participant, Name):
            found.add(participant.family)
        if isinstance(participant, Phrase) and participant.relative:
            found |= names_of(participant.relative)
    return found


def test_the_same_seed_gives_the_same_examples() -> None:
    first, second = ([draw_example(rng) for _ in range(50)] for rng in (random.Random(3), random.Random(3)))
    assert first == second


def test_who_does_what_to_whom_is_held_out_in_every_clause() -> None:
    trained = {triple for sentence in sentences("train", 1500) for triple in triples_of(sentence)}
    held_out = {triple for sentence in sentences("heldout", 300) for triple in triples_of(sentence)}
    assert len(held_out) > 300
    assert not trained & held_out
    assert all(part_of(*triple) == "heldout" for triple in held_out)


@pytest.mark.thorough
def test_held_out_sentences_are_as_long_as_those_of_training() -> None:
    trained, held_out = (
        sum(len(english(sentence).split()) for sentence in sentences(part, 1500)) / 1500
        for part in ("train", "heldout")
    )
    assert held_out == pytest.approx(trained, rel=0.07)


def test_family_names_are_held_out() -> None:
    for part in ("train", "heldout"):
        found = set().union(*(names_of(sentence.first) for sentence in sentences(part, 300)))
        assert len(found) > 50
        assert all(part_of(name.lower()) == part for name in found)


def test_highlights_can_be_copied_from_the_document_but_for_their_frame() -> None:
    rng = random.Random(5)
    for _ in range(200):
        report = make_report("heldout", rng)
        headline, person, reason = report.highlights.split("\n")
        name, _, home = re.match(r"(\w+ \w+), a (\w+) from (\w+), is ", person).groups()  # type: ignore[union-attr]
        figure = re.search(r"\d+", reason)
        assert figure
        assert figure[0] in report.article
        for copied in (name, home, headline.removesuffix(".").split(" on ")[1]):
            assert copied in report.article


def test_each_event_has_headlines_and_both_forms_of_the_reason_occur() -> None:
    assert len(HEADLINES) == len(EVENTS)
    rng = random.Random(6)
    reasons = [make_report("train", rng).highlights.split("\n")[2] for _ in range(50)]
    assert {reason.startswith("Count of") for reason in reasons} == {True, False}


def test_held_out_reports_use_combinations_that_training_never_draws() -> None:
    rng = random.Random(8)
    assert all(part_of(*make_report("heldout", rng).combination) == "heldout" for _ in range(50))
    assert all(part_of(*make_report("train", rng).combination) == "train" for _ in range(50))


@pytest.mark.thorough
def test_task_files_are_the_shipped_bytes_again_and_hold_no_sentence_twice(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    for file, count in (("wmt.jsonl", TRANSLATIONS), ("cnndm.jsonl", REPORTS)):
        assert (tmp_path / file).read_bytes() == (mini_dir("mini_t5") / "data" / file).read_bytes()
        rows = rows_of(tmp_path / file)
        assert len({row.get("source", row.get("article")) for row in rows}) == count
        assert all(first["id"] != second["id"] for first, second in pairwise(rows))
