from __future__ import annotations

import random
import re
from typing import Any

import pytest

from training.operations import OPERATIONS
from training.programs import Program, make_program
from training.split import part_of


def draws(part: str, count: int, steps: int = 3) -> list[Program]:
    rng = random.Random(11)
    return [make_program(part, rng, steps) for _ in range(count)]  # type: ignore[arg-type]


def passes(program: Program, body: str) -> bool:
    scope: dict[str, Any] = {}
    try:
        exec(f"{program.prompt}{body}\n{program.test}\ncheck({program.entry_point})\n", scope)
    except Exception:
        return False
    return True


def first_parameter(program: Program) -> str:
    signature = program.prompt.split("(", 1)[1].split(")", 1)[0]
    return signature.split(",")[0].split(":")[0]


@pytest.mark.parametrize("steps", [2, 4, 5])
def test_the_canonical_solution_passes(steps: int) -> None:
    assert all(passes(program, program.canonical_solution) for program in draws("train", 40, steps))


def test_the_test_rejects_an_empty_a_constant_and_an_identity_solution() -> None:
    for program in draws("heldout", 60):
        first_answer = program.test.split(" == ", 1)[1].split("\n", 1)[0]
        assert not passes(program, "    pass\n")
        assert not passes(program, f"    return {first_answer}\n")
        assert not passes(program, f"    return {first_parameter(program)}\n")


def test_the_last_step_is_needed_when_the_list_itself_is_returned() -> None:
    checked = 0
    for program in draws("train", 150):
        *steps, returned = program.canonical_solution.splitlines()
        if re.fullmatch(r"    return \w+", returned):
            assert not passes(program, "\n".join([*steps[:-1], returned]) + "\n")
            checked += 1
    assert checked > 10


def test_the_example_in_the_docstring_is_the_first_assertion() -> None:
    for program in draws("train", 20):
        call, answer = program.prompt.split(">>> ")[1].splitlines()[:2]
        wanted = f"    assert {call.replace(program.entry_point, 'candidate', 1)} == {answer.strip()}"
        assert program.test.splitlines()[1] == wanted


def test_held_out_sequences_of_operations_are_never_drawn_for_training() -> None:
    trained = {program.sequence for program in draws("train", 300)}
    held_out = {program.sequence for program in draws("heldout", 60)}
    assert not trained & held_out


def test_operations_have_distinct_keys_and_three_phrases() -> None:
    for operations in OPERATIONS.values():
        assert len({operation.key for operation in operations}) == len(operations)
        assert all(len(set(operation.phrases)) == 3 for operation in operations)
        assert all(("{p}" in operation.code) == bool(operation.parameter) for operation in operations)


def test_the_split_gives_a_tenth_away() -> None:
    share = sum(part_of(f"name{number}") == "heldout" for number in range(5000)) / 5000
    assert 0.08 < share < 0.12
