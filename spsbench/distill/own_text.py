"""The shards of text to learn from: which source, which prompts, sampled how."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spsbench.distill.corpus import Shard, shard_of
from spsbench.distill.prompts import (
    CODE,
    OPENINGS,
    REQUESTS,
    SAMPLINGS,
    Function,
    Opening,
    Prompt,
    asked,
    begun,
    file_prompts,
    functions,
    opened,
)
from spsbench.distill.recipe import PYTHON, SOURCES
from spsbench.distill.sampler import Writer
from spsbench.models.tokenizer import Tokenizer

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
        """The shard of that number, which alone decides with the seed what is in it."""
        source, turn = self.sources[number % len(self.sources)], number // len(self.sources)
        generator = torch.Generator(self.writer.model.device).manual_seed(self.seed * 1_000_003 + number)
        if source == PYTHON and turn < len(functions()) // _READ:
            return self._read(turn)
        # The library has an end: what follows is own text again.
        if source not in SOURCES:
            return self._answered(self._from_file(Path(source), turn), generator)
        opening = (*OPENINGS, *[None] * _OF_HEADS)[turn % (len(OPENINGS) + _OF_HEADS)]
        requests = [] if opening is None else self._requests(opening, generator)
        return self._answered(requests or self._heads(turn), generator)

    def _answered(self, prompts: list[Prompt], generator: torch.Generator) -> Shard:
        kind = prompts[0].kind
        prompts = sorted(prompts, key=lambda prompt: len(prompt.ids))
        ids = [prompt.ids for prompt in prompts]
        sampled = self.writer.write(ids, ANSWER_TOKENS, SAMPLINGS[kind], generator)
        # Sequences come in the order of their prompts; one that was never continued is left out.
        texts = {tuple(prompt.ids): prompt.text for prompt in prompts}
        return shard_of(kind, [texts[tuple(s.tokens[: s.start].tolist())] for s in sampled], sampled)

    def _read(self, turn: int) -> Shard:
        chosen = self._functions(turn, _READ, functions())
        prompts = [begun(self.tokenizer, function.head) for function in chosen]
        sequences = []
        for prompt, function in zip(prompts, chosen, strict=True):
            whole = begun(self.tokenizer, function.head, function.body).ids
            sequences.append((whole[: len(prompt.ids) + ANSWER_TOKENS], len(prompt.ids)))
        temperature = SAMPLINGS[CODE].temperature
        by_length = sorted(range(len(chosen)), key=lambda i: len(sequences[i][0]))
        parts = [by_length[at : at + _READ_AT_ONCE] for at in range(0, len(by_length), _READ_AT_ONCE)]
        found = [
            item for part in parts for item in self.writer.read([sequences[i] for i in part], temperature)
        ]
        return shard_of(CODE, [prompts[i].text for i in by_length], found)

    def _from_file(self, path: Path, turn: int) -> list[Prompt]:
        prompts = file_prompts(path, self.tokenizer)
        first = turn * BATCH % len(prompts)
        return [prompts[(first + i) % len(prompts)] for i in range(min(BATCH, len(prompts)))]

    def _heads(self, turn: int) -> list[Prompt]:
        documented = tuple(function for function in functions() if function.has_docstring)
        return [begun(self.tokenizer, function.head) for function in self._functions(turn, BATCH, documented)]

    def _functions(self, turn: int, count: int, among: Sequence[Function]) -> Sequence[Function]:
        """Neighbours in length: a batch is then read in one forward, and not token by token."""
        groups = max(1, len(among) // count)
        first = random.Random(self.seed).sample(range(groups), groups)[turn % groups] * count
        return among[first : first + count]

    def _requests(self, opening: Opening, generator: torch.Generator) -> list[Prompt]:
        ids = opened(self.tokenizer, opening)
        requests = self.writer.write([ids] * BATCH, REQUEST_TOKENS, REQUESTS, generator)
        prompts = []
        for request in requests:
            text = opening.text + self.tokenizer.decode(request.tokens[request.start :].tolist())
            head = _head_of(text)
            if head is not None:
                prompts.append(begun(self.tokenizer, head))
            elif len(text.split()) >= SHORTEST_REQUEST:
                prompts.append(asked(self.tokenizer, opening.kind, text.strip()))
        return prompts


def _head_of(request: str) -> str | None:
    """The head of the function that a request shows, docstring included; None if it shows none."""
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
