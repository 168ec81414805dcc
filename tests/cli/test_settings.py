from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.commandline import call

from spsbench.base.errors import UsageError
from spsbench.cli.options import RunOptions
from spsbench.cli.settings import gates_of, read_settings


def test_what_is_typed_becomes_settings() -> None:
    config = read_settings(
        RunOptions(
            task="humaneval",
            k="0,2..3",
            limit="5",
            temperature="0.5",
            top_k="10",
            threads="2",
            sampling="greedy,nucleus",
            arms="sps",
            no_score=True,
            set=["warmup=false"],
        )
    )
    assert (config.task, config.ks, config.limit, config.temperature) == ("humaneval", (0, 2, 3), 5, 0.5)
    assert (config.top_k, config.threads, config.samplings) == (10, 2, ("greedy", "nucleus"))
    assert (config.methods, config.score, config.warmup) == (("sps",), False, False)


def test_without_options_the_defaults_hold() -> None:
    config = read_settings(RunOptions())
    assert (config.task, config.pair.name, config.data, config.ks) == ("xsum", "mini", "mini", (4,))
    assert config.score


def test_a_pair_and_a_model_are_not_taken_together() -> None:
    with pytest.raises(UsageError, match="--target: a is given together with --pair"):
        read_settings(RunOptions(target="a", pair="gpt2"))


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The directory of an earlier run."""
    config = read_settings(RunOptions(fixed_length=True, unsafe_exec=True, limit="7"))
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


def test_a_switch_that_is_not_given_does_not_overrule_a_file(earlier: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()  # beside no run
    own = Path(shutil.copy(earlier / "config.yaml", tmp_path / "own"))
    config = read_settings(RunOptions(config=own))
    assert (config.fixed_length, config.unsafe_exec, config.limit) == (True, True, 7)


def test_a_run_that_is_not_scored_runs_no_programs(earlier: Path) -> None:
    for asked in (
        RunOptions(no_score=True, unsafe_exec=True),
        RunOptions(config=earlier / "config.yaml", no_score=True),
    ):
        assert (read_settings(asked).score, read_settings(asked).unsafe_exec) == (False, False)


def test_a_continued_run_has_its_own_settings_and_may_grow(earlier: Path) -> None:
    with pytest.raises(UsageError, match="would run score: unsafe"):
        read_settings(RunOptions(resume=earlier, limit="9"))
    for typed in ({"unsafe_exec": True}, {"trust": True}):
        config = read_settings(RunOptions(resume=earlier, limit="9", **typed))
        assert (config.fixed_length, config.unsafe_exec, config.limit) == (True, True, 9)


@pytest.mark.parametrize("other", ["out", "config"])
def test_a_continued_run_takes_no_other_directory_or_file(earlier: Path, other: str) -> None:
    refused = call("run", "--resume", earlier, f"--{other}", "x")
    assert refused.code == 2
    assert re.search(f"--{other}.*--resume", refused.err)


def test_gates_are_known_by_name() -> None:
    assert gates_of("lossless, parity") == ["lossless", "parity"]
    assert gates_of(None) == gates_of("") == ["incomplete"]
    with pytest.raises(UsageError, match=r"--fail-on.*speed.*lossless"):
        gates_of("parity,speed")
