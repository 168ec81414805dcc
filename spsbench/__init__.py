"""spsbench: speculative sampling against plain sampling, measured side by side.

The names that other programs use are here; each is imported when it is first asked for, so that
``import spsbench`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "Context": "spsbench.drafters.registry",
    "Draft": "spsbench.decode.rejection",
    "Drafter": "spsbench.decode.protocols",
    "DrafterKind": "spsbench.drafters.registry",
    "Example": "spsbench.base.records",
    "MetricKind": "spsbench.tasks.metrics.kind",
    "Rule": "spsbench.decode.rules",
    "RuleKind": "spsbench.drafters.registry",
    "Run": "spsbench.api",
    "SamplingParams": "spsbench.base.records",
    "TaskKind": "spsbench.tasks.kind",
    "Verdict": "spsbench.decode.rejection",
    "run": "spsbench.api",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'spsbench' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
