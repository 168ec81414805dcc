"""CPU-seconds by file of tests: written as JSON, and the slowest printed. No test fails for them.

They are a process's own and those of the processes that it has waited for, so that what else the machine does
is not in them. What a shared fixture takes counts for the file that needs it first.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SHOWN = 10
"""So many files are printed, and all above ``LONG_S``."""

LONG_S = 30.0
"""A file above this is named: some cases belong into the thorough tier, or a fixture is too large."""

COLLECTION = "collection"


def spent_s() -> float:
    """CPU-seconds of this process and of those that it has waited for."""
    times = os.times()
    return sum(times[:4])


def table(by_file: Counter[str], budget_s: float) -> list[str]:
    """The sum beside what it may be, and the slowest files."""
    slow = [
        (name, seconds)
        for place, (name, seconds) in enumerate(by_file.most_common())
        if place < SHOWN or seconds > LONG_S
    ]
    total = by_file.total()
    over = f", {total - budget_s:.0f} too many" if total > budget_s else ""
    lines = [f"{total:7.1f}  sum; at most {budget_s:g} are wanted{over}"]
    for name, seconds in slow:
        too_long = seconds > LONG_S and name != COLLECTION
        lines.append(f"{seconds:7.1f}  {name}{f'  (above {LONG_S:g})' if too_long else ''}")
    return lines


class Durations:
    """Counts in every process; the first one writes and prints."""

    def __init__(self, path: Path, budget_s: float) -> None:
        self.path, self.budget_s = path, budget_s
        self.by_file: Counter[str] = Counter()
        self.last_s = 0.0
        self.collection_s = 0.0

    def pytest_collection_finish(self) -> None:
        self.last_s = self.collection_s = spent_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        """What was spent since the report before goes with this one, also from a worker."""
        report = yield
        now = spent_s()
        report.cpu_s, self.last_s = now - self.last_s, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.by_file[report.nodeid.split("::")[0]] += report.cpu_s

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.by_file[COLLECTION] += getattr(node, "workeroutput", {}).get(COLLECTION, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[COLLECTION] = self.collection_s
            return
        self.by_file[COLLECTION] += self.collection_s
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rounded = {name: round(seconds, 2) for name, seconds in self.by_file.most_common()}
        self.path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU-seconds by file")
        for line in table(self.by_file, self.budget_s):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"all of them: {self.path}")


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("CPU-seconds by file of tests")
    group.addoption(
        "--cpu-seconds", type=Path, metavar="FILE", help="Write them there, and print the slowest."
    )
    group.addoption("--cpu-budget", type=float, default=600.0, metavar="S", help="What their sum may be.")


def register(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(Durations(path, config.getoption("--cpu-budget")))
