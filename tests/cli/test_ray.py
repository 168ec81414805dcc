"""A run spread over two workers of a cluster that Ray starts: token for token that of one process."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli, Result, call, journal

from spsbench.runner import distributed

pytestmark = pytest.mark.thorough

FLAGS = (
    *("--limit", "5", "--max-new-tokens", "16", "--threads", "1", "--set", "trace=1", "--arms", "ars,sps"),
    *("--set", "warmup=false"),
)
SHOWN = ("example_id", "sample_index", "arm", "order", "token_ids", "finish_reason", "losslessness", "trace")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two CPUs in a cluster of Ray's that several runs use: each would start one of its own.

    On a busy machine its workers come late; how late is not what is tested.
    """
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 * 2**20,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "START_S", 3600.0)
        yield
    ray.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run by one process; not to be changed."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    done = call("run", "humaneval", *FLAGS, "--quiet", "--out", directory)
    assert done.code == 0, done.err
    return directory


@pytest.fixture(scope="module")
def spread(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, int]:
    """The same by two workers, one of which is killed; the directory, what was said and who was killed."""
    directory = tmp_path_factory.mktemp("spread") / "run"
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(directory, killed), daemon=True)
    killer.start()
    done = call("run", "humaneval", *FLAGS, "--on", "ray", "--out", directory)
    killer.join(timeout=10)
    assert killed, done.err
    return directory, done, killed[0]


def kill_one(directory: Path, killed: list[int]) -> None:
    """SIGKILL to the worker of the first sequence, as soon as it is on the disk."""
    journal = directory / "samples.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if journal.is_file() and (lines := journal.read_text().splitlines()):
            first = json.loads(lines[0])["conditions"]["worker"]
            process = recorded(directory)["workers"][int(first)]["process"]
            os.kill(process, signal.SIGKILL)
            killed.append(process)
            return
        time.sleep(0.001)


def recorded(directory: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return run


def outputs(directory: Path) -> list[Any]:
    """All that a run's sequences are, without their times and in one order."""
    rows = [[row.get(name) for name in SHOWN] for row in journal(directory)]
    return sorted(rows, key=lambda row: row[:3])


def judged(directory: Path) -> Any:
    summary = json.loads((directory / "summary.json").read_text())
    return [(row["arm"], row["metrics"], row["sequences"], row["failed"]) for row in summary["rows"]]


def cut(run: Path, to: Path, lines: int) -> Path:
    """A copy of a run that ended behind so many sequences."""
    shutil.copytree(run, to)
    kept = (to / "samples.jsonl").read_bytes().splitlines(keepends=True)[:lines]
    (to / "samples.jsonl").write_bytes(b"".join(kept))
    for derived in ("scores.jsonl", "summary.json", "report.md", *(p.name for p in to.glob("*.parquet"))):
        (to / derived).unlink(missing_ok=True)
    return to


def test_a_killed_worker_changes_no_token_and_no_score(alone: Path, spread: tuple[Path, Result, int]) -> None:
    directory, done, killed = spread
    assert done.code == 0, done.err
    assert f":{killed} was lost" in done.err
    assert outputs(directory) == outputs(alone)
    assert judged(directory) == judged(alone)
    assert len(journal(directory)) == 10, "nothing was written twice"
    hashes = [json.loads((run / "summary.json").read_text())["token_sha256"] for run in (directory, alone)]
    assert hashes[0] == hashes[1]
    proofs = [recorded(run)["proof"]["arms"] for run in (directory, alone)]
    assert proofs[0] == proofs[1]


def test_the_comparison_sees_another_seed(alone: Path, cli: Cli, tmp_path: Path) -> None:
    """The control of the test above."""
    flags = ("--seed", "1", "--no-score", "--no-proof", "--quiet")
    assert cli("run", "humaneval", *FLAGS, *flags, "--out", tmp_path / "other").code == 0
    assert outputs(tmp_path / "other") != outputs(alone)


def test_workers_are_recorded_and_all_arms_of_a_prompt_are_one_workers(
    spread: tuple[Path, Result, int],
) -> None:
    directory, done, killed = spread
    workers = recorded(directory)["workers"]
    assert len({worker["process"] for worker in workers}) == 2
    assert all(worker["environment"]["libraries"]["torch"] for worker in workers)
    by_prompt: dict[str, set[float]] = {}
    for row in journal(directory):
        by_prompt.setdefault(row["example_id"], set()).add(row["conditions"]["worker"])
    # The prompt that was cut by the kill is the only one that two workers have a part in.
    assert sum(len(found) > 1 for found in by_prompt.values()) <= 1
    lost = [worker["process"] for worker in workers].index(killed)
    assert {lost} < {int(row["conditions"]["worker"]) for row in journal(directory)}
    conditions = recorded(directory)["conditions"]
    assert [entry["workers_per_machine"] for entry in conditions] == [2]
    assert "times are those of a shared machine" in " ".join(done.out.split())
    assert "## Workers" in (directory / "report.md").read_text()


def test_what_one_process_began_workers_finish(alone: Path, cluster: None, cli: Cli, tmp_path: Path) -> None:
    directory = cut(alone, tmp_path / "run", 5)
    done = cli("run", "--resume", directory, "--on", "ray", "--quiet")
    assert done.code == 0, done.err
    assert outputs(directory) == outputs(alone)
    # Times of a machine that is shared and of one that is not are kept apart.
    assert [row["condition"] for row in journal(directory)] == [0] * 5 + [1] * 5
    summary = json.loads((directory / "summary.json").read_text())
    assert [entry["differ"] for entry in summary["conditions"]] == [
        {"workers_per_machine": 1},
        {"workers_per_machine": 2},
    ]


def test_what_workers_began_one_process_finishes(
    alone: Path, spread: tuple[Path, Result, int], cli: Cli, tmp_path: Path
) -> None:
    directory = cut(spread[0], tmp_path / "run", 3)
    done = cli("run", "--resume", directory, "--quiet")
    assert done.code == 0, done.err
    assert outputs(directory) == outputs(alone)
    assert [row["condition"] for row in journal(directory)] == [0] * 3 + [1] * 7


def test_another_version_is_refused_before_anything_is_measured(
    cluster: None, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process is given other versions than it has: to its workers, theirs are unlike."""
    module = importlib.import_module("spsbench.runner.planning")
    whole = module.describe_environment()
    other = whole | {"libraries": whole["libraries"] | {"torch": "9.9"}, "python": "3.99.0"}
    monkeypatch.setattr(module, "describe_environment", lambda: other)
    refused = cli("run", "xsum", "--threads", "1", "--limit", "1", "--on", "ray", "--out", tmp_path / "run")
    assert refused.code == 2
    said = " ".join(refused.err.split())
    assert "--on: the worker " in said
    assert f"torch {whole['libraries']['torch']} where the run has 9.9" in said
    assert f"python {whole['python']} where the run has 3.99.0" in said
    assert not (tmp_path / "run").exists()


def test_other_data_on_a_worker_is_refused(
    cluster: None, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = importlib.import_module("spsbench.runner.planning").Plan
    whole = plan.identity
    monkeypatch.setattr(plan, "identity", lambda self: whole(self) | {"prompt_sha256": "another"})
    refused = cli("run", "xsum", "--threads", "1", "--limit", "1", "--on", "ray", "--out", tmp_path / "run")
    assert refused.code == 2
    assert "prompt_sha256: another ->" in refused.err
    assert not (tmp_path / "run").exists()


def test_more_threads_than_a_machine_has_are_refused(cluster: None, cli: Cli, tmp_path: Path) -> None:
    refused = cli("run", "xsum", "--threads", "3", "--limit", "1", "--on", "ray", "--out", tmp_path / "run")
    assert refused.code == 2
    assert "--threads: no machine has the 3 CPUs that a worker takes." in " ".join(refused.err.split())
