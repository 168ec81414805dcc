"""Rare names from syllables: they cannot be guessed from frequency, only copied from the text."""

from __future__ import annotations

import random

from training.split import Part, part_of
from training.words import words

ONSETS = words("b br c cl d dr f fl g gr h k kr l m n p pl qu r s st t tr v w y z th sh")
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
CODAS = ["", "", "", "l", "m", "n", "r", "s", "x", "nd", "lt", "rk", "st", "ck"]
SURNAME_ENDS = words("mont berg well ski sen ard ov lin dale ez wood nath ish ander")
PLACE_ENDS = words("bury ford ham stead wick mouth by ton field holm port mere")
FIRST_NAMES = words(
    "Anna Boris Carla David Elena Felix Grace Hugo Irene Jonas Karin Lewis Maria Nadia Oscar Paula Quinn "
    "Rosa Simon Tessa Ursula Victor Wanda Yusuf Zora Amir Bella Chen Diego Edith Farah Gavin Helga Ivan"
)


def _syllable(rng: random.Random) -> str:
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)


def _drawn_from(part: Part, rng: random.Random, syllables: int, ends: list[str]) -> str:
    while True:
        name = "".join(_syllable(rng) for _ in range(syllables)) + rng.choice(ends)
        if part_of(name) == part:
            return name


def surname(part: Part, rng: random.Random) -> str:
    """A family name such as ``Trouxberg``; the parts share none."""
    return _drawn_from(part, rng, 1, SURNAME_ENDS).capitalize()


def place(part: Part, rng: random.Random) -> str:
    """A town such as ``Kelbury``; the parts share none."""
    return _drawn_from(part, rng, 1, PLACE_ENDS).capitalize()


def identifier(part: Part, rng: random.Random) -> str:
    """A lower-case Python name such as ``dorimel``; the parts share none."""
    return _drawn_from(part, rng, 1, ["el", "on", "ip", "um", "ava", "io"])
