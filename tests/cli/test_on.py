"""What ``--on`` refuses: known within seconds, before anything is loaded or asked."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.commandline import Cli

from spsbench.base import cluster


def said(text: str) -> str:
    return " ".join(text.split())


def test_ray_is_named_with_its_extra_where_it_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    refused = cli("run", "xsum", "--on", "ray")
    assert refused.code == 3
    assert "pip install 'spsbench[ray]'" in refused.err


@pytest.fixture
def silent() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_an_address_nobody_answers_at_is_refused(cli: Cli, silent: int, tmp_path: Path) -> None:
    refused = cli("run", "xsum", "--on", f"ray://127.0.0.1:{silent}", "--out", tmp_path / "run")
    assert refused.code == 3
    assert f"cannot connect to ray://127.0.0.1:{silent}" in refused.err
    assert not (tmp_path / "run").exists()


def test_the_cluster_of_the_environment_is_asked_too(
    cli: Cli, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent}")
    refused = cli("run", "xsum", "--on", "ray")
    assert refused.code == 3
    assert f"cannot connect to 127.0.0.1:{silent}" in refused.err


def test_who_does_not_answer_is_waited_for_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is given to the socket; a machine that swallows packets cannot be had in a test."""
    given: list[float] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        given.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    began = time.monotonic()
    with pytest.raises(cluster.UnavailableError, match="timed out"):
        cluster.require_cluster("ray://swallowing:10001")
    assert given == [5.0]
    assert time.monotonic() - began < 5
