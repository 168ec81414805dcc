"""The drafters that can be named."""

from __future__ import annotations

from spsbench.drafters import early_exit, model, quantised
from spsbench.drafters.drafter import Drafter
from spsbench.drafters.kind import Context, DrafterKind
from spsbench.plugins import find
from spsbench.records import Spec

GROUP = "spsbench.drafters"
"""Entry points under this name bring drafters of other packages."""

DRAFTERS: dict[str, DrafterKind] = {kind.name: kind for kind in (model.KIND, early_exit.KIND, quantised.KIND)}


def drafter_kind(name: str, flag: str = "--drafter") -> DrafterKind:
    """The drafter of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, DRAFTERS, GROUP, DrafterKind, flag)


def build_drafter(spec: Spec, context: Context) -> Drafter:
    """A drafter as its spec says."""
    kind = drafter_kind(spec.name)
    return kind.build(kind.settled(spec), context)
