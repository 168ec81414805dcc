"""The time of a loop of each cell on this machine: a few real loops, in turns, after prefixes of the
texts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from spsbench.decode.algorithms import ars, sps
from spsbench.decode.clock import Stopwatch, SystemClock, device_now
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.registry import DRAFT, drafter_kind
from spsbench.engines.local import Engine
from spsbench.errors import UnavailableError, UsageError
from spsbench.law.text_loops import Floats
from spsbench.records import Generation, Request, SamplingParams, Spec
from spsbench.replay.reading import TextReader
from spsbench.replay.texts import TargetText

Cell = TypeVar("Cell", bound=Hashable)

_LOOPS = 14
"""Of a cell in a round: few, so that the rounds are many and no cell has its own moment."""
_LEAST_TOKENS = 42
"""A sequence in a round has at least so many: ArS, whose time stands in every speedup, has a token a loop."""
COLD = 4
"""The first loops of a sequence, which find the caches full of what came before, are apart."""
LEAST_ROUNDS = 6


@dataclass(frozen=True)
class LoopTimes:
    """Times of one cell's loops.

    Attributes:
        rounds: [m] in which round each was run.
        places: [m] how many loops of its sequence came before it.
        contexts: [m] tokens before it.
        seconds: [m] what it took.
        drafting: [m] what of it was drafting.
        drafted: [m] tokens that it drafted.
    """

    rounds: Floats
    places: Floats
    contexts: Floats
    seconds: Floats
    drafting: Floats
    drafted: Floats

    def line(self, counts: Floats) -> tuple[float, float]:
        """(seconds of a loop at context 0, seconds a token of context more), by least squares, of warm ones.

        Args:
            counts: [rounds] how often each round counts.
        """
        weights = counts[self.rounds.astype(np.int64)] * (self.places >= COLD)
        total = weights.sum()
        context = float(weights @ self.contexts / total)
        mean = float(weights @ self.seconds / total)
        centred = self.contexts - context
        spread = float(weights @ centred**2)
        slope = float(weights @ (centred * self.seconds)) / spread if spread > 0 else 0.0
        slope = max(slope, 0.0)  # more to attend to is never faster: a falling line is noise
        return mean - slope * context, slope

    @property
    def count(self) -> int:
        """Of rounds."""
        return int(self.rounds.max()) + 1

    def cold(self, counts: Floats, line: tuple[float, float]) -> Floats:
        """[COLD] seconds that the first loops of a sequence take beyond a line."""
        at_zero, slope = line
        beyond = self.seconds - at_zero - slope * self.contexts
        weights = counts[self.rounds.astype(np.int64)]
        of_place = [weights * (self.places == place) for place in range(COLD)]
        return np.array([float(own @ beyond) / own.sum() if own.sum() else 0.0 for own in of_place])


def rehearse(
    engines: Mapping[Cell, Engine],
    most_tokens: Mapping[Cell, int],
    texts: Sequence[TargetText],
    sampling: SamplingParams,
    room: Callable[[Sequence[int]], int],
    budget_s: float,
    between: Callable[[Request, Generation], None] = lambda request, generation: None,
    seed: int = 0,
    least_rounds: int = LEAST_ROUNDS,
) -> dict[Cell, LoopTimes]:
    """Run some loops of every cell, in turns and in an order reshuffled each round.

    Args:
        budget_s: seconds after which no further round begins, if ``least_rounds`` are done.
    """
    shuffler, order = random.Random(seed), list(engines)
    found: dict[Cell, list[tuple[float, ...]]] = {name: [] for name in engines}
    started, number = time.perf_counter(), -1  # the first round is warm-up
    while number < least_rounds or time.perf_counter() - started < budget_s:
        text = shuffler.choice(texts)
        prompt = (*text.prompt, *text.tokens[: shuffler.randrange(len(text.tokens))])
        shuffler.shuffle(order)
        for name in order:
            asked = max(_LOOPS * most_tokens[name], _LEAST_TOKENS)
            limit = max(1, min(asked, room(prompt) - most_tokens[name]))
            request = Request(prompt, limit, (), sampling, seed=seed + number, fixed_length=True)
            generation = engines[name].generate(request)
            context = len(prompt)
            for place, loop in enumerate(generation.loops or ()):
                if number >= 0:
                    drafting = loop.draft_s or 0.0
                    found[name].append((number, place, context, loop.loop_s, drafting, loop.drafted))
                context += loop.emitted
            between(request, generation)
        number += 1
    return {name: LoopTimes(*np.array(loops).T) for name, loops in found.items()}


FLAG = "--times"
_REMEDY = "Give what `spsbench bench --json` printed for these models, with every K."
_UNION = "union"


class _Model(BaseModel):
    name: str
    parameters: int


class _Rounds(BaseModel):
    rows: list[int] = Field(min_length=1)
    seconds: list[list[float]] = Field(min_length=1)


class _Bench(BaseModel):
    """What is used of the output of ``bench --json``."""

    target: _Model
    draft: _Model
    device: str
    context: int = Field(ge=1)
    rounds: dict[str, _Rounds]


@dataclass(frozen=True)
class Calibration:
    """Seconds of forwards of a target and a draft model.

    Attributes:
        seconds: by role and by how many tokens were scored at once, [rounds]; of one number of rounds.
    """

    path: Path
    told: str
    parameters: Mapping[str, int]
    context: int
    seconds: Mapping[str, Mapping[int, Floats]]

    def ars(self) -> LoopTimes:
        """Of ArS: a forward of one token."""
        step = self._forward("target", 1)
        return self._loops(step, np.zeros_like(step), 0)

    def loops(self, drafter: Spec, k: int) -> LoopTimes:
        """Of SpS: a forward of K+1 tokens, and K of the draft model where one drafts."""
        self.require_covered(drafter)
        drafting = drafter_kind(drafter.name).forwards(k) * self._forward("draft", 1)
        return self._loops(self._forward("target", k + 1), drafting, k)

    def require_covered(self, drafter: Spec) -> None:
        """Refuse a drafter of whose work the file says nothing."""
        if drafter.name == _UNION or drafter_kind(drafter.name).needs_of(drafter) - {DRAFT}:
            raise UsageError(
                f"{self.path} has no times of {drafter}.",
                flag=FLAG,
                remedy="Leave it out, or replay on that machine without --times.",
            )

    def require_models(self, parameters: Mapping[str, int]) -> None:
        """Refuse times of other models."""
        for role, here in parameters.items():
            if here != self.parameters[role]:
                raise UsageError(
                    f"{self.path} has times of a {role} of {self.parameters[role]:,} weights, not {here:,}.",
                    flag=FLAG,
                    remedy=_REMEDY,
                )

    def _forward(self, role: str, rows: int) -> Floats:
        found = self.seconds[role].get(rows)
        if found is None:
            have = ", ".join(map(str, sorted(self.seconds[role])))
            raise UsageError(
                f"{self.path} has times of the {role} for {have} tokens at once, and not for {rows}.",
                flag=FLAG,
                remedy=_REMEDY,
            )
        return found

    def _loops(self, verifying: Floats, drafting: Floats, drafted: int) -> LoopTimes:
        """One loop a round, none of them cold."""
        same, rounds = np.ones(len(verifying)), np.arange(len(verifying), dtype=np.float64)
        seconds = verifying + drafting
        return LoopTimes(rounds, COLD * same, self.context * same, seconds, drafting, drafted * same)


def read_times(path: Path) -> Calibration:
    """Read what ``bench --json`` printed."""
    try:
        found = _Bench.model_validate_json(path.read_bytes())
        seconds = {role: _by_rows(found.rounds[role]) for role in ("target", "draft")}
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be read: {error.strerror}.", flag=FLAG, remedy=_REMEDY
        ) from error
    except (ValidationError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} holds no times: {reason}.", flag=FLAG, remedy=_REMEDY) from error
    rounds = min(len(times) for own in seconds.values() for times in own.values())
    return Calibration(
        path,
        f"{found.target.name} and {found.draft.name} on {found.device}",
        {"target": found.target.parameters, "draft": found.draft.parameters},
        found.context,
        {role: {n: times[:rounds] for n, times in own.items()} for role, own in seconds.items()},
    )


def _by_rows(rounds: _Rounds) -> dict[int, Floats]:
    """[rounds] seconds by rows."""
    seconds = np.array(rounds.seconds, dtype=np.float64)
    if seconds.ndim != 2 or seconds.shape[1] != len(rounds.rows):
        raise ValueError("a round has not one time for each number of rows")
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError("a time is not above 0")
    return dict(zip(rounds.rows, seconds.T, strict=True))


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
