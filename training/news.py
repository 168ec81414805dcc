"""Synthetic news: documents of shuffled facts and the one sentence that sums each up.

What makes depth pay: the person whom the event concerns is known by job in one sentence, named in
another and easily taken for a bystander; places, figures and causes come with a wrong one that is
taken back; names are syllables that cannot be guessed, only copied.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from training import names
from training.news_templates import (
    BIO,
    BYSTANDER,
    CAUSE,
    DAYS,
    DENIED_CAUSE,
    EVENTS,
    FILLER,
    JOBS,
    RIGHT_FIGURE,
    SYNONYMS,
    UNSEEN,
    UNSEEN_FATES,
    WRONG_FIGURE,
    WRONG_PLACE,
    Event,
)
from training.split import Part, part_of

ARTICLE = "Article: {document}\n\nSummarize the above article in one sentence.\nSummary:"


@dataclass(frozen=True)
class News:
    """A document and its summary, with the templates they are made of (for the split)."""

    document: str
    summary: str
    combination: tuple[str, ...]


@dataclass(frozen=True)
class Person:
    """Somebody in the news; ``who`` is how the document refers to them in passing."""

    name: str
    job: str
    home: str
    who: str


def exemplar(document: str, summary: str) -> str:
    """A solved article as it stands in the prompt."""
    return ARTICLE.format(document=document) + f" {summary}\n\n"


def completion(summary: str) -> str:
    """What the model is to write behind the prompt; the line break ends it."""
    return f" {summary}\n"


def make_news(part: Part, rng: random.Random, *, unseen_templates: bool = False) -> News:
    """One item of a part; held-out items have held-out names and combinations of templates.

    With ``unseen_templates`` every sentence of the document follows a template that training never
    uses (the summary keeps its forms: it is the answer, not the question).
    """
    while True:
        news = _draw(part, rng, unseen_templates)
        if unseen_templates or part_of(*news.combination) == part:
            return news


def _draw(part: Part, rng: random.Random, unseen: bool) -> News:
    number = rng.randrange(len(EVENTS))
    event = EVENTS[number]
    jobs = rng.sample(JOBS, 3)
    people = [_person(part, rng, job) for job in jobs]
    facts = _facts(part, rng, event, people[0])
    lead_index = _pick(event.leads, rng, unseen)
    fate_sentence, facts["fate"] = _fate(event, rng, unseen)
    cause_index = _pick(CAUSE, rng, unseen)
    lead = event.leads[lead_index].format(**facts)
    body = [fate_sentence.format(who=people[0].who), CAUSE[cause_index].format(**facts)]
    body += _shared_sentences(rng, unseen, people, facts)
    document = _arrange(rng, lead, [[sentence] for sentence in body], _figures(rng, unseen, facts))
    form = event.summaries[lead_index % len(event.summaries)]
    combination = (str(number), str(lead_index), fate_sentence, str(cause_index))
    return News(document, _capitalised(form.format(**facts)), combination)


def _person(part: Part, rng: random.Random, job: str) -> Person:
    family = names.surname(part, rng)
    who = rng.choice((family, f"the {job}"))
    return Person(f"{rng.choice(names.FIRST_NAMES)} {family}", job, names.place(part, rng), who)


def _facts(part: Part, rng: random.Random, event: Event, hero: Person) -> dict[str, str]:
    cause, denied = rng.sample(event.causes, 2)
    figure, first = rng.sample(range(12, 100), 2)
    facts = {key: rng.choice(words) for key, words in SYNONYMS.items()}
    return facts | {
        "hero": f"{hero.name}, a {hero.job}",
        "place": names.place(part, rng),
        "wrong_place": names.place(part, rng),
        "venue": rng.choice(event.venues),
        "unit": rng.choice(event.units),
        "day": rng.choice(DAYS),
        "cause": cause,
        "cause_capital": _capitalised(cause),
        "denied": denied,
        "denied_capital": _capitalised(denied),
        "n": str(figure),
        "first": str(first),
    }


def _fate(event: Event, rng: random.Random, unseen: bool) -> tuple[str, str]:
    *sentences, short = rng.choice(event.fates)
    return (UNSEEN_FATES[short] if unseen else rng.choice(sentences)), short


def _shared_sentences(
    rng: random.Random, unseen: bool, people: list[Person], facts: dict[str, str]
) -> list[str]:
    shown = people[: rng.choice((2, 2, 3))]
    bios = [
        BIO[_pick(BIO, rng, unseen)].format(name=person.name, job=person.job, home=person.home)
        for person in shown
    ]
    bystanders = [BYSTANDER[_pick(BYSTANDER, rng, unseen)].format(who=person.who) for person in shown[1:2]]
    taken_back = [pool[_pick(pool, rng, unseen)].format(**facts) for pool in (WRONG_PLACE, DENIED_CAUSE)]
    filler = [FILLER[_pick(FILLER, rng, unseen)]] if rng.random() < 0.4 else []
    return bios + bystanders + taken_back + filler


def _figures(rng: random.Random, unseen: bool, facts: dict[str, str]) -> list[str]:
    """The wrong figure and its correction, in this order and together."""
    return [pool[_pick(pool, rng, unseen)].format(**facts) for pool in (WRONG_FIGURE, RIGHT_FIGURE)]


def _arrange(rng: random.Random, lead: str, groups: list[list[str]], figures: list[str]) -> str:
    groups = [*groups, figures]
    rng.shuffle(groups)
    position = 0 if rng.random() < 0.7 else rng.randrange(len(groups) + 1)
    groups.insert(position, [lead])
    return " ".join(_capitalised(sentence) for group in groups for sentence in group)


def _pick(pool: tuple[str, ...], rng: random.Random, unseen: bool) -> int:
    seen = len(pool) - UNSEEN
    return rng.randrange(seen, len(pool)) if unseen else rng.randrange(seen)


def _capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
