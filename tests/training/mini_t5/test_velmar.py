"""The rules of the invented language, by sentences that show them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from training.mini_t5.english import english
from training.mini_t5.lexicon import (
    ADJECTIVES,
    ANIMALS,
    COORDINATORS,
    INTRANSITIVE,
    PERSONS,
    PLACES,
    SPEECH,
    SUBORDINATORS,
    THINGS,
    TIMES,
    TRANSITIVE,
    Noun,
    Verb,
    Word,
)
from training.mini_t5.sentences import Author, Clause, Name, Phrase, Pronoun, Sentence
from training.mini_t5.velmar import is_front, number, velmar

NOUNS = {noun.singular: noun for noun in PERSONS + ANIMALS + THINGS + PLACES}
VERBS = {verb.base: verb for verb in TRANSITIVE + INTRANSITIVE + SPEECH}
ADJECTIVE = {word.english: word for word in ADJECTIVES}
CONJUNCTION = {word.english: word for word in COORDINATORS + SUBORDINATORS}
YESTERDAY = TIMES["past"][0]


def the(noun: str, **more: object) -> Phrase:
    return Phrase(NOUNS[noun], **({"plural": False, "definite": True} | more))  # type: ignore[arg-type]


def clause(subject: object, verb: str, thing: object = None, **more: object) -> Clause:
    return Clause(subject, VERBS[verb], thing, **more)  # type: ignore[arg-type]


def both(sentence: Sentence | Clause) -> tuple[str, str]:
    whole = sentence if isinstance(sentence, Sentence) else Sentence(sentence)
    return english(whole), velmar(whole)


BAKER, BOOK, KING, NURSE = the("baker"), the("book"), the("king"), the("nurse")


@pytest.mark.parametrize(
    ("said", "written", "translated"),
    [
        (clause(BAKER, "see", BOOK), "The baker saw the book.", "Birinede befikke popushantu."),
        (
            clause(NURSE, "see", BOOK, tense="future", negative=True, evidence="hearsay"),
            "Reportedly, the nurse will not see the book.",
            "Mabirineshiki fenekti popushantu.",
        ),
        (
            clause(BAKER, "see", BOOK, passive=True, negative=True),
            "The book was not seen by the baker.",
            "Mabirinede befikke popushantu.",
        ),
        (
            clause(the("baker", plural=True, adjective=ADJECTIVE["old"], origin="Kelbury"), "sleep"),
            "The old bakers of Kelbury slept.",
            "Vlenededer befikerke sirer Kelbury-il.",
        ),
        (
            clause(Name("Anna", "Rumont"), "see", Name("Boris", "Dreaberg"), place="Kelham", time=YESTERDAY),
            "Anna Rumont saw Boris Dreaberg in Kelham yesterday.",
            "Krol birinede Anna Rumont Boris Dreaberg-en Kelham-us.",
        ),
        (
            clause(the("king", plural=True, definite=False, count=47), "sell", the("key", definite=False)),
            "47 kings sold a key.",
            "Nebineder shibdik vit labun zerimen.",
        ),
    ],
)
def test_a_sentence_in_both_languages(said: Clause, written: str, translated: str) -> None:
    assert both(said) == (written, translated)


def test_the_verb_is_first_in_main_clauses_and_last_in_subordinate_ones() -> None:
    second = clause(Pronoun("he", BAKER), "see", BOOK, time=YESTERDAY)
    main = both(Sentence(clause(BAKER, "sleep"), CONJUNCTION["and"], second))
    subordinate = both(Sentence(clause(BAKER, "sleep"), CONJUNCTION["because"], second))
    assert main[0] == "The baker slept, and he saw the book yesterday."
    assert main[1] == "Vlenedede befikke, vo krol birinede nel popushantu."
    assert subordinate[1] == "Vlenedede befikke, kesu nel popushantu krol birinede."


def test_what_is_said_is_a_subordinate_clause() -> None:
    said = replace(clause(KING, "say"), content=clause(BAKER, "see", BOOK))
    assert both(said) == (
        "The king said that the baker saw the book.",
        "Bramasada labunka, gi befikke popushantu birinede.",
    )


def test_a_relative_pronoun_has_the_number_of_its_head_and_the_case_of_its_gap() -> None:
    sold = Clause(KING, VERBS["sell"])
    books = the("book", plural=True, relative=sold, gap="object")
    assert both(clause(BAKER, "see", books)) == (
        "The baker saw the books that the king sold.",
        "Birinede befikke popushorantu shorn labunka nebinede.",
    )
    bakers = the(
        "baker", plural=True, relative=Clause(None, VERBS["sell"], BOOK, tense="present"), gap="subject"
    )
    assert both(clause(bakers, "sleep")) == (
        "The bakers that sell the book slept.",
        "Vlenededer befikerke shar popushantu nebinimer.",
    )


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (2, "shib"),
        (10, "zhim"),
        (17, "zhimvit"),
        (20, "dik"),
        (31, "dik zhimbed"),
        (60, "fumdik"),
        (99, "sheldik zhimzad"),
    ],
)
def test_numbers_count_in_twenties(count: int, written: str) -> None:
    assert number(count) == written


def test_every_number_is_written_differently() -> None:
    assert len({number(count) for count in range(2, 100)}) == 98


def test_the_vowels_of_a_stem_are_all_front_or_all_back() -> None:
    words: list[Noun | Verb | Word] = [*NOUNS.values(), *VERBS.values(), *ADJECTIVES]
    for word in words:
        assert len({is_front(letter) for letter in word.stem if letter in "aeiou"}) == 1, word
    stems = [word.stem for word in words]
    assert len(set(stems)) == len(stems)


def test_adjective_and_verb_agree_with_the_class_of_the_noun() -> None:
    for noun in PERSONS:
        found = velmar(Sentence(clause(Phrase(noun, False, True, ADJECTIVE["old"]), "see", BOOK))).split()
        vowel = {1: "e", 2: "i"}[noun.noun_class]
        assert found[0] == f"Birined{vowel}", noun
        assert found[2] == f"sir{vowel}", noun


def test_one_english_sentence_has_one_translation() -> None:
    author = Author("train", random.Random(4))
    found: dict[str, set[str]] = {}
    for _ in range(4000):
        sentence = author.sentence()
        found.setdefault(english(sentence), set()).add(velmar(sentence))
    assert all(len(translations) == 1 for translations in found.values())
