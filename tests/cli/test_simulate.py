"""``spsbench simulate``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from commandline import Cli


def test_the_command_prints_writes_and_draws(cli: Cli, tmp_path: Path) -> None:
    small = ("--k", "1,2", "--tokens", "512", "--vocabulary", "8", "--contexts", "1,4")
    result = cli("simulate", *small, "--out", tmp_path / "deep" / "folder")
    assert result.code == 0, result.err
    assert "One row everywhere: concentration" in result.out
    assert "Leviathan's bound" in result.out
    assert {"Simulating 16 sequences", "8/16"} <= {*result.err.splitlines()}
    names = {path.name for path in (tmp_path / "deep" / "folder").iterdir()}
    drawn = {f"{name}.{ending}" for name in ("figure1", "simulation") for ending in ("pdf", "png", "svg")}
    assert names == drawn | {"simulation.json", "simulation.md"}
    told = json.loads(cli("simulate", *small, "--json", "--quiet").out)
    assert told == json.loads((tmp_path / "deep" / "folder" / "simulation.json").read_text())
    assert [world["contexts"] for world in told["worlds"]] == [1, 4]


def test_a_folder_of_something_else_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    small = ("simulate", "--k", "1", "--tokens", "256", "--vocabulary", "8", "--contexts", "1", "--quiet")
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "figure1.svg").write_text("theirs")
    result = cli(*small, "--out", foreign)
    assert (result.code, [path.name for path in foreign.iterdir()]) == (2, ["figure1.svg"])
    assert f"--out: {foreign} is not empty and holds no simulation." in " ".join(result.err.split())
    assert [cli(*small, "--out", own).code for _ in range(2)] == [0, 0]
