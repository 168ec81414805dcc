"""Metrics by name: built in, from another package, or from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from spsbench.errors import SpsbenchError, UsageError
from spsbench.metrics import bleu, exact_match, final_number, rouge
from spsbench.metrics.evaluated import PREFIX, evaluated_metric
from spsbench.metrics.kind import MetricKind
from spsbench.plugins import find

GROUP = "spsbench.metrics"
"""Entry points under this name bring metrics of other packages."""

METRICS: dict[str, MetricKind] = {
    kind.name: kind for kind in (*rouge.KINDS, bleu.KIND, exact_match.KIND, final_number.KIND)
}

RESERVED = ("passed", "pass@1", "pass@10", "pass@100")
"""Scores of generated programs: the task runs those itself, in a sandbox."""


def metric_kind(name: str, flag: str = "metrics") -> MetricKind:
    """The metric of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, METRICS, GROUP, MetricKind, flag)


def metric_kinds(
    named: Iterable[str | MetricKind], flag: str = "metrics", folder: Path | None = None
) -> tuple[MetricKind, ...]:
    """The metrics of a task."""
    kinds: dict[str, MetricKind] = {}
    for name in named:
        kind = _named(name, flag, folder) if isinstance(name, str) else name
        if not isinstance(kind, MetricKind):
            raise UsageError(
                f"{kind!r:.60} is not a metric.", flag=flag, remedy="Give a name or a MetricKind."
            )
        if kind.name in kinds or kind.name in RESERVED:
            raise UsageError(
                f"the name {kind.name!r} is taken.", flag=flag, remedy="Give every metric its own name."
            )
        kinds[kind.name] = kind
    return tuple(kinds.values())


def _named(name: str, flag: str, folder: Path | None) -> MetricKind:
    if name.startswith(PREFIX):
        return evaluated_metric(name, flag, folder)
    return metric_kind(_placed(name, folder), flag)


def _placed(name: str, folder: Path | None) -> str:
    return str(folder / name) if folder is not None and ".py:" in name else name


def records(kinds: Iterable[MetricKind]) -> Mapping[str, Mapping[str, object]]:
    """What ``run.json`` keeps of the metrics, so that a report needs no package but ours."""
    return {kind.name: kind.record() for kind in kinds}


def installed(name: str) -> MetricKind | None:
    """The metric of a name, ours or an installed package's; None if there is none.

    A file's metric is none of these: the name may come from somebody else's run, whose files a report does
    not execute.
    """
    if ":" in name:
        return None
    try:
        return metric_kind(name)
    except SpsbenchError:
        return None
