"""Which policies are replayed, and with which thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spsbench.axes import FIXED
from spsbench.drafters.policy import POLICIES, build_policy, policy_kind
from spsbench.drafters.registry import DRAFTERS, drafter_kind
from spsbench.drafters.stopping import ENTROPY, STOP_BELOW, StopReader, StopRule
from spsbench.errors import UsageError
from spsbench.records import Spec

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
