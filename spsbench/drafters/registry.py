"""The drafters that can be named."""

from __future__ import annotations

from spsbench.decode.protocols import Drafter
from spsbench.drafters import early_exit, lookup, model, ngram, quantised, suffix, union
from spsbench.drafters.checked import CheckedDrafter
from spsbench.drafters.kind import Context, DrafterKind
from spsbench.plugins import find
from spsbench.records import Spec

GROUP = "spsbench.drafters"
"""Entry points under this name bring drafters of other packages."""

_OURS = (
    model.KIND,
    lookup.KIND,
    suffix.KIND,
    ngram.KIND,
    ngram.UNIGRAM,
    ngram.BIGRAM,
    early_exit.KIND,
    quantised.KIND,
    union.KIND,
)
DRAFTERS: dict[str, DrafterKind] = {kind.name: kind for kind in _OURS}


def drafter_kind(name: str, flag: str = "--drafter") -> DrafterKind:
    """The drafter of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, DRAFTERS, GROUP, DrafterKind, flag)


def build_drafter(spec: Spec, context: Context) -> Drafter:
    """A drafter as its spec says; what one that is not ours proposes is checked."""
    kind = drafter_kind(spec.name)
    drafter = kind.build(kind.settled(spec), context)
    return drafter if kind.name in DRAFTERS else CheckedDrafter(drafter, spec.name, context.vocab_size)
