"""Judging programs that a model wrote; see SECURITY.md.

A program runs in a sandbox (``inside``), its tests outside of it (``check``): the judge calls the
program's function by messages over two pipes and compares plain data.
"""

from spsbench.execution.judging import judge, judge_all
from spsbench.execution.ladder import Rung, probe, sandbox_rung
from spsbench.execution.verdict import Verdict

__all__ = ["Rung", "Verdict", "judge", "judge_all", "probe", "sandbox_rung"]
