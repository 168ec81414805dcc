"""``--batch``: the same tokens at every size, waves, what the tables say, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Cli, Result, call

from spsbench.testing import FakeClock

pytestmark = pytest.mark.thorough_but("looks_at_tokens")

RUN = (
    *("run", "xsum", "--batch", "1,2,4", "--k", "3", "--max-new-tokens", "16", "--threads", "1"),
    *("--set", "trace=1", "--set", "warmup=false", *BRIEF),
)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]


def read(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


def tokens(directory: Path) -> dict[tuple[str, str], list[int]]:
    return {(line["example_id"], line["arm"]): line["token_ids"] for line in lines(directory)}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run of two waves by a fake clock; not to be changed."""
    directory = tmp_path_factory.mktemp("batches") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spsbench.runner.engines.SystemClock", FakeClock)
        result = call(*RUN, "--limit", "12", "--out", directory)
    assert result.code == 0, result.err
    return directory, result


def test_every_size_writes_the_same_tokens(done: tuple[Path, Result]) -> None:
    written = tokens(done[0])
    assert len(written) == 12 * 6
    for (example, arm), ids in written.items():
        alone = arm.replace("-b2", "").replace("-b4", "")
        assert ids == written[example, alone], (example, arm)


def test_arms_take_turns_by_waves_of_whole_prompts(done: tuple[Path, Result]) -> None:
    order = [(line["wave"], line["arm"]) for line in lines(done[0])]
    runs = [pair for place, pair in enumerate(order) if place == 0 or order[place - 1] != pair]
    assert len(runs) == len(set(runs)) == 2 * 6
    assert len({wave for wave, _ in runs[:6]}) == 1
    by_wave = {line["wave"]: set[str]() for line in lines(done[0])}
    for line in lines(done[0]):
        by_wave[line["wave"]].add(line["example_id"])
    assert [len(found) for found in by_wave.values()] == [8, 4]
    assert all(wave in found for wave, found in by_wave.items())


def test_a_row_of_a_batch_has_its_share_and_its_latency(done: tuple[Path, Result]) -> None:
    for line in lines(done[0]):
        batch = int(line["arm"].partition("-b")[2][:1] or 1)
        if batch == 1:
            assert "latency_s" not in line
        else:
            shares = sum(line["loops"]["loop_s"])
            assert line["decode_s"] == pytest.approx(shares, rel=1e-6)
            assert line["latency_s"] > line["decode_s"]


def test_the_baseline_is_the_arm_of_the_same_batch(done: tuple[Path, Result]) -> None:
    summary = read(done[0], "summary.json")
    for row in summary["rows"]:
        wanted = row["arm"].replace("sps-k3", "ars")
        assert row["baseline"] == (None if row["method"] == "ars" else wanted)
    assert {row.get("paired_waves") for row in summary["rows"]} == {None, 2}
    (surface,) = summary["surfaces"]
    assert [(cell["batch"], cell["k"]) for cell in surface["cells"]] == [
        (batch, k) for batch in (1, 2, 4) for k in (0, 3)
    ]


def test_what_is_printed_and_reported(
    done: tuple[Path, Result], cli: Cli, tmp_path: Path, drawn: None
) -> None:
    directory, result = done
    assert "SpS (K=3, B=4)" in result.out
    assert "Speedup by batch size, nucleus" in result.out
    assert "rests on 2 waves" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    assert cli("report", copy, "--html", "--quiet").code == 0
    text = (copy / "report.md").read_text()
    assert "## Batches" in text
    assert "figures/batches.svg" in text


@pytest.mark.parametrize("kept", [3, 48 + 17])
def test_a_run_that_was_cut_off_goes_on_to_the_same_tokens(
    done: tuple[Path, Result], cli: Cli, tmp_path: Path, kept: int
) -> None:
    """In the first wave within its first arm; in the second one behind four arms, within the fifth."""
    copy = tmp_path / "copy"
    shutil.copytree(done[0], copy)
    journal = (copy / "samples.jsonl").read_text().splitlines(keepends=True)
    (copy / "samples.jsonl").write_text("".join(journal[:kept]))
    result = cli("run", "--resume", copy, "--quiet")
    assert result.code == 0, result.err
    assert tokens(copy) == tokens(done[0])


def test_a_drafter_that_looks_at_tokens_and_another_rule(cli: Cli, tmp_path: Path) -> None:
    asked = ("run", "xsum", "--batch", "1,3", "--k", "4", "--drafter", "lookup", "--limit", "3")
    small = (*BRIEF, "--max-new-tokens", "8", "--threads", "1", "--no-score", "--no-proof", "--quiet")
    assert cli(*asked, *small, "--rule", "sample-and-compare", "--out", tmp_path / "run").code == 0
    written = tokens(tmp_path / "run")
    assert all(ids == written[example, arm.replace("-b3", "")] for (example, arm), ids in written.items())


def test_caches_beyond_memory_are_refused_by_arithmetic(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.models.memory.available_bytes", lambda device: 400 << 20)
    result = cli("run", "xsum", "--batch", "1,40", "--limit", "40", "--out", tmp_path / "run")
    assert result.code == 2
    assert "need" in result.err
    assert "caches of 40 sequences" in " ".join(result.err.split())
    assert not (tmp_path / "run").exists()
