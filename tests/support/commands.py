"""Fixtures of tests of commands: a command line to call, and one small run that many tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import SMALL, Cli, Result, call
from support.drawing import all_figures, no_figures


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command line in an empty folder, without a hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return call


@pytest.fixture(scope="session", autouse=True)
def undrawn() -> Iterator[None]:
    """The figures of a run take two seconds: none where a test does not ask for ``drawn``."""
    with no_figures():
        yield


@pytest.fixture
def drawn() -> Iterator[None]:
    """Figures are drawn, as for a reader."""
    with all_figures():
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The directory of a small finished run and what was printed; not to be changed."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    return directory, call("run", "xsum", "--k", "4", *SMALL, "--out", directory)
