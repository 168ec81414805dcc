"""Sentences in Velmar, the invented language of the translation task.

Order: time, verb, subject, object, place in a main clause; conjunction, subject, object, place, time, verb in
a subordinate one. Adjectives follow their noun, then come its town and its relative clause.
Suffixes have a back and a front form and follow the last vowel of the stem (vowel harmony).
Nouns take plural, case and an article, in this order; the plural is left out behind a number. Adjectives and
relative pronouns agree with the noun in class, number and case. Verbs take a prefix of negation, tense,
class and number of the subject, and how the speaker knows. There is no passive.
Numbers count in twenties.
"""

from __future__ import annotations

from typing import Literal

from training.mini_t5.lexicon import COORDINATORS, DIGITS, TEN, TWENTY
from training.mini_t5.sentences import Clause, Name, Participant, Phrase, Pronoun, Sentence

Case = Literal["nominative", "accusative", "locative", "genitive"]
Forms = tuple[str, str]
"""Back and front form of a suffix."""

PLURAL: Forms = ("or", "er")
CASES: dict[Case, Forms] = {
    "nominative": ("", ""),
    "accusative": ("an", "en"),
    "locative": ("us", "is"),
    "genitive": ("ol", "il"),
}
ARTICLES: dict[int, Forms] = {1: ("ka", "ke"), 2: ("tu", "ti")}
AGREEMENT: dict[int, Forms] = {1: ("a", "e"), 2: ("o", "i")}
AGREEING_CASES: dict[Case, str] = {"nominative": "", "accusative": "n", "locative": "s", "genitive": "l"}
TENSES: dict[str, Forms] = {"past": ("ad", "ed"), "present": ("um", "im"), "future": ("osh", "esh")}
EVIDENTIALS: dict[str, Forms] = {"witnessed": ("", ""), "hearsay": ("ku", "ki"), "inferred": ("mo", "me")}
NEGATION = "ma"
PRONOUNS = {1: "nel", 2: "nul"}
RELATIVE = "sh"
THAT = "gi"
FRONT_VOWELS, BACK_VOWELS = "eiy", "aou"


def velmar(sentence: Sentence) -> str:
    """The sentence with capital and full stop."""
    text = _main(sentence.first)
    if sentence.conjunction and sentence.second:
        order = _main if sentence.conjunction in COORDINATORS else _subordinate
        text += f", {sentence.conjunction.stem} {order(sentence.second)}"
    return text[0].upper() + text[1:] + "."


def is_front(stem: str) -> bool:
    """Whether the last vowel of a stem or name is a front one."""
    vowels = [letter for letter in stem.lower() if letter in FRONT_VOWELS + BACK_VOWELS]
    return bool(vowels) and vowels[-1] in FRONT_VOWELS


def number(count: int) -> str:
    """A number from 2 to 99 in twenties: 47 is two twenties and seven."""
    twenties, rest = divmod(count, 20)
    head = [DIGITS[twenties] * (twenties > 1) + TWENTY] if twenties else []
    tail = [TEN * (rest >= 10) + DIGITS[rest % 10]] if rest else []
    return " ".join([*head, *tail])


def _main(clause: Clause) -> str:
    time = [clause.time.stem] if clause.time else []
    content = [_content(clause.content)] if clause.content else []
    parts = [*time, _verb(clause), *_participants(clause), *_place(clause)]
    return " ".join(parts) + "".join(content)


def _subordinate(clause: Clause) -> str:
    time = [clause.time.stem] if clause.time else []
    return " ".join([*_participants(clause), *_place(clause), *time, _verb(clause)])


def _content(clause: Clause) -> str:
    return f", {THAT} {_subordinate(clause)}"


def _participants(clause: Clause) -> list[str]:
    subject = [_participant(clause.subject, "nominative")] if clause.subject else []
    return subject + ([_participant(clause.object, "accusative")] if clause.object else [])


def _place(clause: Clause) -> list[str]:
    if not clause.place:
        return []
    if isinstance(clause.place, str):
        return [_proper(clause.place, "locative")]
    return [_phrase(clause.place, "locative")]


def _verb(clause: Clause, head: Phrase | None = None) -> str:
    noun_class, plural = _agreement(head or clause.subject)
    front = is_front(clause.verb.stem)
    suffixes = TENSES[clause.tense][front] + AGREEMENT[noun_class][front]
    suffixes += "r" * plural + EVIDENTIALS[clause.evidence][front]
    return NEGATION * clause.negative + clause.verb.stem + suffixes


def _agreement(participant: Participant | None) -> tuple[int, bool]:
    """Class and whether the verb is plural; a counted noun is plural for the verb."""
    if isinstance(participant, Pronoun):
        return _agreement(participant.antecedent)
    if isinstance(participant, Phrase):
        return participant.noun.noun_class, participant.plural
    return 1, False


def _participant(participant: Participant, case: Case) -> str:
    if isinstance(participant, Pronoun):
        noun_class, plural = _agreement(participant)
        stem = PRONOUNS[noun_class]
        return stem + PLURAL[is_front(stem)] * plural + CASES[case][is_front(stem)]
    if isinstance(participant, Name):
        return f"{participant.first} {_proper(participant.family, case)}"
    return _phrase(participant, case)


def _proper(name: str, case: Case) -> str:
    """A proper name; its suffix stands behind a hyphen."""
    suffix = CASES[case][is_front(name)]
    return f"{name}-{suffix}" if suffix else name


def _phrase(phrase: Phrase, case: Case) -> str:
    stem, noun_class = phrase.noun.stem, phrase.noun.noun_class
    front, plural = is_front(stem), phrase.plural and phrase.count is None
    noun = stem + PLURAL[front] * plural + CASES[case][front] + ARTICLES[noun_class][front] * phrase.definite
    words = [number(phrase.count)] if phrase.count else []
    words.append(noun)
    if phrase.adjective:
        words.append(phrase.adjective.stem + _agreeing(phrase.adjective.stem, noun_class, plural, case))
    if phrase.origin:
        words.append(_proper(phrase.origin, "genitive"))
    if phrase.relative:
        words.append(_relative(phrase, phrase.relative))
    return " ".join(words)


def _agreeing(stem: str, noun_class: int, plural: bool, case: Case) -> str:
    return AGREEMENT[noun_class][is_front(stem)] + "r" * plural + AGREEING_CASES[case]


def _relative(head: Phrase, clause: Clause) -> str:
    """The pronoun has the class and number of the head and the case of the head inside the clause."""
    case: Case = "nominative" if head.gap == "subject" else "accusative"
    pronoun = RELATIVE + AGREEMENT[head.noun.noun_class][0] + "r" * head.plural + AGREEING_CASES[case]
    verb = _verb(clause, head if head.gap == "subject" else None)
    return " ".join([pronoun, *_participants(clause), verb])
