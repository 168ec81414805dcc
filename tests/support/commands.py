"""Fixtures of tests of commands: a command line to call, and one small run that many tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commandline import SMALL, Cli, Result, call


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command line in an empty folder, without a hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return call


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of a report take two seconds: none where a test does not ask for ``drawn``."""
    rooms = {"cli", "commands", "project"} & {*request.path.parent.parts[-2:]}
    if rooms and "drawn" not in request.fixturenames:
        monkeypatch.setattr("spsbench.report.figures.FIGURES", {})


@pytest.fixture
def drawn() -> None:
    """Figures are drawn, as for a reader."""


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The directory of a small finished run and what was printed; not to be changed."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    return directory, call("run", "xsum", "--k", "4", *SMALL, "--out", directory)
