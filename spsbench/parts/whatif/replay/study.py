"""A replay from start to end: texts, drafters and K in, the prediction for each cell out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.base import Spec
from spsbench.parts.whatif.bench.turns import budgeted_rounds
from spsbench.parts.whatif.replay.cells import Cell, Sought
from spsbench.parts.whatif.replay.prediction import DrafterForecast, Timed, work_of
from spsbench.parts.whatif.replay.reading import NO_READERS, Readers, Replayed, TextReader, model_bytes
from spsbench.parts.whatif.replay.rehearsal import Rehearsal, rehearsed
from spsbench.parts.whatif.replay.steps import StepTimes, given_by, time_round
from spsbench.parts.whatif.replay.texts import AsRun, Ran, Written
from spsbench.parts.whatif.replay.times import LEAST_ROUNDS, LoopTimes, TimeSource

DrafterPolicy = tuple[Spec, Spec]


@dataclass(frozen=True, slots=True)
class Study:
    """Every forecast; ``ars_bytes`` are the target's weights and cache at the longest text."""

    written: Written
    forecasts: tuple[DrafterForecast, ...]
    ars: Timed | None
    ars_bytes: int
    policy_times: Mapping[DrafterPolicy, LoopTimes]
    ran: Mapping[AsRun, Ran]


def read_texts(
    written: Written,
    sought: Sequence[Sought],
    k: int,
    on_stage: Callable[[str], None],
    readers: Readers = NO_READERS,
) -> tuple[dict[Sought, Replayed], dict[str, TextReader]]:
    """Read every text with every drafter, up to K; return the readers too, by the draft model's name."""
    drafters = dict.fromkeys(str(each.drafter) for each in sought)
    on_stage(f"Reading {len(written.texts)} texts with {', '.join(drafters)}")
    replayed: dict[Sought, Replayed] = {}
    read_by: dict[str, TextReader] = {}
    corpus = tuple(dict.fromkeys(text.prompt for text in written.texts))
    for draft in dict.fromkeys(each.draft for each in sought):
        of_draft = [each for each in sought if each.draft == draft]
        specs = [each.drafter for each in of_draft]
        reader = TextReader(of_draft[0].pair, written.sampling, specs, k, corpus, readers)
        texts = enumerate(written.texts, start=1)
        read = [dict(reader.read(text, number, [*reader.drafters])) for number, text in texts]
        reader.require_fitting()
        read_by[draft] = reader
        replayed |= zip(of_draft, reader.replayed(written.texts, read), strict=True)
    return replayed, read_by


def time_loops(
    written: Written,
    readers: Mapping[str, TextReader],
    sought: Sequence[Sought],
    ks: Sequence[int],
    rules: Sequence[str],
    budget_s: float,
    under: Sequence[DrafterPolicy] = (),
) -> TimeSource:
    """Time loops of all cells here, and of drafters under policies; in parts where some draft trees."""
    if not any(each.tree for each in sought):
        cells = [cell for each in sought for cell in each.cells(rules, ks)]
        first = {spec: next(each for each in sought if each.drafter == spec) for spec, _ in under}
        adapting = [Cell(first[spec], max(ks), policy=policy) for spec, policy in under]
        return rehearsed(written, [*cells, *adapting], budget_s)
    ends = (min(ks), max(ks))
    judged = given_by(sought, rules, ks)
    rounds = []
    for number in budgeted_rounds(budget_s, LEAST_ROUNDS, math.inf):
        seed = written.settings.seed + number + 1
        timed = time_round(readers, written.texts, ends, seed, judged=judged)
        if number >= 0:
            rounds.append(timed)
    return StepTimes(rounds, ends, readers)


def study(
    written: Written,
    replayed: Mapping[Sought, Replayed],
    ks: Sequence[int],
    rules: Sequence[str],
    times: TimeSource | None = None,
) -> Study:
    """Predict every drafter with every rule and K: the law of its loops, and the time of each."""
    ars_bytes = model_bytes(next(iter(replayed)).pair.target, written.longest)
    ars = None if times is None else Timed(work_of(written.texts), times.ars())
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
        for cell in sought.cells(rules, ks):
            laws = list(replay.loops(cell.k, cell.rule))
            emitted = np.sum([law.emitted() for law in laws], axis=0)
            arm = as_run.get((str(cell.drafter), cell.k, str(cell.policy), cell.rule))
            forecasts.append(
                DrafterForecast(
                    sought,
                    cell.k,
                    cell.rule,
                    work=work_of(written.texts, laws),
                    emitted=emitted / emitted.sum(),
                    bytes=ars_bytes + replay.bytes,
                    times=None if times is None else times.loops(cell, replay),
                    ars=ars,
                    measured=None if arm is None else arm.tokens_per_loop,
                )
            )
    policy_times = times.under_policies if isinstance(times, Rehearsal) else {}
    return Study(written, tuple(forecasts), ars, ars_bytes, policy_times, ran)
