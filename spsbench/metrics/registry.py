"""Metrics by name: ours, another package's, or a file's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.metrics import exact_match, final_number, rouge
from spsbench.metrics.kind import MetricKind
from spsbench.plugins import find

GROUP = "spsbench.metrics"
"""Entry points under this name bring metrics of other packages."""

METRICS: dict[str, MetricKind] = {
    kind.name: kind for kind in (*rouge.KINDS, exact_match.KIND, final_number.KIND)
}

RESERVED = ("passed", "pass@1", "pass@10", "pass@100")
"""Scores of generated programs: the task runs those itself, in a sandbox."""


def metric_kind(name: str, flag: str = "metrics") -> MetricKind:
    """The metric of a name, ours or another package's; see ``plugins.find`` for what is raised."""
    return find(name, METRICS, GROUP, MetricKind, flag)


def metric_kinds(
    named: Iterable[str | MetricKind], flag: str = "metrics", folder: Path | None = None
) -> tuple[MetricKind, ...]:
    """The metrics of a task.

    Args:
        named: names, or kinds themselves.
        flag: the key of the task that names them.
        folder: where ``file.py:attribute`` is looked for; the current one unless given.

    Raises:
        UsageError: an unknown name, something that is no metric, or a name that is taken.
        UnavailableError: a package or file cannot be imported.
    """
    kinds: dict[str, MetricKind] = {}
    for name in named:
        kind = metric_kind(_placed(name, folder), flag) if isinstance(name, str) else name
        if not isinstance(kind, MetricKind):
            raise UsageError(f"{kind!r:.60} is no metric.", flag=flag, remedy="Give a name or a MetricKind.")
        if kind.name in kinds or kind.name in RESERVED:
            raise UsageError(
                f"the name {kind.name!r} is taken.", flag=flag, remedy="Give every metric a name of its own."
            )
        kinds[kind.name] = kind
    return tuple(kinds.values())


def _placed(name: str, folder: Path | None) -> str:
    return str(folder / name) if folder is not None and ".py:" in name else name


def records(kinds: Iterable[MetricKind]) -> Mapping[str, Mapping[str, object]]:
    """What ``run.json`` keeps of the metrics, so that a report needs no package but ours."""
    return {kind.name: kind.record() for kind in kinds}
