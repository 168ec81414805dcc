"""What CPU contention disturbed is timed again: the same tokens, every timing kept, the clean one counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commandline import BRIEF, Cli, Result, call

from spsbench.base import environment
from spsbench.config import resolve
from spsbench.runner import plan, remeasure
from spsbench.store import RunStore

FLAGS = (
    *BRIEF,
    *("--limit", "3", "--max-new-tokens", "8", "--threads", "1", "--k", "2", "--no-score", "--no-proof"),
)

Loses = Callable[[int], float]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[[Loses], None]:
    """``others(loses)``: of the n-th sequence that is timed they take ``loses(n)`` seconds."""

    def set_up(loses: Loses) -> None:
        calls, taken = count(), [0.0]

        def waited_s() -> float:
            number = next(calls)
            taken[0] += loses(number // 2) if number % 2 else 0.0
            return taken[0]

        monkeypatch.setitem(environment.TAKERS, "waited_s", waited_s)

    return set_up


def of(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    run, summary = (json.loads((directory / f"{name}.json").read_text()) for name in ("run", "summary"))
    return run, summary


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed; not to be changed."""
    directory = tmp_path_factory.mktemp("quiet") / "run"
    done = call("run", "xsum", *FLAGS, "--out", directory)
    assert done.code == 0, done.err
    return directory


def test_a_disturbed_prompt_is_timed_again_with_all_its_arms(
    cli: Cli, others: Callable[[Loses], None], quiet: Path, tmp_path: Path
) -> None:
    """Of six sequences the first, an arm of the first prompt, is disturbed."""
    others(lambda number: 10.0 if number == 0 else 0.0)
    result = cli("run", "xsum", *FLAGS, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "Timing 1 prompt again because of CPU contention" in result.err
    run, summary = of(tmp_path / "run")
    assert summary["token_sha256"] == of(quiet)[1]["token_sha256"]
    told = run["remeasured"]
    assert (told["timings"], told["again"], told["replaced"], told["ended"]) == (6, 2, 2, "clean")
    assert (told["disturbed"], told["differing"]) == (0, [])
    assert summary["contention"]["trusted"] is True
    assert "2 of 6 timings were repeated because of contention." in " ".join(result.out.split())
    kept = pq.read_table(tmp_path / "run" / "timings.parquet").to_pandas()
    again = kept[kept["attempt"] == 2]
    assert len(kept) == 8
    assert set(again["arm"]) == {"ars-nucleus", "sps-k2-nucleus"}
    assert again["example_id"].nunique() == 1
    assert again["counts"].all()
    with RunStore.open(tmp_path / "run") as store:
        assert sum(sample.attempt == 2 for sample in store.samples()) == 2
    assert "remeasured" not in of(quiet)[0]


def test_0_times_nothing_again_and_the_run_can_be_settled_later(
    cli: Cli, others: Callable[[Loses], None], tmp_path: Path
) -> None:
    others(lambda number: 10.0 if number < 6 else 0.0)
    first = cli("run", "xsum", *FLAGS, "--remeasure", "0", "--out", tmp_path / "run")
    assert first.code == 0, first.err
    assert "UNDECIDED: CPU contention took 100% of the time measured" in " ".join(first.out.split())
    assert f"run --resume {tmp_path / 'run'} --remeasure 10min" in first.err
    hashed = of(tmp_path / "run")[1]["token_sha256"]
    settled = cli("run", "--resume", tmp_path / "run", "--remeasure", "1min")
    assert settled.code == 0, settled.err
    assert "UNDECIDED" not in settled.out
    run, summary = of(tmp_path / "run")
    assert (run["remeasured"]["again"], summary["token_sha256"]) == (6, hashed)
    again = cli("run", "--resume", tmp_path / "run")
    assert "Timing" not in again.err


def test_a_killed_run_goes_on_timing_again(
    cli: Cli, others: Callable[[Loses], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven of eight timings are on the disk: the attempt that lacks an arm does not count."""
    others(lambda number: 10.0 if number == 0 else 0.0)
    ends = count()

    def interrupted(*given: Any) -> Any:
        if next(ends) == 1:
            raise KeyboardInterrupt
        return reading(*given)

    reading = remeasure.Remeasuring._retimed_sample
    with monkeypatch.context() as patched:
        patched.setattr(remeasure.Remeasuring, "_retimed_sample", interrupted)
        first = cli("run", "xsum", *FLAGS, "--out", tmp_path / "run")
    assert first.code == 130
    with RunStore.open(tmp_path / "run") as store:
        assert len(store.timings()) == 7
        assert all(sample.attempt is None for sample in store.samples())
    second = cli("run", "--resume", tmp_path / "run")
    assert second.code == 0, second.err
    assert of(tmp_path / "run")[1]["contention"]["trusted"] is True
    with RunStore.open(tmp_path / "run") as store:
        assert sum(sample.attempt == 3 for sample in store.samples()) == 2


def test_other_tokens_from_the_same_seed_are_a_finding(
    cli: Cli, others: Callable[[Loses], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = ("--temperature", "2", "--top-p", "1")
    others(lambda number: 10.0 if number < 6 else 0.0)
    quiet = cli("run", "xsum", *FLAGS, *hot, "--remeasure", "0", "--out", tmp_path / "quiet")
    others(lambda number: 10.0 if number < 6 else 0.0)
    groups = remeasure.Remeasuring._shuffled_groups

    def otherwise(*given: Any) -> Any:
        for group in groups(*given):
            yield [replace(turn, seed=turn.seed + 1) for turn in group]

    monkeypatch.setattr(remeasure.Remeasuring, "_shuffled_groups", otherwise)
    result = cli("run", "xsum", *FLAGS, *hot, "--out", tmp_path / "run")
    assert result.code == quiet.code == 0, result.err
    run, summary = of(tmp_path / "run")
    assert run["remeasured"]["differing"]
    assert "generated different tokens from the same seed" in " ".join(result.out.split())
    assert summary["token_sha256"] == of(tmp_path / "quiet")[1]["token_sha256"]


def test_where_nothing_comes_out_clean_it_gives_up(
    cli: Cli, others: Callable[[Loses], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(lambda number: 10.0)
    monkeypatch.setattr(remeasure, "_HOPELESS", 2)
    result: Result = cli("run", "xsum", *FLAGS, "--remeasure", "1h", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    told = of(tmp_path / "run")[0]["remeasured"]
    assert (told["again"], told["ended"], told["disturbed"], told["replaced"]) == (4, "hopeless", 3, 0)


def test_a_short_run_is_timed_until_it_has_met_several_states(
    cli: Cli, quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that gives each sequence half a second: three of measuring, and five more."""
    ticks = count()
    monkeypatch.setattr(import_module("spsbench.runner.execution"), "perf_counter", lambda: 0.5 * next(ticks))
    monkeypatch.setattr(remeasure, "FEWEST_PROMPTS", 3)
    monkeypatch.setattr(remeasure, "LEAST_S", 5.0)
    result = cli("run", "xsum", *FLAGS, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "Timing 3 prompts again: a run this short samples a single state of the machine" in result.err
    run, summary = of(tmp_path / "run")
    told = run["remeasured"]
    assert (told["again"], told["replaced"], told["ended"]) == (10, 0, "clean")
    assert summary["token_sha256"] == of(quiet)[1]["token_sha256"]
    assert "Each prompt was timed" in " ".join(result.out.split())
    with RunStore.open(tmp_path / "run") as store:
        assert all(len(found) > 1 for found in store.frames().samples["timings"])


def test_what_an_earlier_sequence_taught_cannot_be_repeated(
    cli: Cli, others: Callable[[Loses], None], tmp_path: Path
) -> None:
    others(lambda number: 10.0 if number == 0 else 0.0)
    result = cli("run", "xsum", *FLAGS, "--drafter", "suffix:across=true", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "Timing" not in result.err
    told = of(tmp_path / "run")[0]["remeasured"]
    assert (told["again"], told["disturbed"]) == (0, 1)


def test_a_round_is_left_alone_where_an_engine_of_it_does_not_run(
    cli: Cli, others: Callable[[Loses], None], tmp_path: Path
) -> None:
    """One that could not be started this time, say: the other arms are not timed without it."""
    others(lambda number: 10.0)
    assert cli("run", "xsum", *FLAGS, "--remeasure", "0", "--out", tmp_path / "run").code == 0
    config = resolve({"remeasure": 60.0}, tmp_path / "run" / "config.yaml")
    ready = plan(config)
    with RunStore.open(tmp_path / "run") as store:
        due = [remeasure.Remeasuring(ready, store, 0, arms).is_due() for arms in (ready.arms, ready.arms[:1])]
    assert due == [True, False]


def test_a_merged_run_has_the_timings_that_count(
    cli: Cli, others: Callable[[Loses], None], quiet: Path, tmp_path: Path
) -> None:
    others(lambda number: 10.0 if number == 0 else 0.0)
    shards = [cli("run", "xsum", *FLAGS, "--shard", f"{i}/2", "--out", tmp_path / f"{i}") for i in (1, 2)]
    merged = cli("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "merged")
    assert [each.code for each in (*shards, merged)] == [0] * 3, merged.err
    run, summary = of(tmp_path / "merged")
    assert "remeasured" not in run
    assert summary["contention"]["trusted"] is True
    assert summary["token_sha256"] == of(quiet)[1]["token_sha256"]
    with RunStore.open(tmp_path / "merged") as store:
        assert [sample.attempt for sample in store.samples()] == [None] * 6


@pytest.mark.parametrize(
    ("more", "named"),
    [(("--on", "ray"), "--on"), (("--concurrency", "1", "--engine", "openai:http://x"), "--concurrency")],
)
def test_where_nothing_is_timed_again_the_option_is_refused(
    cli: Cli, more: tuple[str, ...], named: str
) -> None:
    result = cli("run", "xsum", "--remeasure", "1min", *more)
    assert result.code == 2
    assert named in result.err


@pytest.mark.parametrize("text", ["-1", "soon", "nan", ""])
def test_a_time_that_is_none_is_refused_before_anything_is_loaded(cli: Cli, text: str) -> None:
    result = cli("run", "xsum", "--remeasure", text)
    assert result.code == 2
    assert "--remeasure" in result.err
