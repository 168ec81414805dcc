"""Which policies are replayed, and with which thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.axes import FIXED
from spsbench.drafters.policy import Momentum
from spsbench.drafters.registry import DRAFTERS, POLICIES, build_policy, drafter_kind, policy_kind
from spsbench.drafters.stopping import ENTROPY, STOP_BELOW, DraftedText, StopReader, StopRule
from spsbench.errors import UsageError
from spsbench.law.text_loops import (
    DraftedLoops,
    Floats,
    StateLoops,
    drafted_loops,
    fastest_drafts,
    fixed_loops,
    momentum_loops,
    oracle_loops,
    stopped_loops,
)
from spsbench.predict.verdict import FEWEST_PROMPTS, halves
from spsbench.records import Interval, Spec
from spsbench.replay.prediction import (
    DraftedWork,
    LoopCosts,
    Predicted,
    drafted_work,
    interval_of,
    loop_costs,
)
from spsbench.replay.study import Study
from spsbench.replay.texts import Ran, TargetText
from spsbench.replay.times import COLD

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
    def rules(self) -> tuple[StopRule, ...]:
        """Those that end a draft by its rows."""
        return tuple(StopRule(spec) for spec in self.specs if spec.name in _GRIDS)

    @property
    def timed(self) -> tuple[tuple[Spec, Spec], ...]:
        """(drafter, policy) whose loops are timed: each policy by name, with the middle of its thresholds."""
        found = []
        for name in dict.fromkeys(spec.name for spec in self.specs):
            own = [spec for spec in self.specs if spec.name == name]
            found += [(drafter, own[len(own) // 2]) for drafter in self.drafters]
        return tuple(found)

    def readers(self, seed: int) -> dict[Spec, StopReader]:
        """What reads the texts with each drafter."""
        return {drafter: StopReader(self.rules, seed) for drafter in self.drafters}


def policies_of(named: Sequence[Spec], drafters: Sequence[Spec]) -> Policies | None:
    """The policies that were named, each threshold that was not given over its grid."""
    specs = tuple(dict.fromkeys(each for spec in named for each in _expanded(spec)))
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
    """Whether both say the same, one of them perhaps by default."""
    return first.name == second.name and _settled(first) == _settled(second)


def _settled(spec: Spec) -> dict[str, object]:
    return dict(policy_kind(spec.name, _FLAG).settled(spec, _FLAG))


def _expanded(spec: Spec) -> Iterable[Spec]:
    """A policy over the grid of its threshold, unless that was given."""
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


_NOTHING: Floats = np.zeros(1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number lies between whatever is drafted after rejected tokens."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One policy with one threshold, predicted.

    Attributes:
        ms_bounds: of the milliseconds a token, likewise.
    """

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
    """What policies would give, from the texts that a reader has read in a study with every K from 1 on."""
    k = max(one.cell.k for one in study.found)
    costs = _costs(study, drafter, k)
    texts = study.written.texts
    works = {spec: _work_of(spec, texts, reader, k) for spec in policies.specs}
    fixed = {each: _fixed(texts, reader, each, k) for each in range(1, k + 1)}
    measured = _beyond(study, drafter, costs)
    beyond = {name: np.maximum(found, 0.0) for name, found in measured.items()}
    oracle = _oracle(texts, reader, costs, k)
    ars = _ars(texts, k)
    ran = _ran(study, drafter, k)

    def cell(policy: Spec | None, works: Sequence[DraftedWork]) -> PolicyCell:
        own, low, high = works
        more = _NOTHING if policy is None else beyond.get(policy.name, _NOTHING)
        counts = np.arange(k + 1)
        drafted = [float((each.loops @ counts).sum() / each.loops.sum()) for each in (low, high)]
        predicted, ms = None, None
        if costs is not None:
            taken = costs.per_token(own, more)
            predicted = Predicted(interval_of(1e3 * taken), interval_of(costs.per_token(ars) / taken))
            ms = Bounds(*(1e3 * float(costs.estimate(each, more)) for each in (low, high)))
        return PolicyCell(
            policy,
            own.tokens_per_loop,
            own.drafted_per_loop,
            Bounds(*drafted),
            predicted,
            ms,
            None if policy is None else next((one for spec, one in ran if same_policy(spec, policy)), None),
        )

    cells = tuple(cell(spec, found) for spec, found in works.items())
    choices: tuple[Choice, ...] = ()
    names = list(dict.fromkeys(text.name for text in texts))
    if costs is not None and len(names) >= FEWEST_PROMPTS:
        sides = [[names.index(name) for name in side] for side in halves(names)]
        judge = _Judge(costs, beyond, fixed, oracle, ars, *sides)
        own = {spec: found[0] for spec, found in works.items()}
        families = dict.fromkeys(spec.name for spec in own)
        choices = tuple(
            judge.best({spec: work for spec, work in own.items() if spec.name == name}) for name in families
        )
    rollouts = sum(len(text.rollouts[0].positions) for text in reader.texts if text.rollouts)
    charged = {name: interval_of(1e3 * found) for name, found in measured.items()}
    return Curve(drafter, k, cells, cell(None, [oracle] * 3), choices, charged, rollouts)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Chooses on some prompts and judges on others; all work is of the same texts."""

    costs: LoopCosts
    beyond: dict[str, Floats]
    fixed: dict[int, DraftedWork]
    oracle: DraftedWork
    ars: DraftedWork
    choosing: list[int]
    judging: list[int]

    def best(self, works: dict[Spec, DraftedWork]) -> Choice:
        """Of one policy's thresholds."""
        beyond = self.beyond.get(next(iter(works)).name, _NOTHING)

        def chosen_s(work: DraftedWork, beyond: Floats = _NOTHING) -> float:
            return self.costs.estimate(work.part(self.choosing), beyond)

        policy = min(works, key=lambda spec: chosen_s(works[spec], beyond))
        fixed_k = min(self.fixed, key=lambda k: chosen_s(self.fixed[k]))
        own = self._judged(works[policy], beyond)
        fixed, oracle, ars = (self._judged(each) for each in (self.fixed[fixed_k], self.oracle, self.ars))
        saves = bool(ars[0] > oracle[0])
        shares = [interval_of((ars - each) / (ars - oracle)) if saves else None for each in (fixed, own)]
        sizes = len(self.choosing), len(self.judging)
        return Choice(policy, fixed_k, *sizes, interval_of(fixed / own), *shares)

    def _judged(self, work: DraftedWork, beyond: Floats = _NOTHING) -> Floats:
        return self.costs.per_token(work.part(self.judging), beyond)


def _work_of(
    spec: Spec, texts: Sequence[TargetText], reader: StopReader, k: int
) -> tuple[DraftedWork, DraftedWork, DraftedWork]:
    """A policy's work: with what was sampled, and at both bounds."""
    rules = [rule.spec for rule in reader.rules]
    own, low, high = [], [], []
    for text in reader.texts:
        found = _of_text(spec, text, rules.index(spec) if spec in rules else None, k)
        own.append(found[0])
        low.append(found[1])
        high.append(found[2])
    return drafted_work(texts, own, k), drafted_work(texts, low, k), drafted_work(texts, high, k)


def _of_text(spec: Spec, text: DraftedText, rule: int | None, k: int) -> tuple[DraftedLoops, ...]:
    """See ``_work_of``."""
    if spec.name == MOMENTUM:
        table = Momentum.table(k)
        return (_drafted(*momentum_loops(text.accepted, table, min(Momentum.START, k))),) * 3
    assert rule is not None, "a policy without a law"
    if StopRule(spec).never:
        return (_drafted(*fixed_loops(text.accepted, k)),) * 3
    loops = stopped_loops(text.accepted, text.stops[rule], text.rejected[rule], k)
    sampled = loops.sampled(text.rollouts[rule]) if text.rollouts else loops.low
    return tuple(_drafted(loops.law, each) for each in (sampled, loops.low, loops.high))


def _drafted(law: StateLoops, drafted: Floats) -> DraftedLoops:
    return drafted_loops(law, drafted, COLD)


def _fixed(texts: Sequence[TargetText], reader: StopReader, own_k: int, k: int) -> DraftedWork:
    return drafted_work(texts, (_drafted(*fixed_loops(text.accepted, own_k)) for text in reader.texts), k)


def _ars(texts: Sequence[TargetText], k: int) -> DraftedWork:
    """A loop a token, none of which drafts."""
    nothing = (fixed_loops(np.zeros(len(text.tokens)), 0) for text in texts)
    return drafted_work(texts, (_drafted(*each) for each in nothing), k)


def _oracle(texts: Sequence[TargetText], reader: StopReader, costs: LoopCosts | None, k: int) -> DraftedWork:
    found = []
    for text, read in zip(texts, reader.texts, strict=True):
        ends = fixed_loops(read.accepted, k)[0].ends[0]
        chosen = np.tile(np.arange(k + 1), (len(ends), 1))
        if costs is not None:
            contexts = len(text.prompt) + np.arange(float(len(ends)))
            chosen, _ = fastest_drafts(ends, costs.at(contexts))
        found.append(_drafted(*oracle_loops(ends, chosen)))
    return drafted_work(texts, found, k)


def _costs(study: Study, drafter: Spec, k: int) -> LoopCosts | None:
    """Of loops that draft 0 to K tokens; None if nothing was timed."""
    own = {one.cell.k: one.timed for one in study.found if one.cell.drafter == drafter}
    timed = [study.ars, *(own[each] for each in range(1, k + 1))]
    times = [each.times for each in timed if each is not None]
    return loop_costs(times) if len(times) == k + 1 else None


def _beyond(study: Study, drafter: Spec, costs: LoopCosts | None) -> dict[str, Floats]:
    """See ``LoopCosts.beyond``, by the policy's name."""
    if costs is None:
        return {}
    own = {policy.name: times for (name, policy), times in study.policy_times.items() if name == drafter}
    return {name: costs.beyond(times) for name, times in own.items()}


def _ran(study: Study, drafter: Spec, k: int) -> list[tuple[Spec, Ran]]:
    """What the run's own arms with this drafter and K did, by their policy."""
    return [(Spec.parse(name[2]), ran) for name, ran in study.ran.items() if name[:2] == (str(drafter), k)]
