"""The parts of loops, timed one by one: verifying by the number of rows, drafting by the drafter."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base import MODIFIED_REJECTION, Floats, Spec
from spsbench.decode import (
    Draft,
    Drafter,
    Stopwatch,
    SystemClock,
    TargetVerifier,
    Tokens,
    UniformStream,
    ars,
    device_now,
    sps,
)
from spsbench.drafters import build_rule
from spsbench.parts.whatif.messages.replay import PARTS_TIMED_HERE
from spsbench.parts.whatif.replay.cells import Cell, Sought
from spsbench.parts.whatif.replay.reading import Replayed, TextReader
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.times import LoopTimes

_REPEATS = 3


Given = tuple[str, int]
"""A loop that is given so many tokens, judged by a rule."""


class Part(NamedTuple):
    """A drafter whose rows are its own, with the draft model's name where several are compared."""

    draft: str
    drafter: Spec


@dataclass(frozen=True)
class Round:
    """Times after one prefix of a text, medians of a few.

    Attributes:
        verifying: [K+1] seconds of a loop that is given 0 to K tokens, and drafts none itself.
        drafting: of every part the seconds of a draft of the smallest and of the largest K.
        judged: seconds of loops under other rules.
        rolling: seconds of loops, those of ``verifying`` too, in which running states were put back.
    """

    context: int
    verifying: Sequence[float]
    drafting: Mapping[Part, Sequence[float]]
    judged: Mapping[Given, float] = field(default_factory=dict)
    rolling: Mapping[Given, float] = field(default_factory=dict)


def given_by(sought: Iterable[Sought], rules: Sequence[str], ks: Sequence[int]) -> list[Given]:
    """Return what must be timed of them beside modified rejection of 0 to K tokens.

    A tree is timed as a chain of as many tokens: both are one forward of as many rows.
    """
    wanted: dict[Given, None] = {}
    for cell in (cell for each in sought for cell in each.cells(rules, ks)):
        if cell.tree is not None:
            wanted[cell.rule, cell.nodes] = None
        elif cell.rule != MODIFIED_REJECTION:
            wanted |= dict.fromkeys((cell.rule, count) for count in range(1, cell.k + 1))
    return [*wanted]


@dataclass(frozen=True)
class StepTimes:
    """Rounds, and a loop's time from its parts: verifying by the number of rows, drafting by the drafter.

    Attributes:
        ks: the smallest and the largest.
        readers: by the draft model's name.
    """

    rounds: Sequence[Round]
    ks: tuple[int, int]
    readers: Mapping[str, TextReader] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return PARTS_TIMED_HERE

    def ars(self) -> LoopTimes:
        return self._loops(np.array([[1.0]]), np.zeros(len(self.rounds)))

    def loops(self, cell: Cell, replay: Replayed) -> LoopTimes:
        parts = [Part(cell.draft, spec) for spec in self.readers[cell.draft].parts[cell.drafter]]
        if cell.tree is not None:
            return self.of_tree(parts[0], cell.nodes, cell.rule)
        return self.of_chain(parts, replay.shares(cell.k, cell.rule), cell.k, cell.rule)

    def of_chain(
        self, parts: Sequence[Part], shares: Floats, k: int, rule: str = MODIFIED_REJECTION
    ) -> LoopTimes:
        """Of SpS, whose parts draft so many tokens in these shares [parts, K+1] of loops."""
        drafting = np.zeros(len(self.rounds))
        for part, share in zip(parts, shares.sum(1), strict=False):
            ends = np.array([each.drafting[part] for each in self.rounds])
            least, most = self.ks
            along = (k - least) / (most - least) if most > least else 0.0
            drafting += share * (ends[:, 0] + along * (ends[:, 1] - ends[:, 0]))
        return self._loops(shares, drafting, rule)

    def of_tree(self, part: Part, nodes: int, rule: str) -> LoopTimes:
        """Of a tree, whose part was timed with its own rows, whatever K."""
        drafting = np.array([each.drafting[part][0] for each in self.rounds])
        verifying = np.array([each.judged[rule, nodes] for each in self.rounds])
        return LoopTimes.one_a_round(self._context, verifying, drafting, nodes)

    @property
    def _context(self) -> float:
        return float(np.mean([each.context for each in self.rounds]))

    def _loops(self, shares: Floats, drafting: Floats, rule: str = MODIFIED_REJECTION) -> LoopTimes:
        """After prefixes drawn evenly from the tokens of all texts, whose mean context is then the texts'.

        A few rounds are no ground for a slope in the context.
        """
        drafts = shares.sum(0)
        by_count = [
            [each.judged.get((rule, count), each.verifying[count]) for count in range(len(drafts))]
            for each in self.rounds
        ]
        rolling = [
            [each.rolling.get((rule, count), 0.0) for count in range(len(drafts))] for each in self.rounds
        ]
        drafted = float(drafts @ np.arange(len(drafts)))
        verifying = np.array(by_count) @ drafts
        return LoopTimes.one_a_round(self._context, verifying, drafting, drafted, np.array(rolling) @ drafts)


class _CertainDrafter:
    """A drafter that is certain of tokens which cost it nothing."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def begin(self, prompt: Sequence[int]) -> None:
        """Do nothing: nothing is kept."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Return the given draft."""
        return Draft(self._tokens, None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Do nothing: nothing is kept."""


@torch.inference_mode()
def time_round(
    readers: Mapping[str, TextReader],
    texts: Sequence[TargetText],
    ks: tuple[int, int],
    seed: int,
    on_part: Callable[[], None] = lambda: None,
    judged: Sequence[Given] = (),
) -> Round:
    """Time each part once more, in shuffled order, after a prefix of some text."""
    shuffler = random.Random(seed)
    plain = [(MODIFIED_REJECTION, count) for count in range(ks[1] + 1)]
    most = max(ks[1], *(count for _, count in judged), 0)
    models = [model for reader in readers.values() for model in (reader.pair.target, reader.pair.draft)]
    ahead = most + 2 * _REPEATS
    roomy = [text for text in texts if all(model.room_behind(text.prompt) > ahead for model in models)]
    texts = roomy or texts
    text = shuffler.choices(texts, [len(text.tokens) for text in texts])[0]
    last = max(len(text.tokens) - ahead, 0)
    place = max(len(text.prompt) + shuffler.randint(0, last), 2)
    ids = [*text.prompt, *text.tokens]
    ids += ids[-1:] * (place + ahead - len(ids))
    verifying, rolling = _verifying(next(iter(readers.values())), ids, place, [*plain, *judged], shuffler)
    on_part()
    parts = [(Part(name, spec), reader) for name, reader in readers.items() for spec in reader.drafters]
    shuffler.shuffle(parts)
    drafting = {}
    for part, reader in parts:
        drafting[part] = _drafting(reader, reader.drafters[part.drafter], ids, place, ks)
        on_part()
    others = {each: verifying[each] for each in judged}
    return Round(place, [verifying[each] for each in plain], drafting, others, rolling)


def _verifying(
    reader: TextReader, ids: Sequence[int], place: int, all_given: Sequence[Given], shuffler: random.Random
) -> tuple[dict[Given, float], dict[Given, float]]:
    """Time the target's verification in real loops, whose tests of the given tokens may fail.

    Returns:
        Seconds of loops, and what of them was putting running states back; see ``Round``.
    """
    target = reader.target
    device = reader.pair.device
    sampling = reader.sampling
    prefix = ids[:place]
    seconds: dict[Given, list[float]] = {each: [] for each in all_given}
    rolling: dict[Given, list[float]] = {each: [] for each in all_given}
    accept = {rule: build_rule(Spec(rule)).accept for rule, _ in all_given}
    uniforms = UniformStream(shuffler.randrange(2**31), device)
    watch = Stopwatch(SystemClock(), states=target.rolled_back_by != "length")
    pending = target.begin(prefix)
    order = [*all_given] * (_REPEATS + 1)
    shuffler.shuffle(order)
    for rule, given in order:
        tokens = torch.tensor(ids[place : place + given], dtype=torch.int64, device=device)
        verifier = TargetVerifier(target, sampling, prefix, device, accept[rule])
        read = Tokens(prefix, pending)
        loops = (
            sps(verifier, _CertainDrafter(tokens), read, given, uniforms, watch)
            if given
            else ars(verifier, read, uniforms, watch)
        )
        watch.start()
        began_s = device_now(device)
        next(loops)
        seconds[rule, given].append(device_now(device) - began_s)
        rolling[rule, given].append(watch.take().get("rollback", 0.0))
        target.rollback(place - 1)
    medians = [{each: float(np.median(samples)) for each, samples in of.items()} for of in (seconds, rolling)]
    return medians[0], medians[1]


def _drafting(
    reader: TextReader, drafter: Drafter, ids: Sequence[int], place: int, ks: tuple[int, int]
) -> list[float]:
    """Time drafts, see ``Round``; the target runs between two drafts, as in a loop, and none is accepted."""
    target = reader.target
    device = reader.pair.device
    states = reader.states
    u = torch.full((ks[1],), 0.5, device=device)
    target.begin(ids[: place + 2 * _REPEATS])
    if states is not None:
        states.length = place - 1
    drafter.begin(ids[:place])
    seconds: list[list[float]] = [[], []]
    for turn in range(2 * _REPEATS):
        tokens, k = ids[: place + turn], ks[turn % 2]
        if states is not None:
            states.length = len(tokens) - 1
        length = target.length
        target.score(torch.tensor(ids[-1:], device=device), last=1)
        target.rollback(length)
        began_s = device_now(device)
        drafter.draft(tokens, k, u[:k])
        seconds[turn % 2].append(device_now(device) - began_s)
        drafter.observe(ids[: place + turn + 1], 0)
    return [float(np.median(samples)) for samples in seconds]
