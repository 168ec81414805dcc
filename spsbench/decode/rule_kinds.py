"""Rules by name: options, and whether they are lossless. The code is imported when a rule is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spsbench.plugins import Check, Options, deferred, find, settled, together, within
from spsbench.records import OptionValue, Spec

if TYPE_CHECKING:
    from spsbench.decode.rules import Rule


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A rule by name.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, with its source.
        lossless: whether the output keeps the target's law. A lossy rule is called so wherever it shows.
        build: makes one from all options.
        options: their names and defaults.
        check: what their values must be.
    """

    name: str
    summary: str
    lossless: bool
    build: Callable[[Options], Rule]
    options: Options = field(default_factory=dict)
    check: Check | None = None

    def settled(self, spec: Spec, flag: str = "--rule") -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``plugins.settled``."""
        return settled(self.name, self.options, spec, flag, self.check)


MODIFIED_REJECTION = RuleKind(
    name="modified-rejection",
    summary="Accept with probability min(1, target/draft), else draw from the residual (Chen et al. 2023).",
    lossless=True,
    build=deferred("spsbench.decode.rules:modified_rejection"),
)

SAMPLE_AND_COMPARE = RuleKind(
    name="sample-and-compare",
    summary="Draw the target's own token; the draft's stands if it is the same (llama.cpp, prompt lookup).",
    lossless=True,
    build=deferred("spsbench.decode.rules:sample_and_compare"),
)

LENIENCE = RuleKind(
    name="lenience",
    summary="Accept with probability min(1, target/(l draft)): faster, not the target's law "
    "(Leviathan et al. 2022, A.5).",
    lossless=False,
    build=deferred("spsbench.decode.rules:lenience"),
    options={"l": 0.9},
    check=within("lenience", "l", 0, 1, above=True),
)

TYPICAL_ACCEPTANCE = RuleKind(
    name="typical-acceptance",
    summary="Accept what the target finds likely enough for its entropy: not the target's law "
    "(Medusa, Cai et al. 2024).",
    lossless=False,
    build=deferred("spsbench.decode.rules:typical_acceptance"),
    options={"epsilon": 0.3, "delta": 0.09},
    check=together(*(within("typical-acceptance", name, 0, 1, above=True) for name in ("epsilon", "delta"))),
)

GROUP = "spsbench.rules"
"""Entry points under this name bring rules of other packages."""

RULES: dict[str, RuleKind] = {
    kind.name: kind for kind in (MODIFIED_REJECTION, SAMPLE_AND_COMPARE, LENIENCE, TYPICAL_ACCEPTANCE)
}


def rule_kind(name: str, flag: str = "--rule") -> RuleKind:
    """The rule of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, RULES, GROUP, RuleKind, flag)
