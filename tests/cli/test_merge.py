"""Shards of a run, made apart and put together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Cli, call, journal

FLAGS = (
    *("--limit", "5", "--max-new-tokens", "8", "--threads", "1", "--set", "warmup=false", "--set", "trace=2"),
    *BRIEF,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole``, and its shards ``a`` (1/2) and ``b`` (2/2); not to be changed."""
    folder = tmp_path_factory.mktemp("shards")
    assert call("run", "xsum", *FLAGS, "--out", folder / "whole").code == 0
    for name, shard in (("a", "1/2"), ("b", "2/2")):
        assert call("run", "xsum", *FLAGS, "--shard", shard, "--out", folder / name).code == 0
    return folder


def untimed(value: Any) -> Any:
    """A summary without what a clock, a machine's state or the number of processes decides."""
    timed = ("_ms", "ms_", "_s", "speedup", "memory", "warnings", "mode", "prediction", "why", "tails")
    timed += ("theory", "fit", "ceiling", "hindsight", "recommend", "slower", "halves", "draft_c")
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not any(part in k for part in timed)}
    return [untimed(entry) for entry in value] if isinstance(value, list) else value


def test_the_merged_run_is_the_whole_one(runs: Path, cli: Cli, tmp_path: Path) -> None:
    result = cli("merge", runs / "b", runs / "a", "--out", tmp_path / "merged", "--json")
    assert result.code == 0, result.err
    whole, merged = journal(runs / "whole"), journal(tmp_path / "merged")
    keys = ("example_id", "arm", "order", "token_ids", "losslessness", "trace", "token_evidence")
    assert [[row.get(k) for k in keys] for row in merged] == [[row.get(k) for k in keys] for row in whole]
    assert [row["conditions"]["shard"] for row in merged] == [1, 1, 2, 2, 1, 1, 2, 2, 1, 1]
    expected = json.loads((runs / "whole/summary.json").read_text())
    found = json.loads(result.out)
    drawn = [arm.pop("proof") for arm in expected["losslessness"]["arms"]]
    assert drawn[1]["sequences"] == 4
    # What a shard drew for its proof is its own: it is no part of the samples that are put together.
    assert [arm.pop("proof") for arm in found["losslessness"]["arms"]] == [None, None]
    for part in ("parity", "losslessness", "complete", "task_label"):
        assert untimed(found[part]) == untimed(expected[part]), part
    for row, other in zip(found["rows"], expected["rows"], strict=True):
        for name in ("arm", "metrics", "acceptance", "tokens", "prompts", "sequences", "missing"):
            assert row[name] == other[name], name
    prompts = [(runs / "whole/prompts.jsonl").read_text(), (tmp_path / "merged/prompts.jsonl").read_text()]
    assert prompts[0] == prompts[1]
    told = json.loads((tmp_path / "merged/run.json").read_text())
    assert [shard["shard"] for shard in told["shards"]] == ["1/2", "2/2"]
    assert [shard["proof"]["arms"][0]["sequences"] for shard in told["shards"]] == [3, 2]


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (["a"], 2, "shard 2/2 is missing"),
        (["a", "a", "b"], 2, "shard 1/2 is given twice"),
        (["whole", "a"], 2, "whole is no shard, "),
        (["nothing"], 2, "is not a run directory"),
    ],
)
def test_what_is_no_whole_is_refused(
    runs: Path, cli: Cli, tmp_path: Path, names: list[str], code: int, said: str
) -> None:
    result = cli("merge", *(runs / name for name in names), "--out", tmp_path / "merged")
    assert result.code == code
    assert said in " ".join(result.err.split())
    assert not (tmp_path / "merged").exists()


def test_an_unfinished_shard_is_refused(runs: Path, cli: Cli, tmp_path: Path) -> None:
    part = shutil.copytree(runs / "b", tmp_path / "b")
    lines = (part / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (part / "samples.jsonl").write_bytes(b"".join(lines[:-1]))
    result = cli("merge", runs / "a", part, "--out", tmp_path / "merged")
    assert result.code == 5
    assert "lacks 1 of 4 sequences" in " ".join(result.err.split())


def test_shards_of_other_settings_are_refused_with_the_difference(
    runs: Path, cli: Cli, tmp_path: Path
) -> None:
    assert cli("run", "xsum", *FLAGS, "--shard", "2/2", "--seed", "1", "--out", tmp_path / "other").code == 0
    result = cli("merge", runs / "a", tmp_path / "other", "--out", tmp_path / "merged")
    assert result.code == 2
    assert "seed: 0 -> 1" in result.err


@pytest.mark.thorough
def test_shards_of_other_limits_are_refused(runs: Path, cli: Cli, tmp_path: Path) -> None:
    flags = [*FLAGS[2:], "--limit", "2"]
    assert cli("run", "xsum", *flags, "--shard", "2/2", "--out", tmp_path / "short").code == 0
    result = cli("merge", runs / "a", tmp_path / "short", "--out", tmp_path / "merged")
    assert result.code == 2
    assert "has 3 prompts where 2 are due" in " ".join(result.err.split())


def test_a_shard_is_not_continued_as_another(runs: Path, cli: Cli, tmp_path: Path) -> None:
    part = shutil.copytree(runs / "b", tmp_path / "b")
    result = cli("run", "xsum", *FLAGS, "--shard", "1/2", "--out", part)
    assert result.code == 2
    assert "shard: 2/2 -> 1/2" in result.err
