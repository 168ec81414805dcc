"""The time of a loop from its parts: verifying by the number of rows, drafting by the drafter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.decode.algorithms import ars, sps
from spsbench.decode.clock import Stopwatch, SystemClock, device_now
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.decode.sampling import UniformStream
from spsbench.law.text_loops import Floats
from spsbench.records import Spec
from spsbench.replay.rehearsal import COLD, LoopTimes
from spsbench.replay.replaying import TextReader
from spsbench.replay.texts import TargetText

LEAST_ROUNDS = 6
_REPEATS = 3


class Part(NamedTuple):
    """A drafter whose rows are its own, with the draft model's name where several are compared."""

    draft: str
    drafter: Spec


class Round(NamedTuple):
    """Times after one prefix of a text, medians of a few.

    Attributes:
        verifying: [K+1] seconds of a loop that is given 0 to K tokens, and drafts none itself.
        drafting: of every part the seconds of a draft of the smallest and of the largest K.
    """

    context: int
    verifying: Sequence[float]
    drafting: Mapping[Part, Sequence[float]]


@dataclass(frozen=True)
class StepTimes:
    """Rounds, and what they make of a loop; see ``Round``."""

    rounds: Sequence[Round]
    ks: tuple[int, int]

    def ars(self) -> LoopTimes:
        """Of ArS."""
        return self._loops(np.array([[1.0]]), np.zeros(len(self.rounds)))

    def loops(self, parts: Sequence[Part], shares: Floats, k: int) -> LoopTimes:
        """Of SpS."""
        drafting = np.zeros(len(self.rounds))
        for part, share in zip(parts, shares.sum(1), strict=False):
            ends = np.array([each.drafting[part] for each in self.rounds])
            least, most = self.ks
            along = (k - least) / (most - least) if most > least else 0.0
            drafting += share * (ends[:, 0] + along * (ends[:, 1] - ends[:, 0]))
        return self._loops(shares, drafting)

    def _loops(self, shares: Floats, drafting: Floats) -> LoopTimes:
        """A loop a round, none of them cold.

        Prefixes are drawn evenly from the tokens of all texts, so that their mean is that of the texts: a few
        rounds are no ground for a slope in the context.
        """
        drafts = shares.sum(0)
        verifying = np.array([each.verifying[: len(drafts)] for each in self.rounds]) @ drafts
        same = np.ones(len(self.rounds))
        contexts = same * np.mean([each.context for each in self.rounds])
        drafted = same * (drafts @ np.arange(len(drafts)))
        return LoopTimes(np.cumsum(same) - 1, COLD * same, contexts, verifying + drafting, drafting, drafted)


class _Given:
    """A drafter that is certain of tokens which cost it nothing."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing is kept."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """What was given."""
        return Draft(self._tokens, None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Nothing is kept."""


@torch.inference_mode()
def time_round(
    readers: Mapping[str, TextReader],
    texts: Sequence[TargetText],
    ks: tuple[int, int],
    seed: int,
    told: Callable[[], None] = lambda: None,
) -> Round:
    """Time each part once more, in shuffled order, after a prefix of some text."""
    shuffler, (_, most) = random.Random(seed), ks
    models = [model for reader in readers.values() for model in (reader.pair.target, reader.pair.draft)]
    ahead = most + 2 * _REPEATS
    roomy = [text for text in texts if all(model.room_behind(text.prompt) > ahead for model in models)]
    texts = roomy or texts
    text = shuffler.choices(texts, [len(text.tokens) for text in texts])[0]
    last = max(len(text.tokens) - ahead, 0)
    place = max(len(text.prompt) + shuffler.randint(0, last), 2)
    ids = [*text.prompt, *text.tokens]
    ids += ids[-1:] * (place + ahead - len(ids))
    verifying = _verifying(next(iter(readers.values())), ids, place, most, shuffler)
    told()
    parts = [(Part(name, spec), reader) for name, reader in readers.items() for spec in reader.drafters]
    shuffler.shuffle(parts)
    drafting = {}
    for part, reader in parts:
        drafting[part] = _drafting(reader, reader.drafters[part.drafter], ids, place, ks)
        told()
    return Round(place, verifying, drafting)


def _verifying(
    reader: TextReader, ids: Sequence[int], place: int, most: int, shuffler: random.Random
) -> list[float]:
    """See ``Round``; the loops are the real ones, whose tests of the given tokens may fail."""
    target, device, sampling = reader.target, reader.pair.device, reader.sampling
    prefix = ids[:place]
    seconds: list[list[float]] = [[] for _ in range(most + 1)]
    uniforms, watch = UniformStream(shuffler.randrange(2**31), device), Stopwatch(SystemClock())
    pending, order = target.begin(prefix), [*range(most + 1)] * (_REPEATS + 1)
    shuffler.shuffle(order)
    for given in order:
        tokens = torch.tensor(ids[place : place + given], dtype=torch.int64, device=device)
        loops = (
            sps(target, _Given(tokens), prefix, given, sampling, uniforms, watch)
            if given
            else ars(target, pending, sampling, uniforms, watch)
        )
        began_s = device_now(device)
        next(loops)
        seconds[given].append(device_now(device) - began_s)
        target.rollback(place - 1)
    return [float(np.median(own)) for own in seconds]


def _drafting(
    reader: TextReader, drafter: Drafter, ids: Sequence[int], place: int, ks: tuple[int, int]
) -> list[float]:
    """See ``Round``; the target runs between two drafts, as in a loop, and none of them is accepted."""
    target, device, states = reader.target, reader.pair.device, reader.states
    u = torch.full((ks[1],), 0.5, device=device)
    target.begin(ids[: place + 2 * _REPEATS])
    if states is not None:
        states.length = place - 1
    drafter.begin(ids[:place])
    seconds: list[list[float]] = [[], []]
    for turn in range(2 * _REPEATS):
        tokens = ids[: place + turn]
        if states is not None:
            states.length = len(tokens) - 1
        length = target.length
        target.score(torch.tensor(ids[-1:], device=device), last=1)
        target.rollback(length)
        began_s = device_now(device)
        drafter.draft(tokens, ks[turn % 2], u)
        seconds[turn % 2].append(device_now(device) - began_s)
        drafter.observe(ids[: place + turn + 1], 0)
    return [float(np.median(own)) for own in seconds]
