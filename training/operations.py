"""The list operations that synthetic programs are made of, each told in several ways.

A phrase is an imperative clause on "the list"; ``{p}`` is the name of a parameter and ``{v}`` the
list's current name in the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "word"]


@dataclass(frozen=True)
class Operation:
    """One step of a program.

    Attributes:
        key: its name in the split.
        code: a Python expression on ``{v}``.
        phrases: how a docstring tells it.
        parameter: what ``{p}`` is, if the operation has one.
    """

    key: str
    code: str
    phrases: tuple[str, ...]
    parameter: Literal["", "number", "count", "text"] = ""


NUMBER_OPERATIONS = (
    Operation(
        "above",
        "[x for x in {v} if x > {p}]",
        (
            "keep only what is above {p}",
            "drop all that does not exceed {p}",
            "filter for numbers greater than {p}",
        ),
        "number",
    ),
    Operation(
        "below",
        "[x for x in {v} if x < {p}]",
        (
            "keep only what is below {p}",
            "drop all that is at least {p}",
            "filter for numbers smaller than {p}",
        ),
        "number",
    ),
    Operation(
        "unequal",
        "[x for x in {v} if x != {p}]",
        ("remove every {p}", "take out all that equals {p}", "leave only numbers other than {p}"),
        "number",
    ),
    Operation(
        "plus",
        "[x + {p} for x in {v}]",
        ("add {p} to each number", "raise everything by {p}", "shift all values up by {p}"),
        "number",
    ),
    Operation(
        "minus",
        "[x - {p} for x in {v}]",
        ("subtract {p} from each number", "lower everything by {p}", "shift all values down by {p}"),
        "number",
    ),
    Operation(
        "times",
        "[x * {p} for x in {v}]",
        (
            "multiply each number by {p}",
            "scale everything by {p}",
            "replace all values by {p} times themselves",
        ),
        "number",
    ),
    Operation(
        "modulo",
        "[x % {p} for x in {v}]",
        (
            "take each number modulo {p}",
            "replace everything by its remainder on division by {p}",
            "reduce all values modulo {p}",
        ),
        "count",
    ),
    Operation(
        "floor",
        "[x // {p} for x in {v}]",
        (
            "divide each number by {p}, rounding down",
            "replace everything by its whole quotient with {p}",
            "floor-divide all values by {p}",
        ),
        "count",
    ),
    Operation(
        "cap",
        "[min(x, {p}) for x in {v}]",
        ("limit each number to at most {p}", "cap everything at {p}", "replace what is over {p} by {p}"),
        "number",
    ),
    Operation(
        "raise",
        "[max(x, {p}) for x in {v}]",
        (
            "lift each number to at least {p}",
            "put a floor of {p} under everything",
            "replace what is under {p} by {p}",
        ),
        "number",
    ),
    Operation(
        "append", "{v} + [{p}]", ("put {p} at the end", "append {p}", "add {p} as the last element"), "number"
    ),
    Operation(
        "prepend",
        "[{p}] + {v}",
        ("put {p} at the front", "prepend {p}", "add {p} as the first element"),
        "number",
    ),
    Operation(
        "first",
        "{v}[:{p}]",
        (
            "keep the first {p} elements",
            "cut the list after {p} elements",
            "retain only {p} elements from the left",
        ),
        "count",
    ),
    Operation(
        "skip",
        "{v}[{p}:]",
        (
            "skip the first {p} elements",
            "throw away {p} elements from the left",
            "start only after {p} elements",
        ),
        "count",
    ),
    Operation(
        "double_above",
        "[x * 2 if x > {p} else x for x in {v}]",
        (
            "double what is above {p} and leave the rest",
            "wherever a number exceeds {p}, double it",
            "multiply by two, but only numbers greater than {p}",
        ),
        "number",
    ),
    Operation(
        "double",
        "[x * 2 for x in {v}]",
        ("double each number", "multiply everything by two", "replace all values by their doubles"),
    ),
    Operation(
        "square",
        "[x * x for x in {v}]",
        ("square each number", "multiply everything by itself", "replace all values by their squares"),
    ),
    Operation(
        "negate",
        "[-x for x in {v}]",
        ("negate each number", "flip the sign of everything", "replace all values by their opposites"),
    ),
    Operation(
        "absolute",
        "[abs(x) for x in {v}]",
        (
            "drop the sign of each number",
            "take everything as an absolute value",
            "make all values non-negative by removing the minus",
        ),
    ),
    Operation(
        "reverse",
        "{v}[::-1]",
        ("reverse the order", "turn the list around", "read the list from right to left"),
    ),
    Operation(
        "ascending",
        "sorted({v})",
        ("sort from small to large", "bring the list into ascending order", "order the values upwards"),
    ),
    Operation(
        "descending",
        "sorted({v}, reverse=True)",
        ("sort from large to small", "bring the list into descending order", "order the values downwards"),
    ),
    Operation(
        "unique",
        "list(dict.fromkeys({v}))",
        ("drop repeated values", "keep only the first of equal values", "remove duplicates"),
    ),
    Operation(
        "tail", "{v}[1:]", ("drop the first element", "cut off the head", "forget the leftmost element")
    ),
    Operation(
        "init", "{v}[:-1]", ("drop the last element", "cut off the end", "forget the rightmost element")
    ),
    Operation(
        "alternate",
        "{v}[::2]",
        ("keep every other element", "skip each second element", "take the elements at even positions"),
    ),
    Operation(
        "even",
        "[x for x in {v} if x % 2 == 0]",
        ("keep the even numbers", "remove all odd numbers", "filter for multiples of two"),
    ),
    Operation(
        "odd",
        "[x for x in {v} if x % 2 == 1]",
        ("keep the odd numbers", "remove all even numbers", "filter out multiples of two"),
    ),
    Operation(
        "running",
        "[sum({v}[:i + 1]) for i in range(len({v}))]",
        (
            "form the running totals",
            "replace everything by the sum so far",
            "accumulate the values from the left",
        ),
    ),
    Operation(
        "difference",
        "[b - a for a, b in zip({v}, {v}[1:])]",
        (
            "form the differences of neighbours",
            "replace the list by its steps from one element to the next",
            "subtract each element from its successor",
        ),
    ),
    Operation(
        "rotate",
        "{v}[1:] + {v}[:1]",
        ("move the first element to the end", "rotate the list left by one", "send the head to the back"),
    ),
    Operation(
        "mirror",
        "{v} + {v}[::-1]",
        (
            "append the list's mirror image",
            "follow the list by its own reversal",
            "extend the list with itself backwards",
        ),
    ),
    Operation(
        "repeat",
        "[x for x in {v} for _ in range(2)]",
        (
            "write each element twice in a row",
            "repeat everything once on the spot",
            "put a copy behind each element",
        ),
    ),
    Operation(
        "indexed",
        "[i * x for i, x in enumerate({v})]",
        (
            "multiply each number by its position",
            "weight everything by its index",
            "scale all values with their place counted from zero",
        ),
    ),
)

WORD_OPERATIONS = (
    Operation(
        "longer",
        "[w for w in {v} if len(w) > {p}]",
        (
            "keep words with more than {p} letters",
            "drop words of at most {p} letters",
            "filter for words longer than {p}",
        ),
        "count",
    ),
    Operation(
        "shorter",
        "[w for w in {v} if len(w) < {p} + 4]",
        (
            "keep words with fewer than {p} plus four letters",
            "drop words of at least {p} plus four letters",
            "filter for words shorter than {p} plus four",
        ),
        "count",
    ),
    Operation(
        "prefix",
        "[{p} + w for w in {v}]",
        ("put {p} before each word", "prefix everything with {p}", "let all words begin with {p}"),
        "text",
    ),
    Operation(
        "suffix",
        "[w + {p} for w in {v}]",
        ("put {p} after each word", "suffix everything with {p}", "let all words end with {p}"),
        "text",
    ),
    Operation(
        "without",
        "[w for w in {v} if {p} not in w]",
        ("drop words that contain {p}", "keep only words free of {p}", "remove what has {p} in it"),
        "text",
    ),
    Operation(
        "insert", "{v} + [{p}]", ("put {p} at the end", "append {p}", "add {p} as the last word"), "text"
    ),
    Operation(
        "upper",
        "[w.upper() for w in {v}]",
        (
            "write each word in capitals",
            "convert everything to upper case",
            "turn all letters into capital letters",
        ),
    ),
    Operation(
        "title",
        "[w.capitalize() for w in {v}]",
        (
            "capitalise each word",
            "let everything start with one capital letter",
            "make only the first letter of all words large",
        ),
    ),
    Operation(
        "backward",
        "[w[::-1] for w in {v}]",
        (
            "spell each word backwards",
            "reverse the letters of everything",
            "flip all words from end to start",
        ),
    ),
    Operation(
        "chop",
        "[w[1:] for w in {v}]",
        (
            "cut the first letter off each word",
            "let everything lose its first letter",
            "begin all words at their second letter",
        ),
    ),
    Operation(
        "clip",
        "[w[:-1] for w in {v}]",
        (
            "cut the last letter off each word",
            "let everything lose its last letter",
            "end all words one letter early",
        ),
    ),
    Operation(
        "twice",
        "[w + w for w in {v}]",
        (
            "write each word twice without a gap",
            "let everything repeat itself",
            "join all words with themselves",
        ),
    ),
    Operation(
        "alphabet",
        "sorted({v})",
        (
            "sort the words by alphabet",
            "bring the list into alphabetical order",
            "order the words from a to z",
        ),
    ),
    Operation(
        "by_length",
        "sorted({v}, key=len)",
        ("sort the words by length", "bring short words to the front", "order the words from short to long"),
    ),
    Operation(
        "turn", "{v}[::-1]", ("reverse the order", "turn the list around", "read the list from right to left")
    ),
    Operation(
        "distinct",
        "list(dict.fromkeys({v}))",
        ("drop repeated words", "keep only the first of equal words", "remove duplicates"),
    ),
    Operation("behead", "{v}[1:]", ("drop the first word", "cut off the head", "forget the leftmost word")),
    Operation(
        "every_other",
        "{v}[::2]",
        ("keep every other word", "skip each second word", "take the words at even positions"),
    ),
    Operation(
        "shift",
        "{v}[1:] + {v}[:1]",
        ("move the first word to the end", "rotate the list left by one", "send the head to the back"),
    ),
    Operation(
        "vowel",
        '[w for w in {v} if w[:1] not in "aeiou"]',
        (
            "drop words that start with a vowel",
            "keep words that begin with a consonant",
            "remove what has a vowel in front",
        ),
    ),
)

OPERATIONS: dict[Kind, tuple[Operation, ...]] = {"number": NUMBER_OPERATIONS, "word": WORD_OPERATIONS}
