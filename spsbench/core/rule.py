"""A rule: how a loop decides which drafted tokens stand, and what it draws behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from spsbench.core.rejection import Accept, Draft
from spsbench.plugins import Options, settled
from spsbench.records import OptionValue, Spec

Expected = Callable[[Tensor, Draft], Tensor]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its options settled.

    Attributes:
        accept: judges a draft by the target's rows and uniform numbers.
        expected: from target rows [>= K, V] and a draft, [K] the probability that a token drawn from the
            draft's row is accepted there if those before it were: what ``beta_sum`` adds up.
    """

    accept: Accept
    expected: Expected


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A rule by name.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, with its source.
        lossless: whether the output keeps the target's law. A lossy rule is called so wherever it shows.
        build: makes one from all options.
        options: their names and defaults.
    """

    name: str
    summary: str
    lossless: bool
    build: Callable[[Options], Rule]
    options: Options = field(default_factory=dict)

    def settled(self, spec: Spec, flag: str = "--rule") -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``plugins.settled``."""
        return settled(self.name, self.options, spec, flag)
