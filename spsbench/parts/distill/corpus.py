"""A target's own text on disk with the hidden states that it was written from, and what of it is learnt.

Shard by shard: each depends on the seed and its own number alone, is written whole or not at all, and is
skipped where it is there already.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.base import SpsbenchError
from spsbench.parts.distill.sampler import Sampled
from spsbench.tasks import load_task

_PREFIX = "text-"
_TENSORS = ("tokens", "lengths", "starts", "features", "log_masses")


@dataclass(frozen=True, slots=True)
class Shard:
    """Sequences one after the other.

    Attributes:
        kind: of the text, ``chat`` or ``code``.
        prompts: [s] the requests as text.
        tokens: [N] ids of all sequences.
        lengths: [s] of each, in tokens.
        starts: [s] where each one's continuation begins.
        features: [N - s, hidden] of all tokens but each sequence's last.
        log_masses: [M] of the M continued tokens, see ``Sampled``.
    """

    kind: str
    prompts: list[str]
    tokens: Tensor
    lengths: Tensor
    starts: Tensor
    features: Tensor
    log_masses: Tensor

    def sequences(self) -> Iterator[Sampled]:
        """Not copied."""
        sizes = self.lengths.tolist()
        tokens = torch.split(self.tokens, sizes)
        features = torch.split(self.features, [size - 1 for size in sizes])
        starts = self.starts.tolist()
        masses = torch.split(self.log_masses, (self.lengths - self.starts).tolist())
        for parts in zip(tokens, starts, features, masses, strict=True):
            yield Sampled(*parts)


def shard_of(kind: str, prompts: Sequence[str], sequences: Sequence[Sampled]) -> Shard:
    """Make a shard of sampled sequences; prompts as text in their order."""
    return Shard(
        kind,
        list(prompts),
        torch.cat([sequence.tokens for sequence in sequences]).int(),
        torch.tensor([len(sequence.tokens) for sequence in sequences], dtype=torch.int32),
        torch.tensor([sequence.start for sequence in sequences], dtype=torch.int32),
        torch.cat([sequence.features for sequence in sequences]),
        torch.cat([sequence.log_masses for sequence in sequences]),
    )


class Corpus:
    """Shards in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def numbers(self) -> list[int]:
        """Of the shards that are there, in order."""
        return sorted(
            int(path.stem.removeprefix(_PREFIX)) for path in self.folder.glob(f"{_PREFIX}*.safetensors")
        )

    def path(self, number: int) -> Path:
        return self.folder / f"{_PREFIX}{number:05}.safetensors"

    def require(self, number: int, make: Callable[[], Shard]) -> None:
        """Make a shard unless it is there."""
        if not self.path(number).exists():
            self.write(number, make())

    def drawn(self, number: int) -> int:
        """How many tokens of a shard were drawn, read from its header."""
        from safetensors import safe_open

        with safe_open(self.path(number), framework="pt") as file:
            count: int = file.get_slice("log_masses").get_shape()[0]
        return count

    def write(self, number: int, shard: Shard) -> None:
        """Write a shard; a reader finds it whole or not at all."""
        from safetensors.torch import save_file

        tensors = {name: getattr(shard, name) for name in _TENSORS}
        metadata = {"kind": shard.kind, "prompts": json.dumps(shard.prompts)}
        unfinished = self.path(number).with_suffix(".part")
        save_file(tensors, unfinished, metadata)
        unfinished.replace(self.path(number))

    def read(self, number: int) -> Shard:
        """A shard, its tensors mapped from the file."""
        from safetensors import safe_open

        with safe_open(self.path(number), framework="pt") as file:
            metadata: dict[str, Any] = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return Shard(kind=metadata["kind"], prompts=json.loads(metadata["prompts"]), **tensors)


WORDS = 13

_WORD = re.compile(r"\w+")


class Evaluated:
    """Every 13 words in a row of the evaluated texts: the measure of Brown et al. 2020, appendix C."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._word_runs = {run for text in texts for run in _word_runs(text)}

    def overlaps(self, text: str) -> bool:
        """Whether a text shares 13 words in a row with an evaluated one."""
        return any(run in self._word_runs for run in _word_runs(text))


def _word_runs(text: str) -> Iterator[int]:
    words = _WORD.findall(text.lower())
    for at in range(len(words) - WORDS + 1):
        yield hash(tuple(words[at : at + WORDS]))


TASKS = ("humaneval", "docsum")
"""Tasks of real text that need no hub."""


def evaluated_texts(more: Iterable[str] = ()) -> Iterator[str]:
    """Problems and documents with their references."""
    for name in TASKS:
        try:
            yield from _problem_texts(name)
        except SpsbenchError:  # its data is not here: then nothing was learnt from it on this machine either
            continue
    for name in more:
        yield from _problem_texts(name)


def _problem_texts(name: str) -> Iterator[str]:
    task = load_task(name)
    for example in task.load("official", None, 0).examples:
        fields = (value for value in example.fields.values() if isinstance(value, str))
        yield "\n".join((*fields, example.reference))


HELD_OUT = 24
"""One request in so many is held out, with all that was sampled for it."""


@dataclass
class Lessons:
    """Sequences of a corpus by their use."""

    learnt: dict[str, list[Sampled]] = field(default_factory=dict)
    held_out: dict[str, list[Sampled]] = field(default_factory=dict)
    contaminated: int = 0

    def rarest(self, vocab_size: int) -> int:
        """The token that was written least often, the last of several."""
        counts = self._token_counts(vocab_size, whole=True)
        return int((counts == counts.min()).nonzero()[-1])

    def _token_counts(self, vocab_size: int, *, whole: bool = False) -> Tensor:
        """[vocab_size] how often each token was drawn, or written in prompts or drawn."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for group in self.learnt.values():
            for item in group:
                tokens = item.tokens[0 if whole else item.start :].long()
                counts += torch.bincount(tokens, minlength=vocab_size)[:vocab_size]
        return counts

    def vocabulary(self, size: int, always: Sequence[int], vocab_size: int) -> Tensor:
        """[size] ids of the tokens that were drawn most often, ascending."""
        counts = self._token_counts(vocab_size)
        counts[list(always)] = counts.max() + 1
        best = counts.sort(descending=True, stable=True).indices[:size]
        return best.sort().values


def lessons_of(
    corpus: Corpus, tokens: int, decode: Callable[[Sequence[int]], str], evaluated: Evaluated
) -> Lessons:
    """Divide a corpus; what overlaps with an evaluated text is left out."""
    lessons, seen = Lessons(), 0
    for number in corpus.numbers():
        if seen >= tokens:
            break
        shard = corpus.read(number)
        seen += len(shard.log_masses)
        for prompt, sequence in zip(shard.prompts, shard.sequences(), strict=True):
            if evaluated.overlaps(decode(sequence.tokens.tolist())):
                lessons.contaminated += 1
                continue
            use = lessons.held_out if is_held_out(prompt) else lessons.learnt
            use.setdefault(shard.kind, []).append(sequence)
    return lessons


def is_held_out(prompt: str) -> bool:
    """By the request alone, so that all its samples are on one side."""
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4]) % HELD_OUT == 0
