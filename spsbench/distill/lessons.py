"""Which part of a corpus is trained on and which is held out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spsbench.distill.contamination import Evaluated
from spsbench.distill.corpus import Corpus, Shard
from spsbench.distill.sampler import Sampled

HELD_OUT = 24
"""One request in so many is held out, with all that was sampled for it."""


@dataclass
class Lessons:
    """Sequences of a corpus by their use."""

    learnt: dict[str, list[Sampled]] = field(default_factory=dict)
    held_out: dict[str, list[Sampled]] = field(default_factory=dict)
    contaminated: int = 0

    @property
    def tokens(self) -> int:
        """Drawn tokens to learn from."""
        return sum(len(item.tokens) - item.start for group in self.learnt.values() for item in group)

    def vocabulary(self, size: int, always: Sequence[int], vocab_size: int) -> Tensor:
        """[size] ids of the tokens that were drawn most often, ascending."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for group in self.learnt.values():
            for item in group:
                drawn = item.tokens[item.start :].long()
                counts += torch.bincount(drawn, minlength=vocab_size)[:vocab_size]
        counts[list(always)] = counts.max() + 1
        best = counts.sort(descending=True, stable=True).indices[:size]
        return best.sort().values


def lessons_of(
    corpus: Corpus, tokens: int, decode: Callable[[Sequence[int]], str], evaluated: Evaluated
) -> Lessons:
    """Divide a corpus; what overlaps with an evaluated text is left out."""
    lessons, left_out, seen = Lessons(), Counter[bool](), 0
    for number in corpus.numbers():
        if seen >= tokens:
            break
        shard = corpus.read(number)
        seen += len(shard.log_masses)
        for prompt, sequence in _sequences(shard):
            overlaps = evaluated.overlaps(decode(sequence.tokens.tolist()))
            left_out[overlaps] += 1
            if not overlaps:
                use = lessons.held_out if is_held_out(prompt) else lessons.learnt
                use.setdefault(shard.kind, []).append(sequence)
    lessons.contaminated = left_out[True]
    return lessons


def is_held_out(prompt: str) -> bool:
    """By the request alone, so that what was sampled for it twice is together on one side."""
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4]) % HELD_OUT == 0


def _sequences(shard: Shard) -> Iterator[tuple[str, Sampled]]:
    return zip(shard.prompts, shard.sequences(), strict=True)
