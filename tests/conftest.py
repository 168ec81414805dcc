"""Property tests: the same examples in every run of the suite, new ones in ``make soak``."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import durations
from support.commands import cli, drawn, finished, undrawn  # noqa: F401  # fixtures of every folder
from support.loaded import share_models, share_tokenizers
from support.metric_scripts import write_script
from support.tiers import divide

# Tests of one process share a thread pool of one size, so that "auto" is one thread for all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the suite in the background has it ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines, of drawing neither: a slow or paused machine is not a wrong result.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", unhurried, derandomize=True)
settings.register_profile("exploring", unhurried, derandomize=False, print_blob=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    durations.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    durations.register(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports leave no garbage to speak of: it is not looked for meanwhile, nor among what they made later.

    That took a fifth of the collection's CPU time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@cache
def _bandwidth(device: Any) -> float | None:
    """Of this process, measured by the first command that asks for it."""
    from spsbench.models.memory import measured_bandwidth

    return measured_bandwidth(device)


def pytest_runtest_setup() -> None:
    """Commands of one process share what the first of them measured, and the models that it loaded: half of a
    small run's time.

    And none is timed for half a minute more, which one test asks for.
    """
    if "spsbench.models.loading" in sys.modules:
        share_models(sys.modules["spsbench.models.loading"])
    if "spsbench.models.source" in sys.modules:
        share_tokenizers(sys.modules["spsbench.models.source"])
    if "spsbench.runner.remeasure" in sys.modules:
        sys.modules["spsbench.runner.remeasure"].LEAST_S = 0.0  # type: ignore[attr-defined]
    for name in ("spsbench.runner.execution", "spsbench.parts.whatif.bench.study"):
        if name in sys.modules:
            sys.modules[name].measured_bandwidth = _bandwidth  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)  # before ``-m`` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    divide(config, items)


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """As if nobody else had used the CPU: what a run says of a busy machine is tested by itself."""
    from spsbench.base import environment

    with pytest.MonkeyPatch.context() as patch:
        for name in environment.TAKERS:
            patch.setitem(environment.TAKERS, name, lambda: 0.0)
        patch.setattr(environment, "waited_by", lambda pid: 0.0)
        patch.setattr(environment, "busy", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _versions_read_once() -> Iterator[None]:
    """What is installed stays so; every run writes it down, by reading the description of each library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", cache(metadata.version))
        yield


@pytest.fixture(scope="session", autouse=True)
def _typed_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests type is not remembered for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def evaluate_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What evaluate copies of metric scripts lies in one folder: it stays on the path once it is there."""
    from evaluate import config

    folder = str(tmp_path_factory.mktemp("evaluate"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "HF_MODULES_CACHE", folder)
        yield


@pytest.fixture
def metric_script(evaluate_modules: None, tmp_path: Path) -> Callable[[str, str], Path]:
    """``(name, answer) -> path`` of a metric script, see ``metric_scripts``."""
    return partial(write_script, tmp_path)


@pytest.fixture(scope="module")
def quick_rehearsals() -> Iterator[None]:
    """Replay times few loops and draws few resamples: of the times it is asked that they are there."""
    from spsbench.parts.whatif.replay import advice, rehearsal, study, times

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "LEAST_ROUNDS", 2)
        patch.setattr(rehearsal, "LEAST_ROUNDS", 2)
        patch.setattr(advice, "LEAST_ROUNDS", 2)
        patch.setattr(rehearsal, "_LOOPS", 8)
        patch.setattr(rehearsal, "_LEAST_TOKENS", 16)
        patch.setattr(times, "RESAMPLES", 500)
        yield
