"""What is predicted: a drafter of a pair with its rules, and one cell of it with a K."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spsbench.base import FIXED, MODIFIED_REJECTION, Spec
from spsbench.drafters import DRAFT, drafter_kind
from spsbench.models import Pair
from spsbench.parts.whatif.replay.trees import StaticTree, tree_of

_FIXED = Spec(FIXED)


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

    def cells(self, rules: Sequence[str], ks: Sequence[int]) -> Iterator[Cell]:
        """Every rule and K; a tree has its depth for K."""
        for rule in self.rules or rules:
            for k in ks if self.tree is None else (self.tree.shape.depth(0),):
                yield Cell(self, k, rule)

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
class Cell:
    """A drafter under one rule with one K: what is predicted, and of which loops are timed."""

    sought: Sought
    k: int
    rule: str = MODIFIED_REJECTION
    policy: Spec = _FIXED

    @property
    def name(self) -> str:
        """Of the drafter, whatever its rule."""
        return self.sought.name

    @property
    def label(self) -> str:
        """The drafter's name, with its rule where that is not modified rejection."""
        return under(self.name, self.rule)

    @property
    def drafter(self) -> Spec:
        return self.sought.drafter

    @property
    def draft(self) -> str:
        return self.sought.draft

    @property
    def tree(self) -> StaticTree | None:
        return self.sought.tree

    @property
    def nodes(self) -> int:
        """Number of tokens that a loop drafts at most."""
        return self.k if self.tree is None else self.tree.shape.nodes


def under(name: str, rule: str) -> str:
    """Return a drafter's name with its rule, unless that is modified rejection."""
    return name if rule == MODIFIED_REJECTION else f"{name}, {rule}"
