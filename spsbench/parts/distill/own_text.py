"""What a target is asked for its own text, and the shards of text that it then writes or reads.

A chat model that is given the beginning of a user's turn writes a user's message (Xu et al. 2024, Magpie).
So requests come from the target itself, and no collection of other people's text is needed.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

import torch

from spsbench.base import SamplingParams
from spsbench.models import Tokenizer
from spsbench.parts.distill.corpus import Shard, shard_of
from spsbench.parts.distill.recipe import PYTHON, SOURCES
from spsbench.parts.distill.sampler import Writer
from spsbench.tasks import begun_function, read_prompts_file

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
class OwnPrompt:
    """What the target continues.

    Attributes:
        kind: ``chat`` or ``code``.
    """

    kind: str
    text: str
    ids: list[int]


def opened(tokenizer: Tokenizer, opening: Opening) -> list[int]:
    """Token ids of a conversation up to the opening's last word; for a base model, of the text alone."""
    if tokenizer.has_chat_template:
        return tokenizer.opened_chat(opening.text)
    return tokenizer.encode(opening.text or "\n", special=True)


def request_of(tokenizer: Tokenizer, kind: str, text: str) -> OwnPrompt:
    """A request as the target is asked it."""
    ids = tokenizer.chat(text) if tokenizer.has_chat_template else tokenizer.encode(text, special=True)
    return OwnPrompt(kind, text, ids)


def begun(tokenizer: Tokenizer, head: str, body: str = "") -> OwnPrompt:
    """A function to be completed, asked as ``humaneval`` asks."""
    ids = begun_function(tokenizer, head, body) if tokenizer.has_chat_template else None
    text = head.rstrip() + (f"\n{body}" if body else "")
    return OwnPrompt(CODE, head.rstrip(), ids or tokenizer.encode(text, special=True))


@cache
def file_prompts(path: Path, tokenizer: Tokenizer) -> list[OwnPrompt]:
    """The prompts of a file, see ``tasks.prompts``; what a user says goes through a chat model's template."""
    prompts = []
    for example in read_prompts_file(path, every_turn=True).examples:
        fields = example.fields
        if "messages" in fields and tokenizer.has_chat_template:
            text = "\n".join(message["content"] for message in fields["messages"])
            ids = tokenizer.conversation(fields["messages"], fields.get("tools", ()))
            prompts.append(OwnPrompt(CHAT, text, ids))
        elif "prompt" in fields:
            prompts.append(
                OwnPrompt(CHAT, fields["prompt"], tokenizer.encode(fields["prompt"], special=True))
            )
        else:
            prompts.append(
                request_of(tokenizer, CHAT, fields.get("turn") or fields["messages"][-1]["content"])
            )
    return prompts


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the standard library, dedented."""

    head: str
    body: str


@cache
def functions() -> tuple[Function, ...]:
    """Functions and methods of the standard library, those with the shortest heads first."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (path for path in root.rglob("*.py") if not _NOT_LIBRARY & set(path.relative_to(root).parts))
    parsed = {function for file in files for function in _functions(file)}
    return tuple(sorted(parsed, key=lambda function: (len(function.head), function.head, function.body)))


def _functions(file: Path) -> Iterator[Function]:
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    lines = text.split("\n")  # as ast counts them: a form feed ends none
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
            first = node.lineno - 1
            last = node.end_lineno
            whole = dedent("\n".join(lines[first:last])).split("\n")
            documented = ast.get_docstring(node) is not None
            size = (node.body[0].end_lineno if documented else node.body[0].lineno - 1) or 0
            head, body = "\n".join(whole[: size - first]), "\n".join(whole[size - first :])
            if head.strip() and body.strip() and len(head) <= _LONGEST_HEAD:
                yield Function(head, body)


BATCH = 128
REQUEST_TOKENS, ANSWER_TOKENS = 96, 192
_OF_HEADS = 6
"""Shards of own text, of those that follow the openings in turn, which end functions of the library."""
_READ, _READ_AT_ONCE = 256, 32
SHORTEST_REQUEST = 3  # words


@dataclass(frozen=True)
class OwnText:
    """Makes shards.

    Attributes:
        sources: ``own`` (the target's answers to its own requests, and its endings of functions),
            ``python`` (functions as they were written), or prompts files, which the target answers.
    """

    writer: Writer
    tokenizer: Tokenizer
    sources: Sequence[str]
    seed: int

    def shard(self, number: int) -> Shard:
        """Number and seed decide its content."""
        source = self.sources[number % len(self.sources)]
        turn = number // len(self.sources)
        generator = torch.Generator(self.writer.model.device).manual_seed(self.seed * 1_000_003 + number)
        if source == PYTHON and turn < len(functions()) // _READ:
            return self._functions_read(turn)
        # The library has an end: what follows is own text again.
        if source not in SOURCES:
            prompts = file_prompts(Path(source), self.tokenizer)
            places = range(turn * BATCH, turn * BATCH + min(BATCH, len(prompts)))
            return self._answered([prompts[place % len(prompts)] for place in places], generator)
        opening = (*OPENINGS, *[None] * _OF_HEADS)[turn % (len(OPENINGS) + _OF_HEADS)]
        requests = [] if opening is None else self._requests(opening, generator)
        return self._answered(requests or self._begun_functions(turn), generator)

    def _answered(self, prompts: list[OwnPrompt], generator: torch.Generator) -> Shard:
        kind = prompts[0].kind
        prompts = sorted(prompts, key=lambda prompt: len(prompt.ids))
        ids = [prompt.ids for prompt in prompts]
        sampled = self.writer.write(ids, ANSWER_TOKENS, SAMPLINGS[kind], generator)
        # Sequences come in the order of their prompts; one that was never continued is left out.
        texts = {tuple(prompt.ids): prompt.text for prompt in prompts}
        return shard_of(kind, [texts[tuple(s.tokens[: s.start].tolist())] for s in sampled], sampled)

    def _functions_read(self, turn: int) -> Shard:
        """Functions as the target would have written them, not sampled."""
        chosen = self._neighbours(turn, _READ, functions())
        prompts = [begun(self.tokenizer, function.head) for function in chosen]
        sequences = []
        for prompt, function in zip(prompts, chosen, strict=True):
            whole = begun(self.tokenizer, function.head, function.body).ids
            sequences.append((whole[: len(prompt.ids) + ANSWER_TOKENS], len(prompt.ids)))
        temperature = SAMPLINGS[CODE].temperature
        by_length = sorted(range(len(chosen)), key=lambda i: len(sequences[i][0]))
        parts = [by_length[at : at + _READ_AT_ONCE] for at in range(0, len(by_length), _READ_AT_ONCE)]
        outputs = [
            item for part in parts for item in self.writer.read([sequences[i] for i in part], temperature)
        ]
        return shard_of(CODE, [prompts[i].text for i in by_length], outputs)

    def _begun_functions(self, turn: int) -> list[OwnPrompt]:
        quotes = ('"', "'")  # a docstring ends the head: it says what is to be done
        documented = tuple(each for each in functions() if each.head.rstrip().endswith(quotes))
        return [
            begun(self.tokenizer, function.head) for function in self._neighbours(turn, BATCH, documented)
        ]

    def _neighbours(self, turn: int, count: int, among: Sequence[Function]) -> Sequence[Function]:
        """In length: a batch is then read in one forward, and not token by token."""
        groups = max(1, len(among) // count)
        first = random.Random(self.seed).sample(range(groups), groups)[turn % groups] * count
        return among[first : first + count]

    def _requests(self, opening: Opening, generator: torch.Generator) -> list[OwnPrompt]:
        ids = opened(self.tokenizer, opening)
        requests = self.writer.write([ids] * BATCH, REQUEST_TOKENS, REQUESTS, generator)
        prompts = []
        for request in requests:
            text = opening.text + self.tokenizer.decode(request.tokens[request.start :].tolist())
            head = _function_head(text)
            if head is not None:
                prompts.append(begun(self.tokenizer, head))
            elif len(text.split()) >= SHORTEST_REQUEST:
                prompts.append(request_of(self.tokenizer, opening.kind, text.strip()))
        return prompts


def _function_head(request: str) -> str | None:
    """Of the function that a request shows, docstring included; None if it shows none."""
    _, fence, code = request.partition("```python\n")
    if not fence:
        return None
    lines = code.split("```")[0].splitlines()
    head: list[str] = []
    quoted = False
    for line in lines:
        if head and not quoted and '"""' not in line:
            break
        if line.count('"""') == 1:
            quoted = not quoted
        head.append(line)
        if len(head) > 1 and not quoted:
            break
    return "\n".join(head) + "\n" if head and head[0].rstrip().endswith(":") else None
