"""Drafters by name, with their options. The code is imported when a drafter is built."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from spsbench.drafters.kind import DRAFT, HIDDEN, WEIGHTS, Context, DrafterKind
from spsbench.errors import SpsbenchError, UsageError
from spsbench.plugins import Options, deferred, find, one_of, within
from spsbench.records import Spec

if TYPE_CHECKING:
    from spsbench.decode.protocols import Drafter
    from spsbench.models.source import ModelSource

GROUP = "spsbench.drafters"
"""Entry points under this name bring drafters of other packages."""


SHIPPED = "embedded:smollm2/head"
"""The head that is used unless another is named: for the target of the pair smollm2."""


def _lengths(options: Options, flag: str) -> None:
    max_n, min_n = int(options["max_n"]), int(options["min_n"])
    if not 1 <= min_n <= max_n:
        raise UsageError(
            f"lookup:max_n={max_n}:min_n={min_n} is not valid.",
            flag=flag,
            remedy="Give min_n of at least 1 and max_n of at least min_n, e.g. lookup:max_n=3:min_n=1.",
        )


def members(options: Options) -> list[tuple[Spec, DrafterKind]]:
    """The drafters of a union, each with its default options: their colons would be taken for the union's.

    Raises:
        UsageError: one of them is unknown, or a union itself.
    """
    names = str(options["of"]).split("+")
    if UNION in names:
        raise UsageError(
            "union:of=union is not valid.", flag="--drafter", remedy="Name other drafters, e.g. lookup+model."
        )
    return [(Spec(name), drafter_kind(name)) for name in names]


def parts_of(spec: Spec) -> list[Spec]:
    """The members of a union; else the drafter itself."""
    return [own for own, _ in members(drafter_kind(UNION).settled(spec))] if spec.name == UNION else [spec]


def _needs_of_members(options: Options) -> frozenset[str]:
    return frozenset().union(*(kind.needs for _, kind in members(options)))


def _content_of_members(options: Options) -> str | None:
    found = [kind.content_of(spec) for spec, kind in members(options)]
    return "+".join(content for content in found if content is not None) or None


def _suits_members(options: Options, target: ModelSource) -> None:
    for spec, kind in members(options):
        kind.require_target(spec, target)


UNION = "union"

_OURS = (
    DrafterKind(
        name="model",
        summary="The pair's draft model, sampled token by token (Chen et al. 2023).",
        build=deferred("spsbench.drafters.model:build"),
        needs=frozenset({DRAFT}),
        adaptive=True,
        forwards=lambda k: k,
    ),
    DrafterKind(
        name="lookup",
        summary="Copies what followed the last n tokens earlier in the sequence "
        "(prompt lookup, Saxena 2023).",
        build=deferred("spsbench.drafters.lookup:build"),
        options={"max_n": 3, "min_n": 1},
        check=_lengths,
        point_mass=True,
    ),
    DrafterKind(
        name="suffix",
        summary="Copies what followed the longest suffix of the sequence that occurred before.",
        build=deferred("spsbench.drafters.suffix:build"),
        options={"min_length": 1, "across": False},
        check=within("suffix", "min_length", 1, inf),
        point_mass=True,
        remembers=lambda options: bool(options["across"]),
    ),
    DrafterKind(
        name="ngram",
        summary="An n-gram model of the run's prompts and the sequence so far, sampled "
        "(Leviathan et al. 2022).",
        build=deferred("spsbench.drafters.ngram:build"),
        options={"order": 3, "adapt": True},
        check=within("ngram", "order", 1, inf),
    ),
    DrafterKind(
        name="unigram",
        summary="The n-gram drafter of order 1: token frequencies alone.",
        build=deferred("spsbench.drafters.ngram:build_unigram"),
        options={"adapt": True},
    ),
    DrafterKind(
        name="bigram",
        summary="The n-gram drafter of order 2 (Leviathan et al. 2022, Table 3).",
        build=deferred("spsbench.drafters.ngram:build_bigram"),
        options={"adapt": True},
    ),
    # `forwards` of the next three is 0: they run none of the pair's draft model, but a model of their own;
    # see `forward_bytes` of the drafter.
    DrafterKind(
        name="early-exit",
        summary="The target's first layers under its own norm and head; layers=0 is a quarter of them.",
        build=deferred("spsbench.drafters.early_exit:build"),
        options={"layers": 0},
        check=within("early-exit", "layers", 0, inf),
        again=deferred("spsbench.drafters.early_exit:again"),
        needs=frozenset({WEIGHTS}),
    ),
    DrafterKind(
        name="quantised",
        summary="The target with its weights rounded to bits=8 or bits=4, by blocks of 32.",
        build=deferred("spsbench.drafters.quantised:build"),
        options={"bits": 8},
        check=one_of("quantised", "bits", 8, 4),
        needs=frozenset({WEIGHTS}),
    ),
    DrafterKind(
        name="heads",
        summary="Heads that were trained on the target's hidden states (EAGLE, Medusa), from=FOLDER.",
        build=deferred("spsbench.drafters.heads:build"),
        options={"from": SHIPPED, "bits": 0},
        check=one_of("heads", "bits", 0, 8, 4),
        needs=frozenset({WEIGHTS, HIDDEN}),
        content=deferred("spsbench.drafters.heads:content"),
        suits=deferred("spsbench.drafters.heads:suits"),
        again=deferred("spsbench.drafters.heads:again"),
    ),
    DrafterKind(
        name=UNION,
        summary="The first of several drafters that has a proposal; the draft model runs only "
        "when it is asked.",
        build=deferred("spsbench.drafters.union:build"),
        options={"of": "lookup+model"},
        needs=frozenset({DRAFT}),
        needs_by=_needs_of_members,
        content=_content_of_members,
        suits=_suits_members,
        remembers=lambda options: any(kind.outlives(spec) for spec, kind in members(options)),
        # At most: a loop in which an earlier member proposed costs none.
        forwards=lambda k: k,
    ),
)
DRAFTERS: dict[str, DrafterKind] = {kind.name: kind for kind in _OURS}


def drafter_kind(name: str, flag: str = "--drafter") -> DrafterKind:
    """The drafter of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, DRAFTERS, GROUP, DrafterKind, flag)


def is_ours(spec: Spec) -> bool:
    """Whether a drafter, and every member of a union, is one that comes with spsbench."""
    kind = drafter_kind(spec.name)
    if kind is not DRAFTERS.get(spec.name):
        return False
    return kind.name != UNION or all(is_ours(member) for member, _ in members(kind.settled(spec)))


def build_drafter(spec: Spec, context: Context) -> Drafter:
    """A drafter as its spec says; what one that is not ours proposes is checked.

    Raises:
        UsageError: an option it does not have or a value it does not take.
        DrafterFault: one that is not ours raised something else while it was built.
    """
    return built(drafter_kind(spec.name), spec, context)


def built(kind: DrafterKind, spec: Spec, context: Context) -> Drafter:
    """``build_drafter`` where the kind is at hand; the spec's name is what faults are reported under."""
    from spsbench.drafters.checked import CheckedDrafter, raised_by

    options = kind.settled(spec)
    if DRAFTERS.get(kind.name) is kind:
        return kind.build(options, context)
    try:
        drafter = kind.build(options, context)
    except SpsbenchError:
        raise
    except Exception as error:
        raise raised_by(spec.name, error) from error
    return CheckedDrafter(drafter, spec.name, context.vocab_size)
