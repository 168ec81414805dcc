"""The same settings give the same tokens; other threads, backends or versions are never mixed in silence."""

from __future__ import annotations

import importlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Cli, Result, journal

from benchmarks.architectures import saved
from spsbench.base.errors import SpsbenchError
from spsbench.models import memory
from spsbench.runner import models

conditions = importlib.import_module("spsbench.runner.conditions")
FLAGS = (*BRIEF, "--max-new-tokens", "6", "--set", "warmup=false", "--set", "trace=0", "--quiet")


def evidence(directory: Path) -> list[Any]:
    return [
        (row["example_id"], row["arm"], row["token_ids"], row["losslessness"]) for row in journal(directory)
    ]


def recorded(directory: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return run


def skewed(factor: float) -> Callable[[], float]:
    """A clock on which each wait lasts ``factor`` times the one before.

    Whoever times two things in turn finds the first faster if it is above 1, the second if below.
    """
    state = [0.0, 1.0]

    def now() -> float:
        state[0] += state[1]
        state[1] = min(max(state[1] * factor, 1e-9), 1e9)
        return state[0]

    return now


@pytest.mark.thorough
def test_no_clock_has_a_say_in_the_numbers(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that time the machine differently: a choice by timing would be opposite in them."""
    found = []
    for factor in (1.05, 1 / 1.05):
        with monkeypatch.context() as patched:
            patched.setattr(time, "perf_counter", skewed(factor))
            result = cli("run", "xsum", "--limit", "1", *FLAGS, "--out", tmp_path / f"{factor}")
        assert result.code == 0, result.err
        found.append((evidence(tmp_path / f"{factor}"), recorded(tmp_path / f"{factor}")["conditions"]))
    assert found[0] == found[1]


@pytest.mark.thorough
def test_the_comparison_of_evidence_sees_another_backend(cli: Cli, tmp_path: Path) -> None:
    """The control of the test above: other kernels do change the last bits."""
    for backend in ("onnxruntime", "torch"):
        done = cli(
            *("run", "xsum", "--limit", "1", "--threads", "1", *FLAGS),
            *("--backend", backend, "--out", tmp_path / backend),
        )
        assert done.code == 0, done.err
        assert [entry["backend"] for entry in recorded(tmp_path / backend)["conditions"]] == [backend]
    assert evidence(tmp_path / "onnxruntime") != evidence(tmp_path / "torch")


@pytest.mark.thorough
def test_the_backend_comes_from_the_environment_unless_given(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPSBENCH_BACKEND", "torch")
    for name, given in (("a", ()), ("b", ("--backend", "auto"))):
        assert cli("run", "xsum", "--limit", "1", *FLAGS, *given, "--out", tmp_path / name).code == 0
    found = [recorded(tmp_path / name)["conditions"][0]["backend"] for name in "ab"]
    assert found == ["torch", "onnxruntime"]
    monkeypatch.setenv("SPSBENCH_BACKEND", "fast")
    refused = cli("run", "xsum")
    assert refused.code == 2
    assert "SPSBENCH_BACKEND: fast is unknown. Choose from auto, onnxruntime, torch, inductor." in refused.err


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one prompt on one thread; not to be changed."""
    from support.commandline import call

    directory = tmp_path_factory.mktemp("short") / "run"
    assert call("run", "xsum", "--limit", "1", "--threads", "1", *FLAGS, "--out", directory).code == 0
    return directory


def further(cli: Cli, directory: Path, *flags: object, quiet: bool = True) -> Result:
    common = FLAGS if quiet else FLAGS[:-1]
    return cli("run", "xsum", "--limit", "2", *common, "--out", directory, *flags)


def test_other_threads_are_refused_and_nothing_is_changed(cli: Cli, short: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    refused = further(cli, directory, "--threads", "2")
    assert refused.code == 2
    assert "--allow-mixed" in refused.err
    assert "threads: 1 -> 2" in refused.err
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before


def test_other_versions_are_refused(
    cli: Cli, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    whole = conditions.conditions_of
    monkeypatch.setattr(
        conditions, "conditions_of", lambda *given: whole(*given) | {"torch": "9.9", "cpu": "Z80"}
    )
    refused = further(cli, directory, "--threads", "1")
    assert refused.code == 2
    assert "torch: " in refused.err
    assert "-> 9.9" in refused.err
    assert "-> Z80" in refused.err


@pytest.mark.thorough
def test_other_kernels_of_a_hybrid_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``pip install causal-conv1d``: times would be those of another model."""
    target, draft, _ = saved("lfm2", tmp_path)
    own = ("run", "xsum", "--target", target, "--draft", draft, "--backend", "torch", "--no-score")
    asked = (*own, *FLAGS, "--out", tmp_path / "run")
    assert cli(*asked, "--limit", "1").code == 0
    assert recorded(tmp_path / "run")["conditions"][0]["layer_kernels"] == {
        "causal-conv1d": "transformers' reference code"
    }
    monkeypatch.setattr(models, "kernels_of_config", lambda config: {"causal-conv1d": "causal-conv1d 1.5"})
    refused = cli(*asked, "--limit", "2")
    assert refused.code == 2
    assert "causal-conv1d 1.5" in refused.err
    assert "--allow-mixed" in refused.err


def test_what_is_finished_is_no_matter_of_conditions(
    cli: Cli, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    whole = conditions.conditions_of
    monkeypatch.setattr(conditions, "conditions_of", lambda *given: whole(*given) | {"torch": "9.9"})
    assert cli("run", "--resume", directory, "--quiet", "--tag", "gpu=a").code == 0
    assert {row["condition"] for row in journal(directory)} == {0}
    assert len(recorded(directory)["conditions"]) == 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--threads 2", "--threads: {} is complete, and threads of a completed run cannot change: it was 1."),
        ("--backend torch", "--backend: {} is complete"),
        (
            "--set trace=3",
            "--set trace: {} is complete, and trace of a completed run cannot change: it was 0.",
        ),
        ("--set warmup=true", "--set warmup: {} is complete"),
    ],
)
def test_how_a_finished_run_was_measured_is_not_written_anew(
    cli: Cli, short: Path, tmp_path: Path, typed: str, said: str
) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    refused = cli("run", "--resume", directory, *typed.split())
    assert refused.code == 2, refused.err
    assert said.format(directory) in " ".join(refused.err.split())
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before


@pytest.mark.thorough
def test_mixed_conditions_are_shown_apart_and_not_pooled(cli: Cli, short: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    done = further(cli, directory, "--threads", "2", "--backend", "torch", "--allow-mixed", quiet=False)
    assert done.code == 0, done.err
    assert [entry["threads"] for entry in recorded(directory)["conditions"]] == [1, 2]
    assert [row["condition"] for row in journal(directory)] == [0, 0, 1, 1]
    summary = json.loads((directory / "summary.json").read_text())
    assert all(row["speedup"] is None and row["ms_per_token"] is None for row in summary["rows"])
    assert summary["why"] is None
    assert [entry["differ"] for entry in summary["conditions"]] == [
        {"threads": 1, "backend": "onnxruntime"},
        {"threads": 2, "backend": "torch"},
    ]
    assert all(row["ms_per_token"] > 0 for entry in summary["conditions"] for row in entry["rows"])
    screen = " ".join(done.out.split())
    assert "Measured under 2 different conditions" in screen
    assert "threads 1" in screen
    assert "threads 2" in screen
    report = (directory / "report.md").read_text()
    assert "## Times by condition" in report
    assert cli("report", directory, "--html").code == 0


@pytest.mark.thorough
def test_auto_is_decided_once_for_a_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("run", "xsum", "--limit", "1", *FLAGS, "--out", tmp_path / "run").code == 0
    first = recorded(tmp_path / "run")["conditions"][0]["threads"]
    monkeypatch.setattr(memory, "_MOST", first + 1)
    assert further(cli, tmp_path / "run").code == 0
    assert [entry["threads"] for entry in recorded(tmp_path / "run")["conditions"]] == [first]


@pytest.mark.thorough
def test_a_run_that_kept_no_conditions_is_not_continued_unasked(
    cli: Cli, short: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    run = recorded(directory)
    del run["conditions"]
    (directory / "run.json").write_text(json.dumps(run))
    assert cli("report", directory).code == 0
    refused = further(cli, directory, "--threads", "1")
    assert refused.code == 2
    assert "threads: (absent) -> 1" in refused.err
    assert further(cli, directory, "--threads", "1", "--allow-mixed").code == 0
    assert {row["condition"] for row in journal(directory)} == {0, 1}


@pytest.mark.thorough
def test_shards_of_other_conditions_are_merged_only_if_asked(cli: Cli, tmp_path: Path) -> None:
    for number in (1, 2):
        flags = ("--limit", "2", "--shard", f"{number}/2", "--threads", number, "--backend", "torch")
        assert cli("run", "xsum", *FLAGS, *flags, "--out", tmp_path / f"s{number}").code == 0
    shards = (tmp_path / "s2", tmp_path / "s1")
    refused = cli("merge", *shards, "--out", tmp_path / "refused")
    assert refused.code == 2
    assert "threads: 1 -> 2" in refused.err
    assert not (tmp_path / "refused").exists()
    merged = cli("merge", *shards, "--out", tmp_path / "merged", "--allow-mixed", "--json")
    assert merged.code == 0, merged.err
    assert [entry["differ"] for entry in json.loads(merged.out)["conditions"]] == [
        {"threads": 1},
        {"threads": 2},
    ]
    assert [row["condition"] for row in journal(tmp_path / "merged")] == [0, 0, 1, 1]


def test_the_hash_is_printed_and_can_be_expected(cli: Cli, short: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(short, tmp_path / "run")
    shown = cli("report", directory)
    found = json.loads((directory / "summary.json").read_text())["token_sha256"]
    assert f"Hash of all token ids: {found[:16]}" in shown.out
    again = ("run", "xsum", "--limit", "1", "--threads", "1", *FLAGS)
    assert cli(*again, "--out", tmp_path / "same", "--expect", found[:16]).code == 0
    other = cli(*again, "--seed", "1", "--out", tmp_path / "other", "--expect", found[:16])
    assert other.code == 4
    assert f"not to {found[:16]}" in other.err
    assert (tmp_path / "other/report.md").is_file()


@pytest.mark.thorough
def test_a_machine_that_computes_otherwise_in_another_process_is_told(
    cli: Cli, short: Path, tmp_path: Path
) -> None:
    alike, otherwise = (shutil.copytree(short, tmp_path / name) for name in ("alike", "otherwise"))
    run = recorded(otherwise)
    run["models"]["draft"]["self_test"]["bits"] = "0" * 16
    (otherwise / "run.json").write_text(json.dumps(run))
    said = "the draft's logits are not bit-identical to those that this run began with"
    loud = [flag for flag in FLAGS if flag != "--quiet"]
    for directory, told in ((alike, False), (otherwise, True)):
        flags = ("--limit", "2", *loud, "--threads", "1", "--resume", directory)
        done = cli("run", "xsum", *flags)
        assert done.code == 0, done.err
        assert (said in " ".join(done.err.split())) is told


@pytest.mark.parametrize("command", ["run", "sweep-k", "bench", "advise", "doctor"])
def test_a_busy_machine_is_said_before_anything_is_loaded(
    command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> str:
        raise SpsbenchError("looked")

    monkeypatch.setattr("spsbench.base.environment.busy", look)
    assert cli(command).err == "error: looked\n"


@pytest.mark.parametrize(
    ("typed", "consequence"),
    [
        (("run", "xsum"), "Disturbed prompts are timed again"),
        (("run", "xsum", "--remeasure", "0"), "Nothing is timed again"),
        (("run", "xsum", "--drafter", "suffix:across=true"), "Nothing is timed again"),
        (("bench",), "The least disturbed of several rounds are used"),
        (("advise",), "The least disturbed of several rounds are used"),
    ],
)
def test_what_other_load_does_is_said_of_what_was_typed(
    typed: tuple[str, ...], consequence: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(message: str) -> None:
        raise SpsbenchError(message)

    monkeypatch.setattr("spsbench.base.environment.busy", lambda: "Others compute.")
    monkeypatch.setattr("spsbench.cli.console.say", stop)
    assert cli(*typed).err.startswith(f"error: Others compute. {consequence}")
