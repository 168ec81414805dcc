"""The rules that can be named."""

from __future__ import annotations

from spsbench.core import lenience, modified_rejection, sample_and_compare, typical
from spsbench.core.rule import Rule, RuleKind
from spsbench.plugins import find
from spsbench.records import Spec

GROUP = "spsbench.rules"
"""Entry points under this name bring rules of other packages."""

RULES: dict[str, RuleKind] = {
    kind.name: kind
    for kind in (modified_rejection.KIND, sample_and_compare.KIND, lenience.KIND, typical.KIND)
}


def rule_kind(name: str, flag: str = "--rule") -> RuleKind:
    """The rule of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, RULES, GROUP, RuleKind, flag)


def build_rule(spec: Spec) -> Rule:
    """A rule as its spec says."""
    kind = rule_kind(spec.name)
    return kind.build(kind.settled(spec))
