"""A policy: how many tokens a loop drafts, up to the arm's K; what it is called, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from spsbench.drafters.pacing import Entropy, Fixed, Momentum, StopBelow
from spsbench.plugins import Options, find, settled
from spsbench.records import OptionValue, Spec

GROUP = "spsbench.policies"
"""Entry points under this name bring policies of other packages."""

Margin = Callable[[Tensor, Tensor], Tensor]
"""From warped draft rows [n, V] and the tokens drawn from them [n], [n] numbers: below 0 the draft ends
behind its token. A function of its arguments alone, row by row, so that the decision can be made again."""


class Policy(Protocol):
    """Decides how many tokens a loop drafts.

    It sees the rows and tokens drafted so far in this loop, and how many stood in past loops: never the
    target's rows, never a number that is yet to be drawn with. It ends a draft behind a token, which
    stays: ``pacing`` says why a withdrawn token would bias.
    """

    @property
    def margin(self) -> Margin | None:
        """Asked behind each token; None where ``lookahead`` decides alone: the host then never waits."""
        ...

    def begin(self) -> None:
        """A new sequence: forget the verdicts on the last one."""
        ...

    def lookahead(self, k: int) -> int:
        """How many tokens the next loop drafts at most, 1 to k; asked once a loop."""
        ...

    def observe(self, drafted: int, accepted: int) -> None:
        """A loop that drafted is over; so many of its tokens stood."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A policy by name.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, for lists.
        build: makes one from all options; each drafter has its own.
        options: their names and defaults; a value given must be of the default's type.
    """

    name: str
    summary: str
    build: Callable[[Options], Policy]
    options: Options = field(default_factory=dict)

    def settled(self, spec: Spec, flag: str = "--policy") -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``plugins.settled``."""
        return settled(self.name, self.options, spec, flag)


_OURS = (
    PolicyKind("fixed", "K tokens in every loop (Chen et al. 2023).", lambda options: Fixed()),
    PolicyKind(
        "stop-below",
        "Ends the draft behind a token to which the draft gave a probability below tau.",
        lambda options: StopBelow(float(options["tau"])),
        {"tau": 0.4},
    ),
    PolicyKind(
        "entropy",
        "Ends the draft behind a token whose draft row had an entropy above h nats.",
        lambda options: Entropy(float(options["h"])),
        {"h": 2.0},
    ),
    PolicyKind(
        "momentum",
        "Two tokens more after a loop in which all stood, else one less (transformers' heuristic).",
        lambda options: Momentum(),
    ),
)

POLICIES: dict[str, PolicyKind] = {kind.name: kind for kind in _OURS}
"""The policies that can be named."""


def policy_kind(name: str, flag: str = "--policy") -> PolicyKind:
    """The policy of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, POLICIES, GROUP, PolicyKind, flag)


def build_policy(spec: Spec) -> Policy:
    """A policy as its spec says."""
    kind = policy_kind(spec.name)
    return kind.build(kind.settled(spec))


def lookahead_of(policy: Policy | None, k: int) -> int:
    """How many tokens the next loop may draft, whatever another package's policy answers: 1 to k."""
    return k if policy is None else max(1, min(policy.lookahead(k), k))


def lookaheads(policy: Policy, k: int, verdicts: Iterable[tuple[int, int]]) -> list[int]:
    """What the policy allowed in each loop of a sequence, asked once more from its beginning.

    Args:
        policy: of its own, not the one that a drafter still uses.
        k: the arm's K.
        verdicts: (drafted, accepted) of each loop, in order.
    """
    policy.begin()
    allowed = []
    for drafted, accepted in verdicts:
        allowed.append(lookahead_of(policy, k))
        if drafted:
            policy.observe(drafted, accepted)
    return allowed
