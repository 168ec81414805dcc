"""Property tests: the same examples in every run of the suite, new ones in ``make soak``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import settings

# Tests of one process share a thread pool of one size, so that "auto" is one thread for all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the suite in the background has it ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a slow machine is not a wrong result.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one process of ``--dist loadgroup``: it is made once.

    Where it has parameters, tests of each value are a group of their own.
    """
    for item in items:
        shared = _shared(item)
        if shared:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {' '.join(shared)}"))


def _shared(item: pytest.Item) -> list[str]:
    """The module of a test, if it has fixtures of that scope, and their parameters."""
    if not isinstance(item, pytest.Function):
        return []
    found = item._fixtureinfo.name2fixturedefs  # pytest has no public way to a fixture's scope
    names = sorted(name for name, defs in found.items() if defs and defs[-1].scope == "module")
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return [item.path.parent.name, *(str(given[name]) for name in names if name in given)] if names else []


@cache
def _bandwidth(device: Any) -> float | None:
    """Of this process, measured by the first command that asks for it."""
    from spsbench.models.memory import measured_bandwidth

    return measured_bandwidth(device)


def pytest_runtest_setup() -> None:
    """Commands of one process share what the first of them measured: a quarter of a small run's time."""
    for name in ("spsbench.runner.execute", "spsbench.bench.study"):
        if name in sys.modules:
            sys.modules[name].measured_bandwidth = _bandwidth  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """As if nobody else had used the CPU: what a run says of a busy machine is tested by itself."""
    from spsbench import environment

    with pytest.MonkeyPatch.context() as patch:
        for name in environment.TAKERS:
            patch.setitem(environment.TAKERS, name, lambda: 0.0)
        patch.setattr(environment, "waited_by", lambda pid: 0.0)
        yield


@pytest.fixture
def quick_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay times few loops and draws few resamples: of the times it is asked that they are there."""
    from spsbench.replay import prediction, rehearsal, study

    monkeypatch.setattr(study, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(rehearsal, "_LOOPS", 8)
    monkeypatch.setattr(rehearsal, "_LEAST_TOKENS", 16)
    monkeypatch.setattr(prediction, "RESAMPLES", 500)
