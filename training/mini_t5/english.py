"""Sentences in English: subject, verb, object; tense by forms and auxiliaries; a passive on request."""

from __future__ import annotations

from training.mini_t5.lexicon import EVIDENCE, Verb
from training.mini_t5.sentences import Clause, Name, Participant, Phrase, Pronoun, Sentence, Tense


def english(sentence: Sentence) -> str:
    """The sentence with capital and full stop."""
    text = _clause(sentence.first)
    if adverb := EVIDENCE[sentence.first.evidence]:
        text = f"{adverb}, {text}"
    if sentence.conjunction and sentence.second:
        text += f", {sentence.conjunction.english} {_clause(sentence.second)}"
    return text[0].upper() + text[1:] + "."


def _clause(clause: Clause) -> str:
    assert clause.subject
    if clause.passive:
        assert clause.object
        plural = _is_plural(clause.object)
        parts = [_participant(clause.object), _passive(clause, plural), "by", _participant(clause.subject)]
    else:
        parts = [_participant(clause.subject), _active(clause, _is_plural(clause.subject))]
        if clause.object:
            parts.append(_participant(clause.object))
    if clause.place:
        parts.append(f"in {clause.place if isinstance(clause.place, str) else _phrase(clause.place)}")
    if clause.time:
        parts.append(clause.time.english)
    if clause.content:
        parts.append(f"that {_clause(clause.content)}")
    return " ".join(parts)


def _active(clause: Clause, plural: bool) -> str:
    verb, tense = clause.verb, clause.tense
    if tense == "future":
        return f"will {'not ' if clause.negative else ''}{verb.base}"
    if clause.negative:
        return f"{_do(tense, plural)} not {verb.base}"
    return _finite(verb, tense, plural)


def _do(tense: Tense, plural: bool) -> str:
    if tense == "past":
        return "did"
    return "do" if plural else "does"


def _finite(verb: Verb, tense: Tense, plural: bool) -> str:
    if tense == "past":
        return verb.past
    return verb.base if plural else verb.third


def _passive(clause: Clause, plural: bool) -> str:
    denied = " not" if clause.negative else ""
    if clause.tense == "future":
        return f"will{denied} be {clause.verb.participle}"
    be = {"past": ("was", "were"), "present": ("is", "are")}[clause.tense][plural]
    return f"{be}{denied} {clause.verb.participle}"


def _is_plural(participant: Participant) -> bool:
    if isinstance(participant, Pronoun):
        return participant.english == "they"
    return isinstance(participant, Phrase) and participant.plural


def _participant(participant: Participant) -> str:
    if isinstance(participant, Pronoun):
        return participant.english
    return _name(participant) if isinstance(participant, Name) else _phrase(participant)


def _name(name: Name) -> str:
    return f"{name.first} {name.family}"


def _phrase(phrase: Phrase) -> str:
    words = [phrase.adjective.english] if phrase.adjective else []
    words.append(phrase.noun.plural if phrase.plural else phrase.noun.singular)
    text = " ".join([*_determiner(phrase, words[0]), *words])
    if phrase.origin:
        text += f" of {phrase.origin}"
    return f"{text} {_relative(phrase, phrase.relative)}" if phrase.relative else text


def _determiner(phrase: Phrase, following: str) -> list[str]:
    if phrase.count:
        return [str(phrase.count)]
    if phrase.definite:
        return ["the"]
    if phrase.plural:
        return []
    return ["an" if following[0] in "aeiou" else "a"]


def _relative(head: Phrase, clause: Clause) -> str:
    if head.gap == "subject":
        done = [_participant(clause.object)] if clause.object else []
        return " ".join(["that", _active(clause, head.plural), *done])
    assert clause.subject
    return f"that {_participant(clause.subject)} {_active(clause, _is_plural(clause.subject))}"
