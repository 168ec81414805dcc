"""The words of the translation task: English forms beside stems of an invented language, Velmar.

Stems were drawn once from syllables. The vowels of a stem are all back (a, o, u) or all front (e, i),
so that the harmony of its suffixes can be read from it. A noun's class, 1 or 2, cannot.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """English singular and plural, the stem, and the class (1 or 2) that adjectives and verbs agree with."""

    singular: str
    plural: str
    stem: str
    noun_class: int


@dataclass(frozen=True)
class Verb:
    """English base, third person, past and past participle, and the stem."""

    base: str
    third: str
    past: str
    participle: str
    stem: str


@dataclass(frozen=True)
class Word:
    """An English word that does not inflect, and its stem."""

    english: str
    stem: str


def _nouns(table: str) -> tuple[Noun, ...]:
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(Noun(singular, plural, stem, int(noun_class)) for singular, plural, stem, noun_class in rows)


def _verbs(table: str) -> tuple[Verb, ...]:
    """Rows of base, third person, past, participle, stem; the participle is left out where it is the past."""
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(Verb(*row[:3], row[-2], row[-1]) for row in rows)


def _words(table: str) -> tuple[Word, ...]:
    rows = [line.rsplit(maxsplit=1) for line in table.strip().splitlines()]
    return tuple(Word(english.strip(), stem) for english, stem in rows)


PERSONS = _nouns("""
    baker bakers befik 1
    nurse nurses fenek 2
    teacher teachers bak 1
    sailor sailors rit 2
    farmer farmers zheter 1
    painter painters tofog 1
    doctor doctors shusun 2
    soldier soldiers tolas 2
    king kings labun 1
    queen queens bires 2
    singer singers lul 1
    hunter hunters nolum 2
    thief thieves gid 1
    woman women farok 2
    child children tralok 2
    judge judges zhekik 1
""")
ANIMALS = _nouns("""
    dog dogs kesh 2
    cat cats drok 2
    horse horses vlevig 2
    bird birds tamok 1
    bear bears shas 1
    wolf wolves sinik 1
    fox foxes tranok 2
    goat goats put 1
""")
THINGS = _nouns("""
    book books popush 2
    letter letters titin 1
    lamp lamps lin 1
    boat boats krelim 1
    key keys zerim 1
    ring rings zhibek 2
    table tables shesesh 1
    basket baskets drefen 2
    stone stones dremin 1
    apple apples shagun 2
    coin coins vog 2
    hat hats trit 1
    map maps gilin 1
    cup cups zish 2
    rope ropes bremil 1
    knife knives sheser 2
    door doors vluluv 2
    clock clocks zanur 2
    bottle bottles lutos 1
    flag flags bom 2
""")
PLACES = _nouns("""
    market markets tronal 2
    harbour harbours kum 1
    forest forests drurug 2
    castle castles kotov 1
    garden gardens kraluv 2
    church churches bosash 2
    mill mills zhir 1
    tower towers movam 1
    village villages zinik 2
    river rivers trot 1
    bridge bridges vlug 2
    field fields pesh 1
""")
ADJECTIVES = _words("""
    old sir
    young del
    red ges
    black shafav
    small tratam
    big vlarad
    happy sunosh
    sad dafush
    quiet repem
    brave ren
    green vabun
    broken dat
    heavy nis
    new gemek
    strange zedil
    white shogon
    poor titish
    proud zhon
    tired vlemeg
    blue lanosh
""")
TRANSITIVE = _verbs("""
    see sees saw seen birin
    find finds found gafan
    carry carries carried dredik
    sell sells sold nebin
    buy buys bought dunok
    break breaks broke broken soguk
    lose loses lost budur
    hide hides hid hidden tilig
    paint paints painted brek
    wash washes washed dikes
    steal steals stole stolen zapuv
    watch watches watched guvog
    follow follows followed denid
    help helps helped zobal
    hear hears heard krupag
    take takes took taken gefel
    love loves loved bririt
    fear fears feared bizet
    bring brings brought rovor
    choose chooses chose chosen kugug
""")
INTRANSITIVE = _verbs("""
    sleep sleeps slept vlened
    sing sings sang sung rig
    laugh laughs laughed sot
    wait waits waited ruk
    work works worked bresh
    fall falls fell fallen beker
    run runs ran run sefis
    dance dances danced reved
    swim swims swam swum kokud
    weep weeps wept zalod
    rest rests rested shadot
    shout shouts shouted zhemig
""")
SPEECH = _verbs("""
    say says said bramas
    know knows knew known lunud
    believe believes believed zubav
    hope hopes hoped togol
""")
"""Verbs that govern a clause."""

TIMES: dict[str, tuple[Word, ...]] = {
    "past": _words("yesterday krol\n last winter nud\n at dawn vizes"),
    "present": _words("today gavum\n now minel\n every day baruk"),
    "future": _words("tomorrow birit\n next year drumov\n before long trevin"),
}
EVIDENCE = {"witnessed": "", "hearsay": "Reportedly", "inferred": "Apparently"}
"""How the speaker knows: an adverb in English, a suffix of the verb in Velmar."""

COORDINATORS = _words("and vo\n but dem")
SUBORDINATORS = _words("because kesu\n when tal\n although nirek")
DIGITS = ("", "bed", "shib", "fum", "shel", "tro", "zhush", "vit", "mik", "zad")
TEN, TWENTY = "zhim", "dik"
