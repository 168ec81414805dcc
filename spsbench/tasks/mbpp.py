"""MBPP: a sentence and three assertions in, a function out (Austin et al. 2021)."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import replace

from spsbench.base.records import Example, Prompt
from spsbench.tasks.answers import ExtractionRule, extraction_rule
from spsbench.tasks.humaneval import Code
from spsbench.tasks.sources import DataRow, bad_data, distinct, misfit, required_column, required_label
from spsbench.tasks.spec import template_sha256
from spsbench.tasks.task import Frame, TaskData, describe, task_data

_ASKED = "{text} Your code should pass these tests:\n\n{tests}\n"
_HEAD = "You are an expert Python programmer, and here is your task: "
_BEGIN, _DONE = "[BEGIN]\n", "[DONE]"
"""The words of the paper's prompt, by which its figures are known."""

_COLUMNS = (("task_id",), ("text", "prompt"), ("code",), ("test_list",))


class Mbpp(Code):
    """A whole function after the solved examples of the task's file; a chat is asked without them.

    The assertions are in the prompt and in the check. Where they use a name that the solution defines beside
    the function, a class say, the problem is left out and counted: tests never enter the program's sandbox.
    """

    def _load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """Load the problems, with solved ones for the prompt."""
        rows, solved, origin = self._rows_and_solved(data, _COLUMNS)
        taken = self._solved(data, rows, solved)
        assert self.spec.shots is not None
        shots = "".join(self.spec.shots.text.format(**_solved(row)) for row in taken)
        places = {row.place for row in taken} if solved is None else set()
        found, untestable = [], 0
        for row in rows:
            example = None if row.place in places else _example(row)
            untestable += row.place not in places and example is None
            if example is not None:
                found.append((example, row))
        if not found:
            raise bad_data(f"{data} holds no problem that can be tested.", "Give a file with at least one.")
        origin = {**origin, "skipped_untestable": untestable}
        shared = template_sha256(f"{_HEAD}{_ASKED}{_BEGIN}", shots)
        described = describe(self.spec, data)
        made = task_data(distinct(found), limit, seed, origin, described, shared, self.spec.prompt)
        return replace(made, shots=shots)

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        """Never truncated: half an assertion is another problem."""
        question = str(example.fields["question"])
        return frame.whole(example, question if frame.chat else f"{data.shots}{_HEAD}{question}{_BEGIN}")

    def stop_for(self, prompt: Prompt) -> tuple[str, ...]:
        """See ``Task.stop_for``. A chat's answer ends where the model ends it."""
        return () if prompt.chat or self.extract == "fence" else self.stop

    def extraction(self, prompt: Prompt) -> ExtractionRule:
        return extraction_rule(self.extract, prompt.chat)

    def problem(self, prompt: Prompt) -> dict[str, str]:
        """See ``Code.problem``: the program is the answer alone."""
        return super().problem(prompt) | {"prompt": ""}


def _solved(row: DataRow) -> dict[str, str]:
    return {"question": _HEAD + _question(row), "code": required_column(row, "code").replace("\r\n", "\n")}


def _question(row: DataRow) -> str:
    return _ASKED.format(text=required_column(row, "text", "prompt"), tests="\n".join(_tests(row)))


def _tests(row: DataRow) -> list[str]:
    tests = row.fields.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise misfit(f"{row.place}: column 'test_list'", tests, "a list of assertions")
    return tests


def _example(row: DataRow) -> Example | None:
    """None where the assertions need more than one function of the solution."""
    tests = _parsed("\n".join(_tests(row)), row)
    setup = _parsed(
        "\n".join([row.fields.get("test_setup_code") or "", *(row.fields.get("test_imports") or ())]), row
    )
    functions = [
        node.name for node in _parsed(required_column(row, "code"), row) if isinstance(node, ast.FunctionDef)
    ]
    names = _free_names([*setup, *tests])
    if len(names) != 1 or names[0] not in functions:
        return None
    (entry_point,) = names
    # Written anew: a text over several lines would change where lines are indented.
    lines = [f"global {entry_point}", f"{entry_point} = candidate", *map(ast.unparse, tests)]
    check = "".join(f"    {line}\n" for line in lines)
    before = "".join(f"{ast.unparse(node)}\n" for node in setup)
    reference = f"{before}def check(candidate):\n{check}\n\ncheck({entry_point})\n"
    return Example(required_label(row, "task_id"), {"question": _question(row)}, reference)


def _free_names(statements: Sequence[ast.stmt]) -> list[str]:
    """Names that are used and neither bound there nor built in, each once."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    used = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Load))
    return [name for name in used if name not in bound and not hasattr(builtins, name)]


def _parsed(source: str, row: DataRow) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise bad_data(f"{row.place} holds code that is not Python ({error}).", "Correct the row.") from error
