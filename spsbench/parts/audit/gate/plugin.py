"""The plugin: a test fails where an engine's texts are not the target's, or where that stays open.

Every pytest of an environment loads this file, so it imports pytest and the standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spsbench.parts.audit.gate.audits import Engine

_BUDGETS = {
    "texts": "most texts of a setting, 320 unless given; plain sampling takes 80",
    "seconds": "most seconds of a setting, 120 unless given",
}
_SAID, _TABLE = "lossless", "lossless_table"
"""User properties of a test: they reach the first process of pytest-xdist, and JUnit's XML."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for budgets, which an engine's ini file may set too, and for the report."""
    group = parser.getgroup("lossless", "audits of engines (spsbench)")
    for name, text in _BUDGETS.items():
        group.addoption(f"--lossless-{name}", metavar="N", help=f"lossless_engine: {text}")
        parser.addini(f"lossless_{name}", f"lossless_engine: {text}")
    group.addoption("--lossless-report", metavar="FILE", help="append what was found to FILE, as Markdown")


def pytest_configure(config: pytest.Config) -> None:
    text = "lossless(engine=..., **options): what lossless_engine audits, with options of `spsbench audit`"
    config.addinivalue_line("markers", text)


@pytest.fixture
def lossless_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., None]:
    """Audit an engine, of the marker or given here, and fail unless it is lossless.

    Options are, from weak to strong, those of the ini file, of markers, given here, and of the command line.
    """
    config = request.config
    marks = list(request.node.iter_markers("lossless"))

    def check(engine: Engine | None = None, **options: Any) -> None:
        __tracebackhide__ = True
        from spsbench.parts.audit.gate.audits import audited

        settings: dict[str, Any] = {name: config.getini(f"lossless_{name}") or None for name in _BUDGETS}
        for mark in reversed(marks):
            settings |= mark.kwargs | ({"engine": mark.args[0]} if mark.args else {})
        typed = {name: config.getoption(f"lossless_{name}") for name in _BUDGETS}
        settings |= options | {name: value for name, value in typed.items() if value is not None}
        engine = engine or settings.pop("engine", None)
        # A new folder each time: an audit goes on with the texts of its folder, whoever wrote them.
        audit = audited(engine, settings, tmp_path_factory.mktemp("lossless"), request.node.nodeid)
        request.node.user_properties += [(_SAID, audit.said), (_TABLE, audit.table)]
        if audit.is_red:
            pytest.fail(audit.said, pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print findings of tests that passed, and append all findings to the report."""
    reports = [each for some in terminalreporter.stats.values() for each in some]
    tests = [each for each in reports if _SAID in dict(getattr(each, "user_properties", ()))]
    tests = [each for each in tests if each.when == "call"]
    lines = ["# Lossless?"] if tests else ["# Lossless?", "", "No engine was audited."]
    if any(each.passed for each in tests):
        terminalreporter.section("lossless")
    for test in tests:
        for (_, sentences), (_, table) in zip(*_properties(test), strict=True):
            if test.passed:  # what failed is printed as a failure
                terminalreporter.write_line(f"{test.nodeid}:\n{sentences}")
            lines += ["", f"## {test.nodeid}: {test.outcome}", "", table, "", "```", sentences, "```"]
    if file := config.getoption("lossless_report"):
        with Path(file).open("a", encoding="utf-8") as report:
            report.write("\n".join(lines) + "\n")


def _properties(report: pytest.TestReport) -> list[list[tuple[str, object]]]:
    return [[each for each in report.user_properties if each[0] == name] for name in (_SAID, _TABLE)]
