"""Static trees of drafts to replay: which drafters have one, under which rules, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from spsbench.base import ONE_HOT, RECURSIVE, Spec, UsageError
from spsbench.drafters import SIBLINGS, TREE, Shape, shape_in, shape_of

WITHOUT, INDEPENDENT, TOP = SIBLINGS
_USUAL = {ONE_HOT: TOP, "sample-and-compare": TOP, "traversal": TOP, RECURSIVE: WITHOUT}
"""Siblings of each rule whose law over a text is known, unless the drafter says which."""
_ALSO = {(RECURSIVE, TOP), (RECURSIVE, INDEPENDENT)}

TREE_RULES = tuple(_USUAL)

_DRAFTERS = ("model", "early-exit", "quantised")
"""Those whose row at a place depends on the tokens before it alone."""

_FLAG, _SIBLINGS = "--tree", "siblings"


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A drafter's static tree."""

    drafter: Spec
    shape: Shape
    siblings: str

    def __str__(self) -> str:
        return f"{self.drafter}, tree {','.join(map(str, self.shape.branching))}"

    @property
    def spec(self) -> Spec:
        """The drafter as an arm has it."""
        options = {TREE: str(self.shape), _SIBLINGS: self.siblings}
        return replace(self.drafter, options=tuple(sorted((dict(self.drafter.options) | options).items())))

    @property
    def rows(self) -> tuple[int, ...]:
        """[depth] number of rows of each forward of the draft: the nodes whose children are wanted."""
        return tuple(accumulate(self.shape.branching[:-1], mul, initial=1))


def tree_of(spec: Spec) -> StaticTree | None:
    """Return the tree of a drafter that has one."""
    options = dict(spec.options)
    if TREE not in options:
        return None
    text, siblings = str(options.pop(TREE)), str(options.pop(_SIBLINGS, SIBLINGS[0]))
    shape = shape_of(text, _FLAG)
    return (
        None if shape is None else StaticTree(replace(spec, options=tuple(options.items())), shape, siblings)
    )


def shapes_of(text: str | None) -> list[Shape]:
    """Read ``chain+4,2,1+2,2`` as static trees, each once; chains are replayed in any case."""
    parts = [] if text is None else text.split("+")
    shapes = [shape for part in parts if (shape := shape_of(part, _FLAG)) is not None]
    for shape in shapes:
        if shape.dynamic:
            raise UsageError(
                f"{text} has a dynamic tree, whose nodes no text gives: the draft decides them as it drafts.",
                flag=_FLAG,
                remedy="Give a static tree, e.g. 4,2,1, or measure it with spsbench run.",
            )
    return list(dict.fromkeys(shapes))


def trees_of(
    drafters: Sequence[Spec], shapes: Sequence[Shape], rules: Sequence[str]
) -> dict[Spec, tuple[str, ...]]:
    """Return the trees of the drafters that have one, each with the rules whose law over a text is known.

    Raises:
        UsageError: no drafter has one, or a rule's law over a text is not known for its siblings.
    """
    for drafter in drafters:
        if (named_shape := shape_in(drafter)) is not None:
            widths = ",".join(map(str, named_shape.branching or (named_shape,)))
            raise UsageError(
                f"{drafter} has a tree of its own; shapes are replayed beside chains.",
                flag="--drafter",
                remedy=f"Leave it out there, and give --tree {widths}.",
            )
    rules_of: dict[Spec, tuple[str, ...]] = {}
    for drafter in (each for each in drafters if each.name in _DRAFTERS):
        options = dict(drafter.options)
        named = options.pop(_SIBLINGS, None)
        for shape in shapes:
            for rule in rules:
                siblings = str(named or _USUAL[rule])
                if siblings != _USUAL[rule] and (rule, siblings) not in _ALSO:
                    raise UsageError(
                        f"{rule} with siblings={siblings} cannot be replayed: no law of it is known.",
                        flag="--rule",
                        remedy=f"Choose {RECURSIVE}, or siblings={_USUAL[rule]}.",
                    )
                tree = StaticTree(replace(drafter, options=tuple(options.items())), shape, siblings)
                rules_of[tree.spec] = (*rules_of.get(tree.spec, ()), rule)
    if shapes and not rules_of:
        raise UsageError(
            f"no tree of {', '.join(map(str, drafters))} can be replayed.",
            flag=_FLAG,
            remedy=f"Add --drafter {_DRAFTERS[0]}: a text gives the rows of {', '.join(_DRAFTERS)}.",
        )
    return rules_of
