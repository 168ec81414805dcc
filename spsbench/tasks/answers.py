"""The code in what an instruct model answers, and the rule that says whether to look for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from textwrap import dedent, indent
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


_LANGUAGE = re.compile(r"\W*(\w*)")
_PYTHON = re.compile(r"((py|python)\d*)?", re.IGNORECASE)
_FENCES = ("```", "~~~")


def completion_of(answer: str, prompt: str, entry_point: str) -> str:
    """Return what to run after the prompt: the code of an answer, in the form that upstream's judge takes.

    The first fenced block of Python that defines the function counts, else the first block, else the
    whole answer. A whole function follows the prompt's own stub and replaces it, so that it has the
    prompt's imports and helpers. Anything else is the function's body and continues the prompt.
    The answer is not trusted: it is cut as text, and never parsed as a program here.
    """
    code = dedent(_code_block(answer, entry_point))
    if code.lstrip("\r\n")[:1].isspace():  # begins in the function and goes on at the margin
        return code
    # What makes the prompt a program by itself: nothing after a docstring.
    rest = next((rest for rest in ("", "\n    pass\n", "\n\tpass\n") if _functions_in(prompt + rest)), "")
    if _defines(code, entry_point):
        return f"{rest}\n\n{code}"
    functions = _functions_in(prompt + rest)
    indentation = "    "
    if functions:
        first = functions[-1].body[0]
        indentation = (prompt + rest).splitlines()[first.lineno - 1][: first.col_offset]
    return ("" if prompt.endswith("\n") else "\n") + indent(code, indentation)


def _code_block(answer: str, entry_point: str) -> str:
    """A fence is Python's if its first word names Python, or is empty."""
    python, others = list[str](), list[str]()
    for info, text in _fenced_blocks(answer):
        word = _LANGUAGE.match(info)
        (python if word is not None and _PYTHON.fullmatch(word[1]) else others).append(text)
    texts = [*python, *others]
    defining = (text for text in texts if _defines(dedent(text), entry_point))
    return next(defining, texts[0] if texts else answer)


def _defines(code: str, entry_point: str) -> bool:
    return re.search(rf"^(async\s+)?def\s+{re.escape(entry_point)}\s*\(", code, re.MULTILINE) is not None


def _fenced_blocks(text: str, *, again: bool = True) -> Iterator[tuple[str, str]]:
    """(The words after the fence, content) of every block.

    A block that the length limit cut reaches to the end.
    Four spaces in front make a fence plain text to Markdown, but models indent under a list item as
    they like: such a piece is read again without them, once.
    """
    for token in _fence_parser().parse(text):
        if token.type == "fence":
            yield token.info, token.content
        elif again and token.type == "code_block" and token.content.lstrip().startswith(_FENCES):
            yield from _fenced_blocks(dedent(token.content), again=False)


@cache
def _fence_parser() -> MarkdownIt:
    """Without HTML, in whose blocks there would be no fence."""
    from markdown_it import MarkdownIt

    return MarkdownIt("zero").enable(["fence", "code", "list", "blockquote"])


def _functions_in(program: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Nothing if the text is not a program."""
    try:
        body = ast.parse(program).body
    except (SyntaxError, ValueError):
        return []
    return [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


ExtractionRule = Literal["none", "fence", "begun"]
"""An answer as it is, the code in its fence, or the rest of a fence that was begun for the model."""

ExtractionChoice = Literal["auto", "none", "fence"]


def extraction_rule(choice: ExtractionChoice, chat: bool) -> ExtractionRule:
    """Return the rule for an answer that was not begun for the model.

    ``auto`` is fence in a chat, whose answers are Markdown, and none elsewhere.
    """
    if choice == "auto":
        return "fence" if chat else "none"
    return choice


def extraction_identity(rule: ExtractionRule | None, chat: bool) -> dict[str, str]:
    """Return the rule in a run's identity: empty where it is that of ``extraction_rule("auto", chat)``.

    So a run from before there was a choice, or from before turns were begun, can be continued.
    """
    return {} if rule in (None, extraction_rule("auto", chat)) else {"extract": str(rule)}
