"""Pages and messages in plain technical English: phrases that a reader stumbles over are refused.

The list is short and literal, so that it never argues about style: idioms that stood here in place of the
field's own words. It covers README.md, the pages of ``docs/`` (not the
decisions, which are history) and every string of the package, docstrings and help included.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {
    r"\banew\b": "again",
    r"\bwhoever\b": "name the role: the caller, the engine",
    r"\b(?:to|can|cannot|could|could not) be had\b": "unavailable",
    r"\bof no known form\b": "has an unknown format",
    r"\bthe yardstick\b": "the baseline",
    r"\bwill not do\b": "must be ..., got ...",
    r"\bis left of it\b": "measured ...",
    r"\bof ours\b": "built-in",
    r"\bmay not be passed on\b": "may not be redistributed",
    r"\bsaid first\b": "reported first",
    r"\bknows not\b": "cannot observe",
    r"\b(?:does|do|did) not tell\b": "does not report",
    r"\bnot told\b": "not reported",
    r"\bone behind the other\b": "one after the other",
    r"\bjudges at work\b": "parallel judges",
    r"\btaken by other guests of this machine\b": "CPU steal",
    r"\bthe interval says too little of them\b": "the interval is too narrow",
    r"\bfor free\b": "at no cost",
    r"\bchecker of programs\b": "judge",
    r"\bfuller ends\b": "name what is cut",
    r"\bbreaks even at no\b": "never breaks even",
    r"\bof others behind\b": "external",
    r"(?<!there )\bis no (?:list|object|text|number|probability|file|folder|JSON|share|size)\b": "is not a",
}
"""Phrases, and what to write instead."""


def phrases(text: str) -> list[str]:
    """The banned phrases in a text, line breaks read as spaces."""
    flat = " ".join(text.split())
    return [found[0] for pattern in BANNED for found in re.finditer(pattern, flat, re.IGNORECASE)]


def strings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every string of a module; an f-string as its constant parts, ``{}`` between them."""
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def pages() -> list[Path]:
    """The pages that are read."""
    docs = sorted((ROOT / "docs").glob("*.md"))
    return [ROOT / "README.md", *docs]


def modules() -> list[Path]:
    """The modules whose strings are read."""
    return sorted((ROOT / "spsbench").rglob("*.py"))


def test_pages_use_plain_words() -> None:
    assert len(pages()) > 15
    assert [
        f"{page.name}: {phrase}" for page in pages() for phrase in phrases(page.read_text(encoding="utf-8"))
    ] == []


def test_strings_of_the_package_use_plain_words() -> None:
    assert len(modules()) > 200
    assert [
        f"{path.relative_to(ROOT)}:{line}: {phrase}"
        for path in modules()
        for line, text in strings(path.read_text(encoding="utf-8"))
        for phrase in phrases(text)
    ] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise E(f"{path} is of no known form.")', ["of no known form"]),
        ('"""Data that could not\n    be had."""', ["could not be had"]),
        ('say("started " "anew")', ["anew"]),
        ('HELP = "Whoever asks"', ["Whoever"]),
        ('x = f"{a} is no list"', ["is no list"]),
        ('x = f"{a} is not a list"  # it is no list', []),
        ('x = "There is no file of this name; it can be handed over again."', []),
    ],
)
def test_a_banned_phrase_is_found_wherever_a_string_says_it(source: str, found: list[str]) -> None:
    assert [phrase for _, text in strings(source) for phrase in phrases(text)] == found
