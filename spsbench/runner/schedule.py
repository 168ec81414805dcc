"""In which order sequences are generated, and from which seeds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from spsbench.records import Arm, Prompt

_FILLS = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence to generate.

    Attributes:
        wave: see ``Sample.wave``.
    """

    prompt: Prompt
    sample_index: int
    arm: Arm
    order: int
    seed: int
    wave: str | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """The sample's key in the store."""
        return self.prompt.example_id, self.sample_index, self.arm.name

    @property
    def unit(self) -> str:
        """What is run whole or not at all: its wave, or its prompt where there are none."""
        return self.wave or self.prompt.example_id


def turns(prompts: Sequence[Prompt], samples: int, arms: Sequence[Arm], root_seed: int) -> Iterator[Turn]:
    """Every sequence of a run, the arms of a prompt next to each other in shuffled order.

    Interleaving makes a drift of the machine hit all arms alike; the shuffle keeps one arm from
    always running on what another left in the caches. With batches the arms take turns by waves of whole
    prompts, which fill the largest batch about ``_FILLS`` times; every arm then has the same waves, so that
    batches can be compared, too.
    """
    widest = max(arm.batch for arm in arms)
    if widest > 1:
        size = -(-_FILLS * widest // samples)
        yield from _by_waves(prompts, samples, arms, root_seed, size)
        return
    for prompt in prompts:
        for index in range(samples):
            for order, arm in enumerate(_shuffled(arms, root_seed, prompt, index)):
                yield Turn(prompt, index, arm, order, _seed(root_seed, prompt, index, arm))


def _by_waves(
    prompts: Sequence[Prompt], samples: int, arms: Sequence[Arm], root_seed: int, size: int
) -> Iterator[Turn]:
    """``turns`` by waves of so many prompts; what is less than half a wave at the end goes with the last."""
    starts = [
        start for start in range(0, len(prompts), size) if not start or 2 * (len(prompts) - start) >= size
    ]
    for start, end in zip(starts, [*starts[1:], len(prompts)], strict=True):
        wave = prompts[start:end]
        for order, arm in enumerate(_shuffled(arms, root_seed, wave[0], 0)):
            for prompt, index in product(wave, range(samples)):
                seed = _seed(root_seed, prompt, index, arm)
                yield Turn(prompt, index, arm, order, seed, wave[0].example_id)


def together(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Consecutive turns that an engine answers at once: of an arm with a batch a wave, else each alone."""
    for _, found in groupby(turns, key=lambda turn: (turn.wave, turn.arm)):
        group = list(found)
        if group[0].arm.batch > 1:
            yield group
        else:
            yield from ([turn] for turn in group)


def _shuffled(arms: Sequence[Arm], root_seed: int, prompt: Prompt, index: int) -> list[Arm]:
    shuffled = list(arms)
    random.Random(derive_seed(root_seed, prompt.example_id, index, "order")).shuffle(shuffled)
    return shuffled


def _seed(root_seed: int, prompt: Prompt, index: int, arm: Arm) -> int:
    return derive_seed(root_seed, prompt.example_id, index, arm.alone.name)


def derive_seed(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
    """A seed of 63 bits from what it is for alone, so that sharding and resuming change nothing."""
    text = f"{root_seed}\0{example_id}\0{sample_index}\0{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
