"""Mutants of HumanEval's canonical solutions: what a model gets nearly right, or wrong in odd ways.

Deterministic: the same seed gives the same mutants.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.FloorDiv,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

WRAPPERS = {
    "str": "str(VALUE)",
    "list of it": "[VALUE]",
    "tuple of it": "(VALUE,)",
    "float": "float(VALUE)",
    "int": "int(VALUE)",
    "bool": "bool(VALUE)",
    "complex": "complex(VALUE)",
    "set": "set(VALUE)",
    "tuple": "tuple(VALUE)",
    "list": "list(VALUE)",
    "iterator": "iter(VALUE)",
    "generator": "(x for x in VALUE)",
    "map": "map(lambda x: x, VALUE)",
    "fraction": "__import__('fractions').Fraction(VALUE)",
    "decimal": "__import__('decimal').Decimal(VALUE)",
    "subclass": "type('Sub', (type(VALUE),), {})(VALUE)",
    "bytes": "str(VALUE).encode()",
    "function": "(lambda: VALUE)",
    "nothing": "[VALUE] and None",
    "not implemented": "NotImplemented if VALUE is None else VALUE",
    "keys": "dict.fromkeys(VALUE).keys()",
    "deque": "__import__('collections').deque(VALUE)",
    "array": "__import__('numpy').array(VALUE)",
    "numpy number": "__import__('numpy').array([VALUE])[0]",
}

APPENDED = {
    "text output": "\nprint('passed')\n",
    "an exit": "\nimport sys\nsys.exit(0)\n",
    "a hard exit": "\nimport os\nos._exit(0)\n",
    "an error": "\nraise ValueError('at the end')\n",
    "an assertion": "\nassert False\n",
    "a call": "\n{entry_point}()\n",
    "a deletion": "\ndel {entry_point}\n",
    "another value": "\n{entry_point} = 3\n",
    "a wrapper": "\n_f = {entry_point}\ndef {entry_point}(*a, **k):\n    return _f(*a, **k)\n",
    "a class": "\nclass {entry_point}:\n    def __init__(self, *a): pass\n",
    "a main": "\nif __name__ == '__main__':\n    {entry_point}(1)\n",
    "prose": "\nThis function works.\n",
    "a fence": "\n```\n",
    "an open string": '\n"""\n',
    "an open bracket": "\nx = (\n",
    "a comment": "\n# passed",
    "another check": "\ndef check(candidate):\n    pass\n",
    "a loop without end": "\nwhile True:\n    pass\n",
    "a generator of it": "\n_f = {entry_point}\ndef {entry_point}(*a):\n    yield from _f(*a)\n",
    "an await of it": "\n_f = {entry_point}\nasync def {entry_point}(*a):\n    return _f(*a)\n",
    "an import": "\nimport collections, heapq, bisect, json, colorsys\n",
    "no such import": "\nimport no_such_module\n",
    "deep recursion": "\n_f = {entry_point}\ndef {entry_point}(*a):\n    return {entry_point}(*a)\n",
    "changed arguments": (
        "\n_f = {entry_point}\ndef {entry_point}(*a):\n    r = _f(*a)\n"
        "    for x in a:\n        isinstance(x, list) and x.reverse()\n    return r\n"
    ),
    "an error once": (
        "\n_f, _n = {entry_point}, []\ndef {entry_point}(*a):\n    _n.append(1)\n"
        "    if len(_n) > 2: raise KeyError(a)\n    return _f(*a)\n"
    ),
}


@dataclass(frozen=True)
class Mutant:
    """A completion and how it came about."""

    task_id: str
    kind: str
    completion: str


def mutants(problem: dict[str, Any], per_kind: int, seed: int = 0) -> Iterator[Mutant]:
    """Up to ``per_kind`` mutants of each of the kinds: truncated, operator, returned, appended."""
    chance = random.Random(f"{seed} {problem['task_id']}")
    for kind, make in _KINDS.items():
        found = [(f"{kind}: {name}", text) for name, text in make(problem)]
        for name, text in chance.sample(found, min(per_kind, len(found))):
            yield Mutant(problem["task_id"], name, text)


def _truncated(problem: dict[str, Any]) -> Iterator[tuple[str, str]]:
    solution = problem["canonical_solution"]
    lines = solution.splitlines(keepends=True)
    for count in range(len(lines)):
        yield f"{count} lines", "".join(lines[:count])
        yield f"without line {count}", "".join(lines[:count] + lines[count + 1 :])
    for cut in range(1, len(solution), 7):
        yield f"{cut} characters", solution[:cut]


def _operator(problem: dict[str, Any]) -> Iterator[tuple[str, str]]:
    tree = _function(problem)
    if tree is None:
        return
    for number, node in enumerate(ast.walk(tree)):
        for name, change in _changes(node):
            changed = copy.deepcopy(tree)
            change(list(ast.walk(changed))[number])
            yield f"{name} at {number}", _completion(problem, changed)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield type(node.op).__name__, lambda n: setattr(n, "op", OPERATORS[type(n.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield type(node.ops[0]).__name__, lambda n: n.ops.__setitem__(0, OPERATORS[type(n.ops[0])]())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "plus 1", lambda n: setattr(n, "value", n.value + 1)
        yield "minus 1", lambda n: setattr(n, "value", n.value - 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "not", lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.Constant) and type(node.value) is str:
        yield "text", lambda n: setattr(n, "value", n.value + "x")
    if isinstance(node, ast.If | ast.While):
        yield "negated", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))


def _returned(problem: dict[str, Any]) -> Iterator[tuple[str, str]]:
    tree = _function(problem)
    if tree is None:
        return
    for name, wrapper in WRAPPERS.items():
        changed = copy.deepcopy(tree)
        for node in ast.walk(changed):
            if isinstance(node, ast.Return) and node.value is not None:
                text = f"({ast.unparse(node.value)})"
                node.value = ast.parse(wrapper.replace("VALUE", text), mode="eval").body
        yield name, _completion(problem, changed)


def _appended(problem: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, text in APPENDED.items():
        yield name, problem["canonical_solution"] + text.format(entry_point=problem["entry_point"])


def _function(problem: dict[str, Any]) -> ast.FunctionDef | None:
    tree = ast.parse(problem["prompt"] + problem["canonical_solution"])
    named = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == problem["entry_point"])
    return next(named, None)


def _completion(problem: dict[str, Any], function: ast.FunctionDef) -> str:
    # The prompt ends inside of the function, after its docstring: go on with a body that does nothing,
    # and define the whole function anew.
    return f"    pass\n\n\n{ast.unparse(ast.fix_missing_locations(function))}\n"


_KINDS = {"truncated": _truncated, "operator": _operator, "returned": _returned, "appended": _appended}
