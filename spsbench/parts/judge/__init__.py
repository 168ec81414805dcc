"""Judging programs that a model wrote; see SECURITY.md.

A program and its tests run in a sandbox (``inside``), in a process each: tests call the program's function by
messages, which the judge passes on, and compare plain data.
"""

from spsbench.parts.judge.isolation import IsolationLevel, probe, sandbox_level
from spsbench.parts.judge.judging import judge, judge_all
from spsbench.parts.judge.samples import read_problems, read_samples
from spsbench.parts.judge.verdict import ProgramVerdict

__all__ = [
    "IsolationLevel",
    "ProgramVerdict",
    "judge",
    "judge_all",
    "probe",
    "read_problems",
    "read_samples",
    "sandbox_level",
]
