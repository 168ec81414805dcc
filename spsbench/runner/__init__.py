"""From a configuration to a finished run: plan everything, measure the arms in turns, finalize."""

from __future__ import annotations

from spsbench.runner.distributed import execute_on
from spsbench.runner.execute import Outcome, execute, require_continuable
from spsbench.runner.finalize import finalize, score
from spsbench.runner.plan import Plan, Watcher, plan

__all__ = [
    "Outcome",
    "Plan",
    "Watcher",
    "execute",
    "execute_on",
    "finalize",
    "plan",
    "require_continuable",
    "score",
]
