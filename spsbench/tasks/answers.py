"""The code in what an instruct model answers: prose around it, fences, a whole function or its body."""

from __future__ import annotations

import ast
import re
from textwrap import dedent, indent

# A block that the length limit left open reaches to the end.
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def code_of(answer: str, prompt: str, entry_point: str) -> tuple[str, str]:
    """What to run: (what stands in front, code).

    The first fenced block that defines the function counts, else the first one, else the whole
    answer. A whole function follows the prompt, whose imports and helpers it may need, unless the
    prompt is no program by itself. Anything else is the function's body and continues the prompt.

    Args:
        answer: the model's output.
        prompt: signature and docstring of the function.
        entry_point: the function's name.
    """
    blocks = _FENCED.findall(answer) or [answer]
    definition = re.compile(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\s*\(", re.MULTILINE)
    whole = next((dedent(block) for block in blocks if definition.search(dedent(block))), None)
    if whole is not None:
        return (f"{prompt}\n\n" if _is_program(prompt) else ""), whole
    body = blocks[0].lstrip("\n")
    return prompt, body if body[:1].isspace() else indent(body, "    ")


def _is_program(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
