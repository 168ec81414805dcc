"""Policies by name, with their options. The code is imported when a policy is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from spsbench.plugins import Check, Options, deferred, find, settled, within
from spsbench.records import OptionValue, Spec

if TYPE_CHECKING:
    from spsbench.drafters.policy import Policy

GROUP = "spsbench.policies"
"""Entry points under this name bring policies of other packages."""


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A policy by name.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, for lists.
        build: makes one from all options; each drafter has its own.
        options: their names and defaults; a value given must be of the default's type.
        check: what their values must be.
    """

    name: str
    summary: str
    build: Callable[[Options], Policy]
    options: Options = field(default_factory=dict)
    check: Check | None = None

    def settled(self, spec: Spec, flag: str = "--policy") -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``plugins.settled``."""
        return settled(self.name, self.options, spec, flag, self.check)


_OURS = (
    PolicyKind(
        "fixed", "K tokens in every loop (Chen et al. 2023).", deferred("spsbench.drafters.policy:fixed")
    ),
    PolicyKind(
        "stop-below",
        "Ends the draft after a token to which the draft gave a probability below tau.",
        deferred("spsbench.drafters.policy:stop_below"),
        {"tau": 0.4},
        within("stop-below", "tau", 0, 1),
    ),
    PolicyKind(
        "entropy",
        "Ends the draft after a token whose draft row had an entropy above h nats.",
        deferred("spsbench.drafters.policy:entropy"),
        {"h": 2.0},
        within("entropy", "h", 0, inf),
    ),
    PolicyKind(
        "momentum",
        "Two tokens more after a loop in which all were accepted, else one less (transformers' heuristic).",
        deferred("spsbench.drafters.policy:momentum"),
    ),
)

POLICIES: dict[str, PolicyKind] = {kind.name: kind for kind in _OURS}
"""The policies that can be named."""


def policy_kind(name: str, flag: str = "--policy") -> PolicyKind:
    """The policy of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, POLICIES, GROUP, PolicyKind, flag)
