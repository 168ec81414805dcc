"""Commands in an environment that says that several processes were started."""

from __future__ import annotations

import pytest
from support.commandline import Cli

SERVER = ("--engine", "openai:http://127.0.0.1:9/v1", "--concurrency", "1")


@pytest.mark.parametrize("command", ["bench", "paper", "advise", "trace", "report", "verify"])
def test_what_one_process_does_is_refused_of_several(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    refused = cli(command)
    assert refused.code == 2
    assert "2 processes were started, and each would carry out the whole" in refused.err
    assert "without torchrun" in refused.err


@pytest.mark.parametrize("divided", [("--processes", "2"), SERVER])
def test_a_run_that_divides_itself_is_refused_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, divided: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = cli("run", *divided)
    assert refused.code == 2
    assert "each would carry out the whole measurement" in refused.err


def test_what_only_tells_is_done_by_any_number(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli("list", "pairs").code == 0


def test_a_rank_alone_silences_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of other programs set it, too."""
    monkeypatch.setenv("RANK", "3")
    refused = cli("run", "no-such-task")
    assert refused.code == 2
    assert "error: " in refused.err
    assert cli("run", "--no-such-option").code == 2
