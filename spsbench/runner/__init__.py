"""From a configuration to a finished run: plan everything, measure the arms side by side, conclude."""

from __future__ import annotations

from spsbench.runner.conclude import conclude, score
from spsbench.runner.execute import Outcome, Watcher, execute
from spsbench.runner.plan import Plan, plan

__all__ = ["Outcome", "Plan", "Watcher", "conclude", "execute", "plan", "score"]
