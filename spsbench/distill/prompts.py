"""What a target is asked for its own text: requests that it writes itself, function heads, prompts of a file.

A chat model that is given the beginning of a user's turn writes a user's message (Xu et al. 2024, Magpie).
So requests come from the target itself, and no collection of other people's text is needed.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

from spsbench.models.tokenizer import Tokenizer
from spsbench.records import SamplingParams
from spsbench.tasks.humaneval import begun_function
from spsbench.tasks.prompts import read_prompts_file

CHAT, CODE = "chat", "code"
_USUAL = SamplingParams(temperature=0.8, top_p=0.95)
SAMPLINGS = {CHAT: _USUAL, CODE: _USUAL}
"""How each kind of text is sampled: as the tasks sample it."""

REQUESTS = SamplingParams(temperature=0.8, top_p=0.9)
"""How the target's own requests are sampled: what is improbable for a user is mostly no request."""

_LONGEST_HEAD = 600
_NOT_LIBRARY = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Opening:
    """How a request begins, which the target then writes to its end."""

    kind: str
    text: str = ""


OPENINGS = (
    Opening(CHAT),
    Opening(CHAT, "What"),
    Opening(CHAT, "How"),
    Opening(CHAT, "Can you"),
    Opening(CHAT, "Explain"),
    Opening(CHAT, "Write a"),
    Opening(CHAT, "I"),
    Opening(CHAT, "Summarize the following"),
    Opening(CODE, "Write a Python function that"),
    Opening(CODE, "Write a Python function to"),
    Opening(CODE, "Implement a Python function"),
    Opening(CODE, "Complete the following Python function.\n\n```python\ndef"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target continues.

    Attributes:
        kind: ``chat`` or ``code``.
    """

    kind: str
    text: str
    ids: list[int]


def opened(tokenizer: Tokenizer, opening: Opening) -> list[int]:
    """Token ids of a conversation up to the opening's last word; of a base model, the text alone."""
    if tokenizer.has_chat_template:
        return tokenizer.opened_chat(opening.text)
    return tokenizer.encode(opening.text or "\n", special=True)


def asked(tokenizer: Tokenizer, kind: str, text: str) -> Prompt:
    """A request as the target is asked it."""
    ids = tokenizer.chat(text) if tokenizer.has_chat_template else tokenizer.encode(text, special=True)
    return Prompt(kind, text, ids)


def begun(tokenizer: Tokenizer, head: str, body: str = "") -> Prompt:
    """A function to be completed, asked as ``humaneval`` asks."""
    ids = begun_function(tokenizer, head, body) if tokenizer.has_chat_template else None
    text = head.rstrip() + (f"\n{body}" if body else "")
    return Prompt(CODE, head.rstrip(), ids or tokenizer.encode(text, special=True))


@cache
def file_prompts(path: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts of a file, see ``tasks.prompts``; what a user says goes through a chat model's template."""
    prompts = []
    for example in read_prompts_file(path, every_turn=True).examples:
        fields = example.fields
        if "messages" in fields and tokenizer.has_chat_template:
            text = "\n".join(message["content"] for message in fields["messages"])
            prompts.append(Prompt(CHAT, text, tokenizer.conversation(fields["messages"])))
        elif "prompt" in fields:
            prompts.append(Prompt(CHAT, fields["prompt"], tokenizer.encode(fields["prompt"], special=True)))
        else:
            prompts.append(asked(tokenizer, CHAT, fields.get("turn") or fields["messages"][-1]["content"]))
    return prompts


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the standard library, dedented."""

    head: str
    body: str

    @property
    def has_docstring(self) -> bool:
        """Whether the head says what is to be done."""
        return self.head.rstrip().endswith(('"""', "'''", '"', "'"))


@cache
def functions() -> tuple[Function, ...]:
    """Functions and methods of the standard library, those of the shortest heads first."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {function for file in _sources(root) for function in _functions(file)}
    return tuple(sorted(found, key=lambda function: (len(function.head), function.head, function.body)))


def _sources(root: Path) -> Iterator[Path]:
    for file in root.rglob("*.py"):
        if not _NOT_LIBRARY & set(file.relative_to(root).parts):
            yield file


def _functions(file: Path) -> Iterator[Function]:
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
            first, last = node.lineno - 1, node.end_lineno
            whole = dedent("\n".join(lines[first:last])).splitlines()
            documented = ast.get_docstring(node) is not None
            size = (node.body[0].end_lineno if documented else node.body[0].lineno - 1) or 0
            head, body = "\n".join(whole[: size - first]), "\n".join(whole[size - first :])
            if head.strip() and body.strip() and len(head) <= _LONGEST_HEAD:
                yield Function(head, body)
