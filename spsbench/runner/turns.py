"""The order in which the sequences of a run are generated, and their seeds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from spsbench.base.records import Arm, Prompt, Request
from spsbench.runner.planning import Plan
from spsbench.store.timings import Round

_FILLS = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence to generate; ``wave``: see ``Sample.wave``."""

    prompt: Prompt
    sample_index: int
    arm: Arm
    order: int
    seed: int
    wave: str | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        return self.prompt.example_id, self.sample_index, self.arm.name

    @property
    def round(self) -> Round:
        """What is timed together."""
        index = None if self.wave is not None else self.sample_index
        return self.wave or self.prompt.example_id, index

    @property
    def unit(self) -> str:
        """What is run as a whole or not at all: its wave, or its prompt where there are none."""
        return self.wave or self.prompt.example_id


def interleaved(
    prompts: Sequence[Prompt], samples: int, arms: Sequence[Arm], root_seed: int
) -> Iterator[Turn]:
    """Yield every sequence of a run, the arms of a prompt next to each other in shuffled order.

    Interleaving makes a drift of the machine hit all arms alike; the shuffle keeps one arm from
    always running on what another left in the caches. With batches the arms take turns by waves of whole
    prompts, which fill the largest batch about ``_FILLS`` times; every arm then has the same waves, so that
    batches can be compared, too. Of a conversation an earlier turn always comes before a later one.
    """
    widest = max(arm.batch for arm in arms)
    size = -(-_FILLS * widest // samples)  # prompts of a wave, rounded up
    if widest == 1:
        waves = [([prompt], [index]) for prompt in prompts for index in range(samples)]
    else:  # what is less than half a wave at the end goes with the last
        starts = [at for at in range(0, len(prompts), size) if not at or 2 * (len(prompts) - at) >= size]
        ends = zip(starts, [*starts[1:], len(prompts)], strict=True)
        waves = [(list(prompts[start:end]), list(range(samples))) for start, end in ends]
    for wave, indices in waves:
        name = wave[0].example_id
        shuffled = list(arms)
        random.Random(derive_seed(root_seed, name, indices[0], "order")).shuffle(shuffled)
        wave.sort(key=lambda prompt: prompt.turn)
        for order, arm in enumerate(shuffled):
            for prompt, index in product(wave, indices):
                seed = derive_seed(root_seed, prompt.example_id, index, arm.alone.name)
                yield Turn(prompt, index, arm, order, seed, name if widest > 1 else None)


def all_turns(plan: Plan) -> Iterator[Turn]:
    return interleaved(plan.prompts, plan.samples, plan.arms, plan.config.seed)


def request_of(plan: Plan, turn: Turn, trace: bool = False) -> Request:
    return Request(
        prompt_ids=turn.prompt.ids,
        max_new_tokens=plan.max_new_tokens,
        stop=plan.stop,
        sampling=turn.arm.sampling,
        seed=turn.seed,
        fixed_length=plan.config.fixed_length,
        trace=trace,
    )


def together(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Yield groups of consecutive turns that an engine answers at once: an arm's wave, else one turn.

    Later turns of its conversations are answered when the earlier ones are there.
    """
    for _, run in groupby(turns, key=lambda turn: (turn.wave, turn.arm, turn.prompt.turn)):
        group = list(run)
        if group[0].arm.batch > 1:
            yield group
        else:
            yield from ([turn] for turn in group)


def derive_seed(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
    """Return a seed of 63 bits from what it is for alone, so that sharding and resuming change nothing."""
    text = f"{root_seed}\0{example_id}\0{sample_index}\0{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
