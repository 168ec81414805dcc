"""Synthetic programming problems in HumanEval's fields: steps stated in words, the form of the answer shown.

The docstring tells a chain of list operations (``training.operations``), forwards, as a numbered list
or backwards; names are rare syllables to copy; in what form the result is returned can be read only
from the example. Every step changes the list in at least one call of the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from training import names
from training.operations import OPERATIONS, Kind, Operation
from training.split import Part, part_of
from training.words import words

Value = list[int] | list[str]

RETURNS = (
    "{v}",
    "tuple({v})",
    "dict(enumerate({v}))",
    '"-".join(map(str, {v}))',
    '{{"size": len({v}), "items": {v}}}',
    "[{v}, len({v})]",
)
"""Forms of the answer that the example's output shows plainly; ``{v}`` is the list."""

SINGLE_RETURNS: dict[Kind, tuple[str, ...]] = {
    "number": ("sum({v})", "max({v})", "min({v})", "{v}[0]", "{v}[-1]"),
    "word": ("max({v})", "min({v})", "{v}[0]", "{v}[-1]"),
}
"""Answers of one element: which of them it is can only be inferred by working the example out."""

SINGLE_SHARE = 0.5

ORDINALS = ("First", "Then", "Next", "After that", "Now", "Afterwards", "Following that", "Later")
OPENINGS = (
    "Work on the list {v}.",
    "Given the list {v}, carry out what follows.",
    "Transform {v} as told here.",
    "Take {v} and process it.",
)
CLOSINGS = (
    "Return the result in the form of the example.",
    "The example shows what is returned.",
    "See below for the form of the answer.",
)
WORKING_NAMES = (
    "The list that is worked on is called {w}.",
    "Store each stage in {w}.",
    "Use {w} as the variable.",
)
COMMON_LISTS = ("values", "entries", "items", "data")
COMMON_FUNCTIONS = ("solve", "process", "convert", "transform", "compute", "build")
WORDS = words(
    "apple river stone cloud green house light bread water plant chair train garden music paper silver "
    "ocean tiger under alpha echo idea open earth winter summer finger basket kettle anchor"
)


@dataclass(frozen=True)
class Program:
    """A problem in HumanEval's fields with the sequence of operations it is made of."""

    prompt: str
    entry_point: str
    canonical_solution: str
    test: str
    sequence: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """An operation with the name of its parameter (empty if it has none)."""

    operation: Operation
    parameter: str

    def code(self, variable: str) -> str:
        """The step as a Python expression on ``variable``."""
        return self.operation.code.format(v=variable, p=self.parameter)


@dataclass(frozen=True)
class Plan:
    """All choices that make a program, before they are written out."""

    kind: Kind
    name: str
    source: str
    working: str
    steps: tuple[Step, ...]
    returned: str

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters behind the list, in the order of the signature."""
        return sorted({step.parameter for step in self.steps if step.parameter})

    def body(self) -> str:
        """The solution: one assignment for each step, then the return."""
        lines, current = [], self.source
        for step in self.steps:
            lines.append(f"    {self.working} = {step.code(current)}")
            current = self.working
        return "\n".join([*lines, f"    return {self.returned.format(v=current)}"]) + "\n"

    def signature(self, *, annotated: bool = False) -> str:
        """The first line of the function, with the parameters' types if wanted."""
        if not annotated:
            return f"def {self.name}({', '.join([self.source, *self.parameters])}):"
        text = {step.parameter for step in self.steps if step.operation.parameter == "text"}
        element = "str" if self.kind == "word" else "int"
        typed = [f"{name}: {'str' if name in text else 'int'}" for name in self.parameters]
        return f"def {self.name}({', '.join([f'{self.source}: List[{element}]', *typed])}):"

    def transformed(self, call: list[Any], without: int | None = None) -> Value:
        """The list after all steps (or after all but one) for the arguments of a call."""
        given = dict(zip(self.parameters, call[1:], strict=True))
        value: Value = call[0]
        for index, step in enumerate(self.steps):
            if index != without:
                value = eval(_compiled(step.operation.code), {"v": value, "p": given.get(step.parameter)})
        return value


@cache
def _compiled(code: str) -> CodeType:
    return compile(code.format(v="v", p="p"), "<operation>", "eval")


def make_program(
    part: Part, rng: random.Random, step_count: int, single_share: float = SINGLE_SHARE
) -> Program:
    """One problem of a part with ``step_count`` operations, all of which change the list.

    ``single_share`` is the chance of an answer of one element (before the checks, which reject
    examples that show two such answers alike).
    """
    while True:
        plan = _plan(part, rng, step_count, single_share)
        sequence = tuple(step.operation.key for step in plan.steps)
        if part_of(plan.kind, *sequence) != part:
            continue
        calls = [_arguments(plan, rng) for _ in range(6)]
        answers = _answers(plan, calls)
        if answers is not None and _tells_apart(calls, answers):
            return _write(plan, rng, calls, answers, sequence)


def _plan(part: Part, rng: random.Random, step_count: int, single_share: float) -> Plan:
    kind: Kind = "number" if rng.random() < 0.65 else "word"
    rare_names = _distinct_names(part, rng, step_count + 3)
    source = rare_names.pop() if rng.random() < 0.7 else rng.choice(COMMON_LISTS)
    working = rare_names.pop() if rng.random() < 0.4 else "result"
    name = rare_names.pop() if rng.random() < 0.7 else rng.choice(COMMON_FUNCTIONS)
    operations = rng.sample(OPERATIONS[kind], step_count)
    steps = tuple(Step(op, rare_names.pop() if op.parameter else "") for op in operations)
    forms = SINGLE_RETURNS[kind] if rng.random() < single_share else RETURNS
    return Plan(kind, name, source, working, steps, rng.choice(forms))


def _distinct_names(part: Part, rng: random.Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[names.identifier(part, rng)] = None
    return list(found)


def _arguments(plan: Plan, rng: random.Random) -> list[Any]:
    size = rng.randint(5, 7)
    value: Value = (
        rng.sample(WORDS, size) if plan.kind == "word" else [rng.randint(-9, 20) for _ in range(size)]
    )
    wanted = {step.parameter: step.operation.parameter for step in plan.steps}
    draw: dict[str, Callable[[], Any]] = {
        "number": lambda: rng.randint(2, 9),
        "count": lambda: rng.randint(2, 4),
        "text": lambda: rng.choice("abcdeilnors") + rng.choice("aeo"),
    }
    return [value, *(draw[wanted[parameter]]() for parameter in plan.parameters)]


def _answers(plan: Plan, calls: list[list[Any]]) -> list[Any] | None:
    """What the program returns; None if a list is empty, or the example says too much or too little."""
    lists = [plan.transformed(call) for call in calls]
    if any(not items or len(repr(items)) > 80 for items in lists) or len(lists[0]) < 2:
        return None
    singles = SINGLE_RETURNS[plan.kind]
    if (
        plan.returned in singles
        and [_as(form, lists[0]) for form in singles].count(_as(plan.returned, lists[0])) > 1
    ):
        return None
    if not all(_matters(plan, index, calls, lists) for index in range(len(plan.steps))):
        return None
    return [_as(plan.returned, items) for items in lists]


def _as(form: str, items: Value) -> Any:
    """A list in one form of the answer."""
    return eval(form.format(v="items"), {"items": items})


def _matters(plan: Plan, index: int, calls: list[list[Any]], lists: list[Value]) -> bool:
    """Whether the list would differ without a step in one of the calls."""
    return any(
        plan.transformed(call, without=index) != items for call, items in zip(calls, lists, strict=True)
    )


def _tells_apart(calls: list[list[Any]], answers: list[Any]) -> bool:
    """Whether the calls reject a constant and the identity (an empty solution fails anyway)."""
    constant = all(answer == answers[0] for answer in answers)
    identity = all(answer == call[0] for answer, call in zip(answers, calls, strict=True))
    return not constant and not identity


def _write(
    plan: Plan, rng: random.Random, calls: list[list[Any]], answers: list[Any], sequence: tuple[str, ...]
) -> Program:
    example = f"    >>> {plan.name}({', '.join(map(repr, calls[0]))})\n    {answers[0]!r}\n"
    text = _docstring(plan, rng)
    imports = rng.choice(("", "", "", "from typing import List\n\n\n", "import math\n\n\n"))
    signature = plan.signature(annotated="List" in imports)
    prompt = f'{imports}{signature}\n    """{text}\n{example}    """\n'
    asserts = [
        f"    assert candidate({', '.join(map(repr, call))}) == {answer!r}\n"
        for call, answer in zip(calls, answers, strict=True)
    ]
    test = "def check(candidate):\n" + "".join(asserts)
    return Program(prompt, plan.name, plan.body(), test, sequence)


def _docstring(plan: Plan, rng: random.Random) -> str:
    clauses = [rng.choice(step.operation.phrases).format(p=step.parameter) for step in plan.steps]
    layout = rng.choice((_in_order, _numbered, _backwards, _backwards, _last_first))
    parts = [rng.choice(OPENINGS).format(v=plan.source), layout(clauses, rng)]
    if plan.working != "result":
        parts.insert(rng.randint(1, 2), rng.choice(WORKING_NAMES).format(w=plan.working))
    return "\n    ".join([*parts, rng.choice(CLOSINGS)])


def _in_order(clauses: list[str], rng: random.Random) -> str:
    heads = ["First", *rng.sample(ORDINALS[1:], len(clauses) - 1)]
    return " ".join(f"{head} {clause}." for head, clause in zip(heads, clauses, strict=True))


def _numbered(clauses: list[str], rng: random.Random) -> str:
    mark = rng.choice(("{}.", "({})", "Step {}:"))
    return "\n    ".join(f"{mark.format(number)} {clause}" for number, clause in enumerate(clauses, 1))


def _backwards(clauses: list[str], rng: random.Random) -> str:
    heads = ["At the end", *(rng.choice(("Before that", "Prior to this")) for _ in clauses[1:])]
    return " ".join(f"{head} {clause}." for head, clause in zip(heads, reversed(clauses), strict=True))


def _last_first(clauses: list[str], rng: random.Random) -> str:
    last = rng.choice(("The last step is to {}.", "Finish by this: {}."))
    rest = "; then ".join(clauses[:-1])
    return f"{last.format(clauses[-1])} What comes before it: {rest}."
