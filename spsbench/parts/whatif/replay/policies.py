"""Policies over texts of the target: the curve over their thresholds, the best of it, and the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.base import FIXED, MODIFIED_REJECTION, Floats, Interval, Spec, UsageError
from spsbench.drafters import (
    DRAFTERS,
    ENTROPY,
    POLICIES,
    STOP_BELOW,
    DraftedText,
    DraftStopRule,
    Momentum,
    StopReader,
    build_policy,
    drafter_kind,
    policy_kind,
)
from spsbench.law import (
    DraftedLoops,
    drafted_loops,
    fastest_drafts,
    fixed_loops,
    momentum_loops,
    oracle_loops,
    stopped_loops,
)
from spsbench.parts.whatif.replay.prediction import Predicted, Timed, Work, drafted_work, interval_of
from spsbench.parts.whatif.replay.study import Study
from spsbench.parts.whatif.replay.texts import Ran, TargetText
from spsbench.parts.whatif.replay.times import COLD, LoopCosts, loop_costs
from spsbench.stats import FEWEST_PROMPTS, halves

MOMENTUM = "momentum"
_FLAG = "--policy"
_GRIDS: dict[str, tuple[str, tuple[float, ...]]] = {
    STOP_BELOW: ("tau", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    ENTROPY: ("h", (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)),
}
"""The threshold of each policy that has one, and the values of its curve."""


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies that are replayed, and the drafters that heed them."""

    specs: tuple[Spec, ...]
    drafters: tuple[Spec, ...]

    @property
    def rules(self) -> tuple[DraftStopRule, ...]:
        """The rules that end a draft by its rows."""
        return tuple(DraftStopRule(spec) for spec in self.specs if spec.name in _GRIDS)

    @property
    def timed(self) -> tuple[tuple[Spec, Spec], ...]:
        """(drafter, policy) whose loops are timed: each policy by name, with the middle of its thresholds."""
        pairs = []
        for name in dict.fromkeys(spec.name for spec in self.specs):
            grid = [spec for spec in self.specs if spec.name == name]
            pairs += [(drafter, grid[len(grid) // 2]) for drafter in self.drafters]
        return tuple(pairs)

    def readers(self, seed: int) -> dict[Spec, StopReader]:
        """Return what reads the texts with each drafter."""
        return {drafter: StopReader(self.rules, seed) for drafter in self.drafters}


def policies_of(named: Sequence[Spec], drafters: Sequence[Spec]) -> Policies | None:
    """Return the named policies; a threshold that was not given takes each value of its grid."""
    specs = tuple(dict.fromkeys(each for spec in named for each in _thresholds_of(spec)))
    if not specs:
        return None
    heeding = tuple(spec for spec in drafters if drafter_kind(spec.name).adaptive)
    if not heeding:
        raise UsageError(
            f"no drafter here drafts as {', '.join(dict.fromkeys(spec.name for spec in specs))} says.",
            flag=_FLAG,
            remedy="Add --drafter model, which heeds a policy, or leave --policy out.",
        )
    for spec in heeding:
        if spec.name not in DRAFTERS:
            raise UsageError(
                f"{spec} cannot be replayed under a policy: its rows along a text are not known.",
                flag="--drafter",
                remedy="Measure it with spsbench run, or leave --policy out.",
            )
    return Policies(specs, heeding)


def same_policy(first: Spec, second: Spec) -> bool:
    """Return whether both are the same policy, perhaps one of them by default."""
    return first.name == second.name and _settled(first) == _settled(second)


def _settled(spec: Spec) -> dict[str, object]:
    return dict(policy_kind(spec.name, _FLAG).settled(spec, _FLAG))


def _thresholds_of(spec: Spec) -> Iterable[Spec]:
    """A policy for each value of its grid; itself if the threshold was given."""
    _settled(spec)
    if spec.name not in POLICIES:
        raise UsageError(
            f"{spec} cannot be replayed: what it remembers from one loop to the next is not known.",
            flag=_FLAG,
            remedy=f"Choose from {', '.join(POLICIES)}, or measure it with spsbench run.",
        )
    build_policy(spec)
    if spec.name == FIXED:
        return []
    if spec.name not in _GRIDS or spec.options:
        return [spec]
    name, values = _GRIDS[spec.name]
    return [Spec(spec.name, ((name, value),)) for value in values]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number lies between whatever is drafted after rejected tokens."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One policy with one threshold, predicted; bounds are of tokens drafted a loop, and of ms a token."""

    policy: Spec | None
    tokens_per_loop: Interval
    drafted_per_loop: Interval
    bounds: Bounds
    predicted: Predicted | None
    ms_bounds: Bounds | None
    ran: Ran | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The best threshold of one policy, chosen on one half of the prompts and judged on the other.

    Attributes:
        gain: how many times the policy's time per token the fixed K's is, on the judging half.
        fixed_share, policy_share: of the time per token that the oracle saves over ArS there; None where
            it saves none.
    """

    policy: Spec
    fixed_k: int
    chosen_on: int
    judged_on: int
    gain: Interval
    fixed_share: Interval | None
    policy_share: Interval | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Every policy of one drafter.

    Attributes:
        oracle: the fastest that any policy with drafts of up to K tokens can be: see ``text_loops``.
            If nothing was timed, the one that drafts what will be accepted.
        beyond_ms: what a loop of each policy takes here beyond one of a fixed K that drafts as many, in
            milliseconds, of loops with one threshold each. It is charged where it is above 0: deciding is
            never free of cost, and a smaller number is noise.
    """

    drafter: Spec
    k: int
    cells: tuple[PolicyCell, ...]
    oracle: PolicyCell
    choices: tuple[Choice, ...]
    beyond_ms: dict[str, Interval]
    rollouts: int


def curve(study: Study, drafter: Spec, reader: StopReader, policies: Policies) -> Curve:
    """Predict policies from the texts that a reader has read in a study with every K from 1 on."""
    own = {forecast.k: forecast.timed for forecast in study.forecasts if forecast.drafter == drafter}
    fixed = {each: timed for each, timed in sorted(own.items()) if timed is not None}
    k = max(own)
    texts = study.written.texts
    ars = study.ars
    costs = loop_costs([ars.times, *(each.times for each in fixed.values())]) if ars and fixed else None
    works = {spec: _work_and_bounds(spec, texts, reader, k) for spec in policies.specs}
    oracle = _oracle(texts, reader, costs, k)
    ran = [
        (Spec.parse(policy), each)
        for (name, most, policy, rule), each in study.ran.items()
        if (name, most, rule) == (str(drafter), k, MODIFIED_REJECTION)
    ]
    policy_times = {
        policy.name: each for (name, policy), each in study.policy_times.items() if name == drafter
    }
    measured = {} if costs is None else {name: costs.beyond(each) for name, each in policy_times.items()}
    beyond = {name: np.maximum(found, 0.0) for name, found in measured.items()}

    def cell(policy: Spec | None, works: Sequence[Work]) -> PolicyCell:
        own, low, high = works
        counts = np.arange(k + 1)
        drafted = [float((each.loops @ counts).sum() / each.loops.sum()) for each in (low, high)]
        predicted, ms = None, None
        if costs is not None and ars is not None:
            more = None if policy is None else beyond.get(policy.name)
            seconds = own.per_token(costs, more)
            predicted = Predicted(interval_of(1e3 * seconds), interval_of(ars.per_token() / seconds))
            ms = Bounds(*(1e3 * each.estimate(costs, more) for each in (low, high)))
        return PolicyCell(
            policy,
            own.tokens_per_loop,
            own.drafted_per_loop,
            Bounds(*drafted),
            predicted,
            ms,
            None if policy is None else next((one for spec, one in ran if same_policy(spec, policy)), None),
        )

    choices: list[Choice] = []
    names = list(dict.fromkeys(text.name for text in texts))
    if costs is not None and ars is not None and len(names) >= FEWEST_PROMPTS:
        choosing, judging = ([names.index(name) for name in side] for side in halves(names))
        judge = _Judge(costs, fixed, oracle, ars, choosing, judging)
        for name in dict.fromkeys(spec.name for spec in works):
            of_name = {spec: found[0] for spec, found in works.items() if spec.name == name}
            choices.append(judge.best(of_name, beyond.get(name)))
    rollouts = sum(len(text.rollouts[0].positions) for text in reader.texts if text.rollouts)
    return Curve(
        drafter,
        k,
        tuple(cell(spec, found) for spec, found in works.items()),
        cell(None, [oracle] * 3),
        tuple(choices),
        {name: interval_of(1e3 * found) for name, found in measured.items()},
        rollouts,
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """Chooses on some prompts and judges on others; all work is of the same texts."""

    costs: LoopCosts
    fixed: dict[int, Timed]
    oracle: Work
    ars: Timed
    choosing: list[int]
    judging: list[int]

    def best(self, works: dict[Spec, Work], beyond: Floats | None) -> Choice:
        """Return the cell of a policy's best threshold."""
        policy = min(works, key=lambda spec: works[spec].part(self.choosing).estimate(self.costs, beyond))
        fixed_k = min(self.fixed, key=lambda k: self.fixed[k].part(self.choosing).mean_s())
        adaptive = works[policy].part(self.judging).per_token(self.costs, beyond)
        oracle = self.oracle.part(self.judging).per_token(self.costs)
        fixed, ars = (each.part(self.judging).per_token() for each in (self.fixed[fixed_k], self.ars))
        saves = bool(ars[0] > oracle[0])
        shares = [interval_of((ars - each) / (ars - oracle)) if saves else None for each in (fixed, adaptive)]
        chosen, judged = len(self.choosing), len(self.judging)
        return Choice(policy, fixed_k, chosen, judged, interval_of(fixed / adaptive), *shares)


def _work_and_bounds(spec: Spec, texts: Sequence[TargetText], reader: StopReader, k: int) -> list[Work]:
    """With what was sampled, and at both bounds."""
    rules = [rule.spec for rule in reader.rules]
    works = [
        _works_of_text(spec, text, rules.index(spec) if spec in rules else None, k) for text in reader.texts
    ]
    return [drafted_work(texts, own, k) for own in zip(*works, strict=True)]


def _works_of_text(spec: Spec, text: DraftedText, rule: int | None, k: int) -> tuple[DraftedLoops, ...]:
    if spec.name == MOMENTUM:
        table = Momentum.table(k)
        return (drafted_loops(*momentum_loops(text.accepted, table, min(Momentum.START, k)), COLD),) * 3
    assert rule is not None, "a policy without a law"
    if DraftStopRule(spec).never:
        return (drafted_loops(*fixed_loops(text.accepted, k), COLD),) * 3
    loops = stopped_loops(text.accepted, text.stops[rule], text.rejected[rule], k)
    sampled = loops.sampled(text.rollouts[rule]) if text.rollouts else loops.low
    return tuple(drafted_loops(loops.law, each, COLD) for each in (sampled, loops.low, loops.high))


def _oracle(texts: Sequence[TargetText], reader: StopReader, costs: LoopCosts | None, k: int) -> Work:
    loops = []
    for text, read in zip(texts, reader.texts, strict=True):
        ends = fixed_loops(read.accepted, k)[0].ends[0]
        chosen = np.tile(np.arange(k + 1), (len(ends), 1))
        if costs is not None:
            contexts = len(text.prompt) + np.arange(float(len(ends)))
            chosen, _ = fastest_drafts(ends, costs.at(contexts))
        loops.append(drafted_loops(*oracle_loops(ends, chosen), COLD))
    return drafted_work(texts, loops, k)
