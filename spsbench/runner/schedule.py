"""In which order sequences are generated, and from which seeds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spsbench.records import Arm, Prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence to generate.

    Attributes:
        prompt: what is asked.
        sample_index: which of the samples of this prompt.
        arm: who answers.
        order: place among the arms of the same prompt and sample, from 0.
        seed: of every random draw in the sequence.
    """

    prompt: Prompt
    sample_index: int
    arm: Arm
    order: int
    seed: int

    @property
    def key(self) -> tuple[str, int, str]:
        """The sample's key in the store."""
        return self.prompt.example_id, self.sample_index, self.arm.name


def turns(prompts: Sequence[Prompt], samples: int, arms: Sequence[Arm], root_seed: int) -> Iterator[Turn]:
    """Every sequence of a run, the arms of a prompt next to each other in shuffled order.

    Interleaving makes a drift of the machine hit all arms alike; the shuffle keeps one arm from
    always running on what another left in the caches.
    """
    for prompt in prompts:
        for index in range(samples):
            shuffled = list(arms)
            random.Random(derive_seed(root_seed, prompt.example_id, index, "order")).shuffle(shuffled)
            for order, arm in enumerate(shuffled):
                yield Turn(
                    prompt, index, arm, order, derive_seed(root_seed, prompt.example_id, index, arm.name)
                )


def derive_seed(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
    """A seed of 63 bits from what it is for alone, so that sharding and resuming change nothing."""
    text = f"{root_seed}\0{example_id}\0{sample_index}\0{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
