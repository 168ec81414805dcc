"""What ``--on`` refuses: known within seconds, before anything is loaded or asked."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from commandline import Cli

from spsbench import cluster


def said(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("where", ["slurm", "ray://", "ray://host", "ray://host:port", "ray://:1", "RAY", ""])
def test_what_is_no_place_is_refused(cli: Cli, where: str) -> None:
    refused = cli("run", "xsum", "--on", where)
    assert refused.code == 2
    assert "--on:" in refused.err
    assert "Write ray for this machine or ray://HOST:PORT" in said(refused.err)


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


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (("--until", "ci=5%"), 2, "--until: ci=5% ends a run after a prompt"),
        (("--budget", "60"), 2, "--budget: 60.0 ends a run after a prompt"),
        (("--drafter", "suffix:across=true"), 2, "--on: suffix:across=true proposes what earlier prompts"),
        (("--engine", "eager,worker:'true'"), 2, "--on: worker:true is started, stopped and logged"),
        (("--device-map", "auto"), 2, "--device-map: auto is given together with --on, whose workers"),
        (("--set", "tensor_parallel=2"), 2, "--tensor-parallel: 2 is given together with --on"),
        (("--processes", "2"), 2, "--on: ray is given together with --processes"),
        (("--concurrency", "1,2"), 2, "--on: ray is given together with --concurrency"),
    ],
)
def test_what_cannot_be_spread_is_refused(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], code: int, told: str
) -> None:
    refused = cli("run", "xsum", "--limit", "2", *flags, "--on", "ray", "--out", tmp_path / "run")
    assert refused.code == code, refused.err
    assert told in said(refused.err)
    assert not (tmp_path / "run").exists()
