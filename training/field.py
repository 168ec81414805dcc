"""Synthetic rows in the columns of the tasks that papers quote acceptance by, for ``spsbench run field``.

Every text is made here from templates and rare names; no published row is in it. The pair was trained on
none of them: they let every command run without a network, and a figure measured with them says nothing.

    python -m training.field spsbench/mini/data
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from training.names import FIRST_NAMES, identifier, place, surname
from training.words import words

Row = dict[str, Any]

ROWS, SOLVED = 48, 10
"""Rows of a task, and rows that its solved examples are taken from."""

_THINGS = words("apples pencils stamps marbles candles tickets jars bricks loaves shells")


def write_field(folder: Path, seed: int = 20261127) -> None:
    """Write the files of all tasks into ``folder``; the same seed gives the same bytes."""
    for name, make, count in (
        ("gsm8k", _word_problem, ROWS),
        ("gsm8k_train", _word_problem, SOLVED),
        ("math500", _sum_of_fractions, ROWS),
        ("mbpp", _function, ROWS),
        ("mbpp_prompt", _function, SOLVED),
        ("mt_bench", _conversation, ROWS),
        ("alpaca", _instruction, ROWS),
    ):
        rng = random.Random(f"{seed}/{name}")
        first = 1 if name == "mbpp_prompt" else 11
        rows = _distinct(make, rng, count, first)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def _distinct(
    make: Callable[[random.Random, int], Row], rng: random.Random, count: int, first: int
) -> Iterable[Row]:
    seen = set[str]()
    while len(seen) < count:
        row = make(rng, first + len(seen))
        said = json.dumps([value for key, value in row.items() if not key.endswith("_id")])
        if said not in seen:
            seen.add(said)
            yield row


def _word_problem(rng: random.Random, number: int) -> Row:
    """The columns of GSM8K: steps in words with calculator marks, the result after ####."""
    name, thing = rng.choice(FIRST_NAMES), rng.choice(_THINGS)
    boxes, each, lost = rng.randint(3, 9), rng.randint(4, 15), rng.randint(1, 11)
    total, rest = boxes * each, boxes * each - lost
    question = (
        f"{name} from {place('heldout', rng)} has {boxes} boxes with {each} {thing} in each. "
        f"{name} gives {lost} {thing} to {rng.choice(FIRST_NAMES)} {surname('heldout', rng)}. "
        f"How many {thing} are left?"
    )
    steps = [
        f"The boxes hold {boxes} * {each} = <<{boxes}*{each}={total}>>{total} {thing}.",
        f"After the gift {total} - {lost} = <<{total}-{lost}={rest}>>{rest} {thing} are left.",
        f"#### {rest}",
    ]
    return {"question": question, "answer": "\n".join(steps)}


def _sum_of_fractions(rng: random.Random, number: int) -> Row:
    """The columns of MATH-500, the answer in a box at the end of the solution."""
    one, other = (Fraction(rng.randint(1, 9), rng.randint(2, 12)) for _ in range(2))
    total = one + other
    shown = [_latex(each) for each in (one, other, total)]
    return {
        "problem": f"What is ${shown[0]} + {shown[1]}$? Give a fraction in lowest terms.",
        "solution": f"We have ${shown[0]} + {shown[1]} = \\boxed{{{shown[2]}}}$.",
        "answer": shown[2],
        "subject": "Prealgebra",
        "level": 1,
        "unique_id": f"mini/prealgebra/{number}.json",
    }


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


_STEPS: tuple[tuple[str, str, Callable[[list[int], int], list[int]]], ...] = (
    ("add {n} to every number", "[x + {n} for x in values]", lambda v, n: [x + n for x in v]),
    ("multiply every number by {n}", "[x * {n} for x in values]", lambda v, n: [x * n for x in v]),
    ("keep the numbers above {n}", "[x for x in values if x > {n}]", lambda v, n: [x for x in v if x > n]),
    (
        "replace what is below {n} by {n}",
        "[max(x, {n}) for x in values]",
        lambda v, n: [max(x, n) for x in v],
    ),
    ("leave out the first {n} numbers", "values[{n}:]", lambda v, n: v[n:]),
    ("keep the last {n} numbers", "values[-{n}:]", lambda v, n: v[-n:]),
)


def _function(rng: random.Random, number: int) -> Row:
    """The columns of MBPP: a sentence, a function, three assertions."""
    name = f"{identifier('heldout', rng)}_{identifier('heldout', rng)}"
    (said, code, step), n = rng.choice(_STEPS), rng.randint(1, 5)
    tests = []
    for _ in range(3):
        values = [rng.randint(-9, 20) for _ in range(rng.randint(5, 8))]
        tests.append(f"assert {name}({values}) == {step(values, n)}")
    return {
        "task_id": number,
        "text": f"Write a function {name} to {said.format(n=n)} in a list.",
        "code": f"def {name}(values):\n    return {code.format(n=n)}",
        "test_list": tests,
        "test_setup_code": "",
        "challenge_test_list": [],
    }


_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def _conversation(rng: random.Random, number: int) -> Row:
    """The columns of MT-Bench's prompts: two turns of a user, the second about the answer to the first."""
    town, thing = place("heldout", rng), rng.choice(_THINGS)
    return {
        "prompt": [
            f"Describe a market in {town} where {rng.choice(FIRST_NAMES)} sells {thing}.",
            f"Now say the same in two sentences, and end with the word {thing}.",
        ],
        "prompt_id": number,
        "category": _CATEGORIES[number % len(_CATEGORIES)],
        "reference": [],
    }


def _instruction(rng: random.Random, number: int) -> Row:
    """The columns of Alpaca; every other row has an input."""
    town, thing = place("heldout", rng), rng.choice(_THINGS)
    if number % 2:
        told = f"Name three uses of {thing} that a visitor of {town} would not expect."
        return {
            "instruction": told,
            "input": "",
            "output": f"They hold doors, weigh paper and please {town}.",
        }
    name = f"{rng.choice(FIRST_NAMES)} {surname('heldout', rng)}"
    return {
        "instruction": f"Write a sentence about the person who sells {thing}.",
        "input": f"{name} lives in {town} and sells {thing}.",
        "output": f"{name} of {town} sells {thing}.",
    }


if __name__ == "__main__":
    write_field(Path(sys.argv[1]))
