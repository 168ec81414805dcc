"""The time of a loop here or elsewhere: of loops that were run, of its parts, or of forwards alone."""

from __future__ import annotations

import codecs
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from spsbench.base import (
    MODIFIED_REJECTION,
    Bools,
    Floats,
    Generation,
    Request,
    SamplingParams,
    Spec,
    UnavailableError,
    UsageError,
    first_line,
    read_file,
)
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
from spsbench.drafters import DRAFT, build_rule, drafter_kind
from spsbench.engines import Engine
from spsbench.parts.whatif.bench.turns import budgeted_rounds
from spsbench.parts.whatif.replay.reading import TextReader
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.trees import StaticTree
from spsbench.stats import RESAMPLES, SEED

Cell = TypeVar("Cell", bound=Hashable)

_LOOPS = 14
"""Of a cell in a round: few, so that the rounds are many and no cell has its own moment."""
_LEAST_TOKENS = 42
"""A sequence in a round has at least so many: ArS, whose time stands in every speedup, has a token a loop."""
COLD = 4
"""The first loops of a sequence, which find the caches full of what came before, are apart."""
LEAST_ROUNDS = 6

PROMPTS, ROUNDS = 1, 2
"""Streams of resampling, which do not depend on each other."""


def resampled(size: int, stream: int) -> Floats:
    """[1 + RESAMPLES, size] how often each of ``size`` items counts: once, then drawn with replacement."""
    drawn = np.random.default_rng([SEED, stream]).integers(0, size, (RESAMPLES, size))
    counts = np.zeros((RESAMPLES, size))
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    return np.concatenate([np.ones((1, size)), counts])


@dataclass(frozen=True)
class LoopCosts:
    """Seconds of loops by how many tokens they draft [D], as measured and in resamples of the rounds.

    Attributes:
        at_zero, slope: [1 + RESAMPLES, D] of the line in the context's length.
        cold: [1 + RESAMPLES, COLD, D] what the first loops of a sequence take beyond it.
    """

    at_zero: Floats
    slope: Floats
    cold: Floats

    def at(self, contexts: Floats) -> Floats:
        """[n, D] seconds, as measured, of loops after contexts [n] of so many tokens."""
        seconds: Floats = self.at_zero[0] + contexts[:, None] * self.slope[0]
        return seconds

    def beyond(self, times: LoopTimes) -> Floats:
        """[1 + RESAMPLES] seconds that a policy's loop takes beyond one of a fixed K that drafts as many."""
        drafted = times.drafted.astype(np.int64)
        counts = resampled(times.count, ROUNDS)
        weights = counts[:, times.rounds.astype(np.int64)] * (times.places >= COLD)
        expected = self.at_zero[:, drafted] + self.slope[:, drafted] * times.contexts
        seconds: Floats = (weights * (times.seconds - expected)).sum(1) / weights.sum(1)
        return seconds


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
        rolling: [m] what of it was putting running states back; a number where it is the same of all.
    """

    rounds: Floats
    places: Floats
    contexts: Floats
    seconds: Floats
    drafting: Floats
    drafted: Floats
    rolling: Floats | float = 0.0

    @classmethod
    def one_a_round(
        cls,
        context: float,
        verifying: Floats,
        drafting: Floats,
        drafted: float,
        rolling: Floats | float = 0.0,
    ) -> LoopTimes:
        """Return the times of one loop a round, none of them cold; ``verifying`` has ``rolling`` in it."""
        same = np.ones(len(verifying))
        rounds = np.arange(len(verifying), dtype=np.float64)
        seconds = verifying + drafting
        return cls(rounds, COLD * same, context * same, seconds, drafting, drafted * same, rolling)

    @property
    def states_kept(self) -> LoopTimes:
        """The same loops of an engine that takes a state which it kept, and reads no token again."""
        return replace(self, seconds=self.seconds - self.rolling, rolling=0.0)

    @property
    def count(self) -> int:
        return int(self.rounds.max()) + 1

    @cached_property
    def costs(self) -> LoopCosts:
        """The costs of a loop according to these times, with D = 1."""
        return self.fitted(resampled(self.count, ROUNDS))

    def fitted(self, counts: Floats) -> LoopCosts:
        """Fit a line in the context to the warm loops by least squares, and the extra time of cold ones.

        Args:
            counts: [m, rounds] how often each round counts.
        """
        rounds = self.rounds.astype(np.int64)
        centre = float(self.contexts.mean())
        x, y = self.contexts - centre, self.seconds

        def sums(of: Bools, values: Floats) -> Floats:
            return np.asarray(counts @ np.bincount(rounds, of * values, counts.shape[1]))

        warm = self.places >= COLD
        total = sums(warm, np.ones_like(x))
        mean_x, mean_y = sums(warm, x) / total, sums(warm, y) / total
        spread = sums(warm, x * x) / total - mean_x**2
        level = spread < 1e-6  # one context alone, in tokens
        slope = (sums(warm, x * y) / total - mean_x * mean_y) / np.where(level, 1.0, spread)
        # More to attend to is never faster, and no loop takes less than nothing: such lines are noise.
        steepest = mean_y / np.maximum(mean_x + centre, 1.0)
        slope = np.where(level, 0.0, np.clip(slope, 0.0, steepest))
        at_zero = mean_y - slope * (mean_x + centre)
        cold = np.zeros((len(counts), COLD))
        for place in range(COLD):
            here = self.places == place
            count = sums(here, np.ones_like(x))
            beyond = sums(here, y) - at_zero * count - slope * sums(here, self.contexts)
            cold[:, place] = beyond / np.maximum(count, 1.0)
        return LoopCosts(at_zero[:, None], slope[:, None], cold[:, :, None])


def loop_costs(times: Sequence[LoopTimes]) -> LoopCosts:
    """Return the costs of ArS and of fixed K from 1 on, in the same rounds.

    They are of loops that draft 0 to K tokens.
    """
    costs = [(time.costs.at_zero, time.costs.slope, time.costs.cold) for time in times]
    return LoopCosts(*(np.concatenate(parts, axis=-1) for parts in zip(*costs, strict=True)))


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
    """Time loops of every cell after prefixes of the texts, in turns, reshuffled each round.

    Args:
        budget_s: seconds after which no further round begins, if ``least_rounds`` are done.
    """
    shuffler = random.Random(seed)
    order = list(engines)
    loops_of: dict[Cell, list[tuple[float, ...]]] = {name: [] for name in engines}
    for number in budgeted_rounds(budget_s, least_rounds, math.inf):
        text = shuffler.choice(texts)
        prompt = (*text.prompt, *text.tokens[: shuffler.randrange(len(text.tokens))])
        shuffler.shuffle(order)
        for name in order:
            most_new = max(_LOOPS * most_tokens[name], _LEAST_TOKENS)
            limit = max(1, min(most_new, room(prompt) - most_tokens[name]))
            request = Request(prompt, limit, (), sampling, seed=seed + number, fixed_length=True)
            generation = engines[name].generate(request)
            context = len(prompt)
            for place, loop in enumerate(generation.loops or ()):
                if number >= 0:
                    drafting = loop.draft_s or 0.0
                    rolling = loop.rollback_s or 0.0
                    loops_of[name].append(
                        (number, place, context, loop.loop_s, drafting, loop.drafted, rolling)
                    )
                context += loop.emitted
            between(request, generation)
    return {name: LoopTimes(*np.array(loops).T) for name, loops in loops_of.items()}


_FLAG = "--times"
_REMEDY = "Give what `spsbench bench --json` printed for these models, with every K."


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
    """Seconds of forwards of a target and a draft model on another machine, as ``bench`` timed them.

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
        return LoopTimes.one_a_round(self.context, step, np.zeros_like(step), 0)

    def loops(self, drafter: Spec, k: int, tree: StaticTree | None = None) -> LoopTimes:
        """Return the times of SpS: the target's forward of K+1 tokens, and the draft's forwards.

        Of a tree: a forward of its nodes and one token, and the draft's of the nodes of each depth.
        """
        self.require_covered(drafter)
        verifying = self._forward("target", 1 + (k if tree is None else tree.shape.nodes))
        if tree is None:
            drafting = drafter_kind(drafter.name).forwards(k) * self._forward("draft", 1)
            return LoopTimes.one_a_round(self.context, verifying, drafting, k)
        drafting = np.sum([self._forward("draft", rows) for rows in tree.rows], axis=0)
        return LoopTimes.one_a_round(self.context, verifying, drafting, tree.shape.nodes)

    def require_covered(self, drafter: Spec) -> None:
        """Refuse a drafter whose work the file does not cover."""
        if drafter.name == "union" or drafter_kind(drafter.name).needs_of(drafter) - {DRAFT}:
            raise UsageError(
                f"{self.path} has no times of {drafter}.",
                flag=_FLAG,
                remedy="Leave it out, or replay on that machine without --times.",
            )

    def require_models(self, parameters: Mapping[str, int]) -> None:
        """Refuse times of other models."""
        for role, here in parameters.items():
            if here != self.parameters[role]:
                raise UsageError(
                    f"{self.path} has times of a {role} of {self.parameters[role]:,} weights, not {here:,}.",
                    flag=_FLAG,
                    remedy=_REMEDY,
                )

    def _forward(self, role: str, rows: int) -> Floats:
        seconds = self.seconds[role].get(rows)
        if seconds is None:
            have = ", ".join(map(str, sorted(self.seconds[role])))
            raise UsageError(
                f"{self.path} has times of the {role} for {have} tokens at once, and not for {rows}.",
                flag=_FLAG,
                remedy=_REMEDY,
            )
        return seconds


def read_times(path: Path) -> Calibration:
    """Read what ``bench --json`` printed."""
    seconds: dict[str, dict[int, Floats]] = {}
    try:
        bench = _Bench.model_validate_json(read_file(path).removeprefix(codecs.BOM_UTF8))
        for role in ("target", "draft"):
            rows = bench.rounds[role].rows
            columns = np.array(bench.rounds[role].seconds, dtype=np.float64)
            if columns.ndim != 2 or columns.shape[1] != len(rows):
                raise ValueError("a round has not one time for each number of rows")
            if not (np.isfinite(columns) & (columns > 0)).all():
                raise ValueError("a time is not above 0")
            seconds[role] = dict(zip(rows, columns.T, strict=True))
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be read: {error.strerror}.", flag=_FLAG, remedy=_REMEDY
        ) from error
    except (ValidationError, KeyError, ValueError) as error:
        reason = first_line(error)
        raise UsageError(f"{path} holds no times: {reason}.", flag=_FLAG, remedy=_REMEDY) from error
    rounds = min(len(times) for by_rows in seconds.values() for times in by_rows.values())
    return Calibration(
        path,
        f"{bench.target.name} and {bench.draft.name} on {bench.device}",
        {"target": bench.target.parameters, "draft": bench.draft.parameters},
        bench.context,
        {role: {n: times[:rounds] for n, times in by_rows.items()} for role, by_rows in seconds.items()},
    )


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


@dataclass(frozen=True)
class StepTimes:
    """Rounds, and a loop's time from its parts: verifying by the number of rows, drafting by the drafter."""

    rounds: Sequence[Round]
    ks: tuple[int, int]

    def ars(self) -> LoopTimes:
        return self._loops(np.array([[1.0]]), np.zeros(len(self.rounds)))

    def loops(
        self, parts: Sequence[Part], shares: Floats, k: int, rule: str = MODIFIED_REJECTION
    ) -> LoopTimes:
        """Return the times of SpS, whose parts draft so many tokens in these shares [parts, K+1] of loops."""
        drafting = np.zeros(len(self.rounds))
        for part, share in zip(parts, shares.sum(1), strict=False):
            ends = np.array([each.drafting[part] for each in self.rounds])
            least, most = self.ks
            along = (k - least) / (most - least) if most > least else 0.0
            drafting += share * (ends[:, 0] + along * (ends[:, 1] - ends[:, 0]))
        return self._loops(shares, drafting, rule)

    def of_tree(self, part: Part, tree: StaticTree, rule: str) -> LoopTimes:
        """Return the times of a tree, whose part was timed with its own rows, whatever K."""
        drafting = np.array([each.drafting[part][0] for each in self.rounds])
        verifying = np.array([each.judged[rule, tree.shape.nodes] for each in self.rounds])
        return LoopTimes.one_a_round(self._context, verifying, drafting, tree.shape.nodes)

    @property
    def _context(self) -> float:
        return float(np.mean([each.context for each in self.rounds]))

    def _loops(self, shares: Floats, drafting: Floats, rule: str = MODIFIED_REJECTION) -> LoopTimes:
        """Return loop times after prefixes drawn evenly from the tokens of all texts, whose mean is then the
        texts'.

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
