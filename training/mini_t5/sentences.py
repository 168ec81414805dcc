"""What a sentence of the translation task says, before it is written in English or in Velmar."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from training import names
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
from training.split import Part, part_of

Tense = Literal["past", "present", "future"]
Evidence = Literal["witnessed", "hearsay", "inferred"]

ADJECTIVE_SHARE = 0.4
NAME_SHARE = 0.25
RELATIVE_SHARE = 0.3
ORIGIN_SHARE = 0.2
NUMBER_SHARE = 0.2
PLACE_SHARE = 0.4
TIME_SHARE = 0.4
NEGATIVE_SHARE = 0.2
PASSIVE_SHARE = 0.2
SPEECH_SHARE = 0.15
TRANSITIVE_SHARE = 0.7
SECOND_CLAUSE_SHARE = 0.4
PRONOUN_SHARE = 0.5


@dataclass(frozen=True)
class Phrase:
    """A noun with what belongs to it.

    Attributes:
        noun: the head.
        plural, definite: number and article.
        adjective: one or none.
        count: a number from 2 to 99 in place of an article, or None.
        origin: the town behind "of", or empty.
        relative: a clause about the head, whose subject or object (``gap``) the head is.
    """

    noun: Noun
    plural: bool
    definite: bool
    adjective: Word | None = None
    count: int | None = None
    origin: str = ""
    relative: Clause | None = None
    gap: Literal["subject", "object"] = "subject"


@dataclass(frozen=True)
class Name:
    """A person's first and family name, of class 1 and singular."""

    first: str
    family: str


@dataclass(frozen=True)
class Pronoun:
    """A pronoun for ``antecedent``; ``english`` is he, she, it or they."""

    english: str
    antecedent: Phrase | Name


Participant = Phrase | Name | Pronoun


@dataclass(frozen=True)
class Clause:
    """Who does what, where, when. A relative clause lacks the participant that is its head."""

    subject: Participant | None
    verb: Verb
    object: Participant | None = None
    content: Clause | None = None
    place: Phrase | str = ""
    time: Word | None = None
    tense: Tense = "past"
    negative: bool = False
    evidence: Evidence = "witnessed"
    passive: bool = False


@dataclass(frozen=True)
class Sentence:
    """A clause, or two with a conjunction between them."""

    first: Clause
    conjunction: Word | None = None
    second: Clause | None = None


def triples(clause: Clause, head: str = "", gap: str = "") -> Iterator[tuple[str, str, str]]:
    """(subject, verb, object) of a clause and of every clause inside it; all names count as one word.

    ``head`` is what the clause is about, if it is a relative one, as its ``gap``.
    """
    yield _triple(clause, head, gap)
    for phrase in (clause.subject, clause.object):
        if isinstance(phrase, Phrase) and phrase.relative:
            yield from triples(phrase.relative, phrase.noun.singular, phrase.gap)
    if clause.content:
        yield from triples(clause.content)


def _triple(clause: Clause, head: str, gap: str) -> tuple[str, str, str]:
    subject = head if gap == "subject" else _word(clause.subject)
    return subject, clause.verb.base, head if gap == "object" else _word(clause.object)


def _word(participant: Participant | None) -> str:
    if isinstance(participant, Pronoun):
        return _word(participant.antecedent)
    if isinstance(participant, Name):
        return "NAME"
    return participant.noun.singular if participant else ""


@dataclass(frozen=True)
class Author:
    """Draws sentences of one part: its names, and who does what to whom as only this part has it."""

    part: Part
    rng: random.Random

    def sentence(self) -> Sentence:
        """One sentence; both clauses keep to the part."""
        first = self.clause(depth=0)
        if self._chance(1 - SECOND_CLAUSE_SHARE):
            return Sentence(first)
        conjunction = self.rng.choice((*COORDINATORS, *SUBORDINATORS))
        subject = self._pronoun(first.subject) if self._chance(PRONOUN_SHARE) else None
        return Sentence(first, conjunction, self.clause(depth=1, subject=subject))

    def clause(self, depth: int, subject: Participant | None = None) -> Clause:
        """A clause; ``depth`` above 0 leaves out what would make it long."""
        return self._of_the_part(lambda: self._clause(depth, subject))

    def _clause(self, depth: int, subject: Participant | None) -> Clause:
        tense: Tense = self.rng.choice(("past", "past", "present", "future"))
        evidence: Evidence = self.rng.choice(("witnessed", "witnessed", "hearsay", "inferred"))
        kind = "speech" if depth == 0 and self._chance(SPEECH_SHARE) else self._kind()
        verb = self.rng.choice(
            {"speech": SPEECH, "transitive": TRANSITIVE, "intransitive": INTRANSITIVE}[kind]
        )
        return Clause(
            subject=subject or self._participant(PERSONS if kind == "speech" else PERSONS + ANIMALS, depth),
            verb=verb,
            object=self._participant(PERSONS + ANIMALS + THINGS + THINGS, depth)
            if kind == "transitive"
            else None,
            content=self.clause(depth=2) if kind == "speech" else None,
            place=self._place() if kind != "speech" and self._chance(PLACE_SHARE) else "",
            time=self.rng.choice(TIMES[tense]) if kind != "speech" and self._chance(TIME_SHARE) else None,
            tense=tense,
            negative=self._chance(NEGATIVE_SHARE),
            evidence=evidence if depth == 0 else "witnessed",
            passive=kind == "transitive" and subject is None and self._chance(PASSIVE_SHARE),
        )

    def _kind(self) -> str:
        return "transitive" if self._chance(TRANSITIVE_SHARE) else "intransitive"

    def _participant(self, nouns: tuple[Noun, ...], depth: int) -> Phrase | Name:
        if self._chance(NAME_SHARE):
            return Name(self.rng.choice(names.FIRST_NAMES), names.surname(self.part, self.rng))
        noun = self.rng.choice(nouns)
        counted = self._chance(NUMBER_SHARE)
        relative, gap = None, self.rng.choice(("subject", "object"))
        if depth < 2 and self._chance(RELATIVE_SHARE):
            # What things do is not told: a thing is only the object of its relative clause.
            gap = "object" if noun in THINGS else gap
            relative = self._of_the_part(lambda: self._relative(gap), noun.singular, gap)
        return Phrase(
            noun,
            plural=counted or self._chance(0.35),
            definite=not counted and self._chance(0.7),
            adjective=self.rng.choice(ADJECTIVES) if self._chance(ADJECTIVE_SHARE) else None,
            count=self.rng.randint(2, 99) if counted else None,
            origin=names.place(self.part, self.rng) if noun in PERSONS and self._chance(ORIGIN_SHARE) else "",
            relative=relative,
            gap=gap,
        )

    def _of_the_part(self, draw: Callable[[], Clause], head: str = "", gap: str = "") -> Clause:
        """Draw until who does what to whom belongs to the part; clauses inside have been looked at before."""
        while True:
            found = draw()
            if part_of(*_triple(found, head, gap)) == self.part:
                return found

    def _relative(self, gap: str) -> Clause:
        tense: Tense = self.rng.choice(("past", "present"))
        transitive = gap == "object" or self._chance(TRANSITIVE_SHARE)
        other = self._participant(PERSONS + ANIMALS + (THINGS if gap == "subject" else ()), depth=2)
        return Clause(
            subject=None if gap == "subject" else other,
            verb=self.rng.choice(TRANSITIVE if transitive else INTRANSITIVE),
            object=other if gap == "subject" and transitive else None,
            tense=tense,
            negative=self._chance(NEGATIVE_SHARE / 2),
        )

    def _place(self) -> Phrase | str:
        if self._chance(0.4):
            return names.place(self.part, self.rng).capitalize()
        adjective = self.rng.choice(ADJECTIVES) if self._chance(ADJECTIVE_SHARE / 2) else None
        return Phrase(self.rng.choice(PLACES), plural=False, definite=True, adjective=adjective)

    def _pronoun(self, antecedent: Participant | None) -> Pronoun:
        assert isinstance(antecedent, Phrase | Name)
        if isinstance(antecedent, Phrase) and antecedent.plural:
            return Pronoun("they", antecedent)
        if isinstance(antecedent, Phrase) and antecedent.noun not in PERSONS:
            return Pronoun("it", antecedent)
        return Pronoun(self.rng.choice(("he", "she")), antecedent)

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share
