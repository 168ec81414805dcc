"""A replay from start to end: texts, drafters and K in, the prediction for each cell out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from spsbench.base import EAGER, FIXED, MODIFIED_REJECTION, Arm, Generation, Request, Spec
from spsbench.drafters import DRAFT, drafter_kind
from spsbench.engines import Engine, teacher_force
from spsbench.models import Pair
from spsbench.parts.whatif.bench.turns import budgeted_rounds
from spsbench.parts.whatif.replay.prediction import (
    DrafterForecast,
    Even,
    Predicted,
    Timed,
    break_even,
    predict,
    work_of,
)
from spsbench.parts.whatif.replay.reading import NO_READERS, Readers, Replayed, TextReader, model_bytes
from spsbench.parts.whatif.replay.texts import AsRun, Ran, Written
from spsbench.parts.whatif.replay.times import (
    LEAST_ROUNDS,
    Calibration,
    Given,
    LoopTimes,
    Part,
    StepTimes,
    rehearse,
    time_round,
)
from spsbench.parts.whatif.replay.trees import StaticTree, tree_of
from spsbench.runner import EngineFactory

DrafterPolicy = tuple[Spec, Spec]


@dataclass(frozen=True, eq=False, slots=True)
class Sought:
    """A drafter to replay; under rules of its own, if it has any, in the place of those of all."""

    drafter: Spec
    pair: Pair
    draft: str = ""
    rules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The drafter's name, with its draft model where several are compared."""
        name = str(self.tree or self.drafter)
        return f"{name} of {self.draft}" if self.draft else name

    @property
    def tree(self) -> StaticTree | None:
        """The tree that it drafts in place of a chain."""
        return tree_of(self.drafter)

    def cells(self, rules: Sequence[str], ks: Sequence[int]) -> Iterable[tuple[str, int]]:
        """Yield every rule and K; a tree has its depth for K."""
        return product(self.rules or rules, ks if self.tree is None else (self.tree.shape.depth(0),))

    @property
    def needs_draft(self) -> bool:
        """Whether the draft model makes a difference to the drafter."""
        return DRAFT in drafter_kind(self.drafter.name).needs_of(self.drafter)

    @property
    def models(self) -> dict[str, int]:
        """Numbers of parameters of the models that it runs, by role."""
        models_of = {"target": self.pair.target} | ({"draft": self.pair.draft} if self.needs_draft else {})
        return {role: model.parameters for role, model in models_of.items()}


@dataclass(frozen=True, slots=True)
class Study:
    """Every forecast; ``ars_bytes`` are the target's weights and cache at the longest text."""

    written: Written
    forecasts: tuple[DrafterForecast, ...]
    ars: Timed | None
    ars_bytes: int
    policy_times: Mapping[DrafterPolicy, LoopTimes]
    ran: Mapping[AsRun, Ran]

    def predicted(self, one: DrafterForecast) -> Predicted | None:
        return None if one.timed is None or self.ars is None else predict(one.timed, self.ars)

    def even(self, one: DrafterForecast) -> Even | None:
        """Return where a cell would be as fast as ArS; in alpha, which is that of modified rejection only."""
        if one.rule != MODIFIED_REJECTION:
            return None
        return None if one.timed is None or self.ars is None else break_even(one.timed, self.ars, one.k)


class _Key(NamedTuple):
    """What loops are timed of; ArS is None where times are kept."""

    sought: Sought
    k: int
    rule: str = MODIFIED_REJECTION
    policy: Spec = Spec(FIXED)


_Times = Mapping[_Key | None, LoopTimes]


def read_texts(
    written: Written,
    sought: Sequence[Sought],
    k: int,
    on_stage: Callable[[str], None],
    readers: Readers = NO_READERS,
) -> tuple[dict[Sought, Replayed], dict[int, TextReader]]:
    """Read every text with every drafter, up to K; return the readers too, by their pair's identity."""
    drafters = dict.fromkeys(str(each.drafter) for each in sought)
    on_stage(f"Reading {len(written.texts)} texts with {', '.join(drafters)}")
    replayed: dict[Sought, Replayed] = {}
    read_by: dict[int, TextReader] = {}
    corpus = tuple(dict.fromkeys(text.prompt for text in written.texts))
    for pair in {id(each.pair): each.pair for each in sought}.values():
        of_pair = [each for each in sought if each.pair is pair]
        specs = [each.drafter for each in of_pair]
        reader = TextReader(pair, written.sampling, specs, k, corpus, readers)
        texts = enumerate(written.texts, start=1)
        read = [dict(reader.read(text, number, [*reader.drafters])) for number, text in texts]
        reader.require_fitting()
        read_by[id(pair)] = reader
        replayed |= zip(of_pair, reader.replayed(written.texts, read), strict=True)
    return replayed, read_by


def study(
    written: Written,
    sought: Sequence[Sought],
    ks: Sequence[int],
    times: float | Calibration,
    on_stage: Callable[[str], None],
    readers: Readers = NO_READERS,
    under: Sequence[DrafterPolicy] = (),
    rules: Sequence[str] = (MODIFIED_REJECTION,),
) -> Study:
    """Replay every drafter with every rule and K, and give each the time of its loops.

    Args:
        times: seconds for timing loops of all cells here, 0 for none; or times of another machine.
    """
    replayed, read_by = read_texts(written, sought, max(ks), on_stage, readers)
    keys = [_Key(each, k, rule) for each in replayed for rule, k in each.cells(rules, ks)]
    times_of: _Times = {}
    adapting: dict[DrafterPolicy, _Key] = {}
    if isinstance(times, Calibration):
        for each in sought:
            times.require_models(each.models)
        times_of = {None: times.ars()} | {
            key: times.loops(key.sought.drafter, key.k, key.sought.tree) for key in keys
        }
    elif times > 0:
        on_stage(f"Timing loops for {times:g} s")
        if any(each.tree for each in sought):
            named = {str(number): reader for number, reader in enumerate(read_by.values())}
            places = dict(zip(read_by, named, strict=True))
            ends = (min(ks), max(ks))
            judged = given_by(sought, rules, ks)
            rounds = []
            for number in budgeted_rounds(times, LEAST_ROUNDS, math.inf):
                seed = written.settings.seed + number + 1
                timed = time_round(named, written.texts, ends, seed, judged=judged)
                if number >= 0:
                    rounds.append(timed)

            def parts_of(each: Sought) -> list[Part]:
                place = places[id(each.pair)]
                return [Part(place, spec) for spec in named[place].parts[each.drafter]]

            return study_of(written, replayed, ks, StepTimes(rounds, ends), parts_of, rules)
        first = {spec: next(each for each in sought if each.drafter == spec) for spec, _ in under}
        adapting = {(spec, policy): _Key(first[spec], max(ks), policy=policy) for spec, policy in under}
        times_of = _loop_times_here(written, [*keys, *adapting.values()], times)
    policy_times = {each: times_of[key] for each, key in adapting.items()}
    return _study(written, replayed, rules, ks, times_of, policy_times)


def study_of(
    written: Written,
    replayed: Mapping[Sought, Replayed],
    ks: Sequence[int],
    steps: StepTimes,
    parts_of: Callable[[Sought], Sequence[Part]],
    rules: Sequence[str] = (MODIFIED_REJECTION,),
) -> Study:
    """Return the study of what was read and timed already."""
    times_of: dict[_Key | None, LoopTimes] = {None: steps.ars()}
    for each, replay in replayed.items():
        parts = parts_of(each)
        for rule, k in each.cells(rules, ks):
            if each.tree is not None:
                times_of[_Key(each, k, rule)] = steps.of_tree(parts[0], each.tree, rule)
            else:
                shares = replay.shares(list(replay.loops(k, rule)), k)
                times_of[_Key(each, k, rule)] = steps.loops(parts, shares, k, rule)
    return _study(written, replayed, rules, ks, times_of, {})


def given_by(sought: Iterable[Sought], rules: Sequence[str], ks: Sequence[int]) -> list[Given]:
    """Return what must be timed of them beside modified rejection of 0 to K tokens.

    A tree is timed as a chain of as many tokens: both are one forward of as many rows.
    """
    wanted: dict[Given, None] = {}
    for each in sought:
        for rule, k in each.cells(rules, ks):
            if each.tree is not None:
                wanted[rule, each.tree.shape.nodes] = None
            elif rule != MODIFIED_REJECTION:
                wanted |= dict.fromkeys((rule, count) for count in range(1, k + 1))
    return [*wanted]


def _study(
    written: Written,
    replayed: Mapping[Sought, Replayed],
    rules: Sequence[str],
    ks: Sequence[int],
    taken: _Times,
    policy_times: Mapping[DrafterPolicy, LoopTimes],
) -> Study:
    """Return every forecast, from laws and times of the same texts."""
    ars_bytes = model_bytes(next(iter(replayed)).pair.target, written.longest)
    forecasts: list[DrafterForecast] = []
    ran: dict[AsRun, Ran] = {}
    for sought, replay in replayed.items():
        # The run's own arms, if they had this draft.
        same = not sought.needs_draft or (
            written.identity is not None
            and written.identity["draft"]["fingerprint"] == sought.pair.info["draft"]["fingerprint"]
        )
        as_run = {name: arm for name, arm in written.ran.items() if same and name[0] == str(sought.drafter)}
        ran |= as_run
        for rule, k in sought.cells(rules, ks):
            laws = list(replay.loops(k, rule))
            emitted = np.sum([law.emitted() for law in laws], axis=0)
            key = _Key(sought, k, rule)
            arm = as_run.get((str(sought.drafter), k, str(key.policy), rule))
            forecasts.append(
                DrafterForecast(
                    sought.name,
                    sought.drafter,
                    sought.draft,
                    rule,
                    k,
                    work_of(written.texts, laws),
                    emitted / emitted.sum(),
                    ars_bytes + replay.bytes,
                    taken.get(key),
                    None if arm is None else arm.tokens_per_loop,
                    sought.pair.target.rolled_back_by == "replay",
                )
            )
    ars = Timed(work_of(written.texts), taken[None]) if None in taken else None
    return Study(written, tuple(forecasts), ars, ars_bytes, policy_times, ran)


def _loop_times_here(written: Written, keys: Sequence[_Key], budget_s: float) -> _Times:
    pairs = {id(key.sought.pair): key.sought.pair for key in keys}
    models = [model for pair in pairs.values() for model in (pair.target, pair.draft)]
    first = next(iter(pairs.values()))
    draft = None if first.is_one else first.draft
    corpus = tuple({text.prompt: None for text in written.texts})
    window = min(model.context_window for model in models)
    factories = {number: EngineFactory(pair, window, corpus=corpus) for number, pair in pairs.items()}
    name, sampling = written.sampling_name, written.sampling
    engines: dict[_Key | None, Engine] = {
        None: next(iter(factories.values())).build(Arm("ars", 0, EAGER, name, sampling))
    }
    for key in keys:
        arm = Arm("sps", key.k, EAGER, name, sampling, key.sought.drafter, Spec(key.rule), key.policy)
        engines[key] = factories[id(key.sought.pair)].build(arm)
    most = {key: 1 if key is None else key.k + 1 for key in engines}

    def room(prompt: Sequence[int]) -> int:
        return min(model.room_behind(prompt) for model in models)

    def read(request: Request, generation: Generation) -> None:
        teacher_force(first.target, draft, request.prompt_ids, generation.tokens, request.sampling)

    seed = written.settings.seed
    return rehearse(engines, most, written.texts, sampling, room, budget_s, read, seed, LEAST_ROUNDS)
