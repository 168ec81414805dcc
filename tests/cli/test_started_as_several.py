"""Commands in an environment that says that several processes were started."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli

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


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("run", "--draft-placement", "first"), "--draft-placement: first says where the draft of a split"),
        (("run", "--processes", "2", "--set", "tensor_parallel=2"), "2 is given together with --processes"),
        (("verify", "--engine", "worker:true", "--quantise", "int8"), "--quantise: int8 is given together"),
        (("verify", "--engine", "worker:true", "--draft-quantise", "int4"), "int4 is given"),
        (("verify", "--engine", "worker:true", "--tensor-parallel", "2"), "--tensor-parallel: 2 is given"),
        (("run", *SERVER, "--batch", "2"), "--batch: 2 has no effect"),
        (("run", *SERVER, "--draft-placement", "first"), "--draft-placement: first has no effect"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    cli: Cli, tmp_path: Path, typed: tuple[str, ...], said: str
) -> None:
    out = () if typed[0] == "verify" else ("--out", tmp_path / "run")
    refused = cli(*typed, *out)
    assert refused.code == 2, refused.err
    assert said in refused.err
    assert not (tmp_path / "run").exists()
