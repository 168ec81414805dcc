"""Documents and their highlights: three short lines, each of which needs another part of the document.

The events, people and phrases are those of the mini pair's news (``training.news``); documents are shorter,
and the answer is a headline, the person concerned and the cause with the figure.
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
    JOBS,
    RIGHT_FIGURE,
    UNSEEN,
    WRONG_FIGURE,
    WRONG_PLACE,
    Event,
)
from training.split import Part, part_of

HEADLINES = (
    ("{Venue} in {place} burns on {day}.", "Fire at {place}'s {venue} on {day}."),
    ("Flood hits the {venue} in {place} on {day}.", "Water in {place}'s {venue} on {day}."),
    ("{Venue} in {place} robbed on {day}.", "Thieves at {place}'s {venue} on {day}."),
    ("Bus crashes into the {venue} in {place} on {day}.", "Crash at {place}'s {venue} on {day}."),
    ("{place} votes on the {venue} on {day}.", "{Venue} put to the vote in {place} on {day}."),
    ("Cup final at the {venue} in {place} on {day}.", "{place}'s {venue} sees the final on {day}."),
    ("Treasure below the {venue} in {place} on {day}.", "Old {unit} under {place}'s {venue} on {day}."),
    ("Strike at the {venue} in {place} on {day}.", "{Venue} in {place} stands still on {day}."),
)
"""Two forms for each of ``EVENTS``; the lead of the document picks one."""
PERSON = "{name}, a {job} from {home}, is {fate}."
REASONS = ("{Cause} to blame, {n} {unit} counted.", "Count of {unit} now {n}, blamed on {cause}.")
"""The first if the document comes to the cause before the figure, the second if after."""

DENIED_SHARE = 0.2
BYSTANDER_SHARE = 0.3


@dataclass(frozen=True)
class Report:
    """A document, its highlights (lines of one text) and the templates they are made of (for the split)."""

    article: str
    highlights: str
    combination: tuple[str, ...]


def make_report(part: Part, rng: random.Random) -> Report:
    """One report of a part; held-out reports have held-out names and combinations of templates."""
    while True:
        report = _draw(part, rng)
        if part_of(*report.combination) == part:
            return report


def _draw(part: Part, rng: random.Random) -> Report:
    number = rng.randrange(len(EVENTS))
    event = EVENTS[number]
    hero, other = (_person(part, rng, job) for job in rng.sample(JOBS, 2))
    facts = _facts(part, rng, event) | {key: hero[key] for key in ("name", "job", "home")}
    lead = _seen(event.leads, rng)
    *fates, facts["fate"] = rng.choice(event.fates)
    fate, cause = _seen(tuple(fates), rng, unseen=0), _seen(CAUSE, rng)
    groups = [
        [fate.format(who=hero["who"])],
        [cause.format(**facts)],
        [_seen(WRONG_FIGURE, rng).format(**facts), _seen(RIGHT_FIGURE, rng).format(**facts)],
        *([_seen(BIO, rng).format(**person)] for person in (hero, other)),
        *_asides(rng, facts, other["who"]),
    ]
    rng.shuffle(groups)
    causal = groups.index([cause.format(**facts)]) < next(
        place for place, group in enumerate(groups) if len(group) == 2
    )
    document = [lead.format(**facts), *(sentence for group in groups for sentence in group)]
    lines = (HEADLINES[number][event.leads.index(lead) % 2], PERSON, REASONS[0 if causal else 1])
    return Report(
        " ".join(map(_capitalised, document)),
        "\n".join(line.format(**facts) for line in lines),
        (str(number), lead, fate, cause),
    )


def _person(part: Part, rng: random.Random, job: str) -> dict[str, str]:
    """Somebody in the news; ``who`` is how the document refers to them in passing."""
    family = names.surname(part, rng)
    return {
        "name": f"{rng.choice(names.FIRST_NAMES)} {family}",
        "job": job,
        "home": names.place(part, rng),
        "who": rng.choice((family, f"the {job}")),
    }


def _facts(part: Part, rng: random.Random, event: Event) -> dict[str, str]:
    cause, denied = rng.sample(event.causes, 2)
    figure, first = rng.sample(range(12, 100), 2)
    venue = rng.choice(event.venues)
    return {
        "place": names.place(part, rng),
        "wrong_place": names.place(part, rng),
        "venue": venue,
        "Venue": _capitalised(venue),
        "unit": rng.choice(event.units),
        "day": rng.choice(DAYS),
        "cause": cause,
        "Cause": _capitalised(cause),
        "cause_capital": _capitalised(cause),
        "denied": denied,
        "denied_capital": _capitalised(denied),
        "n": str(figure),
        "first": str(first),
    }


def _asides(rng: random.Random, facts: dict[str, str], who: str) -> list[list[str]]:
    """What distracts: a bystander, and a place or a cause that is taken back."""
    asides = [[_seen(BYSTANDER, rng).format(who=who)]] if rng.random() < BYSTANDER_SHARE else []
    pools = [pool for pool in (WRONG_PLACE, DENIED_CAUSE) if rng.random() < DENIED_SHARE]
    return asides + [[_seen(pool, rng).format(**facts)] for pool in pools]


def _seen(pool: tuple[str, ...], rng: random.Random, unseen: int = UNSEEN) -> str:
    """A phrase that the mini pair trains on as well; the last ones of a pool are never used."""
    return pool[rng.randrange(len(pool) - unseen)]


def _capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
