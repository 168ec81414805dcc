"""Property tests: the same examples in every run of the suite, new ones in ``make soak``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadlines: a slow machine is not a wrong result.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """As if nobody else had used the CPU: what a run says of a busy machine is tested by itself."""
    execute = importlib.import_module("spsbench.runner.execute")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("waited_s", "stolen_s"):
            patch.setattr(execute, name, lambda: 0.0)
        yield
