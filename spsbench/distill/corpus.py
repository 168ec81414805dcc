"""A target's own text on disk, with the hidden states that it was written from.

Shard by shard: each depends on the seed and its own number alone, is written whole or not at all, and is
skipped where it is there already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.distill.sampler import Sampled

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
        """Each of them, without copying."""
        sizes = self.lengths.tolist()
        tokens = torch.split(self.tokens, sizes)
        features = torch.split(self.features, [size - 1 for size in sizes])
        starts = self.starts.tolist()
        masses = torch.split(self.log_masses, (self.lengths - self.starts).tolist())
        for parts in zip(tokens, starts, features, masses, strict=True):
            yield Sampled(*parts)


def shard_of(kind: str, prompts: Sequence[str], sequences: Sequence[Sampled]) -> Shard:
    """A shard of sampled sequences; prompts as text in their order."""
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
        """Of a shard."""
        return self.folder / f"{_PREFIX}{number:05}.safetensors"

    def require(self, number: int, make: Callable[[], Shard]) -> None:
        """Make a shard unless it is there."""
        if not self.path(number).exists():
            self.write(number, make())

    def drawn(self, number: int) -> int:
        """Continued tokens of a shard, from its header alone."""
        from safetensors import safe_open

        with safe_open(self.path(number), framework="pt") as file:
            count: int = file.get_slice("log_masses").get_shape()[0]
        return count

    def write(self, number: int, shard: Shard) -> None:
        """Write a shard; a reader finds it whole or not at all."""
        from safetensors.torch import save_file

        tensors = {name: getattr(shard, name) for name in _TENSORS}
        told = {"kind": shard.kind, "prompts": json.dumps(shard.prompts)}
        unfinished = self.path(number).with_suffix(".part")
        save_file(tensors, unfinished, told)
        unfinished.replace(self.path(number))

    def read(self, number: int) -> Shard:
        """A shard, its tensors mapped from the file."""
        from safetensors import safe_open

        with safe_open(self.path(number), framework="pt") as file:
            told: dict[str, Any] = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return Shard(kind=told["kind"], prompts=json.loads(told["prompts"]), **tensors)
