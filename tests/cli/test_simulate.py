"""``spsbench simulate``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--alpha 0", "--alpha: no draft is solved for at 0, where nothing is accepted."),
        ("--alpha 1.5", "--alpha must be between 0 and 1, got 1.5."),
        ("--alpha 0.01", "--alpha: 0.01 cannot be reached"),
        ("--alpha 0.5 --concentration 3", "--alpha: both say"),
        ("--draft-temperature 0.5", "--draft-temperature: --source dirichlet"),
        ("--concentration 0", "--concentration must be between"),
        ("--source ngram --dependence 1", "--dependence: 1 leaves no room"),
        ("--source bigram", "--source: bigram is unknown. Did you mean ngram?"),
        ("--k 0", "--k: a simulated loop drafts"),
        ("--k=-1", "--k: -1"),
        ("--cost=-0.1", "--cost must be a"),
        ("--operations=-1", "--operations must be a"),
        ("--vocabulary 1", "--vocabulary must be a"),
        ("--contexts 0", "--contexts must be whole numbers from 1, got 0."),
        ("--contexts 64", "--contexts: --source dirichlet takes 1 to 32, got 64."),
        (
            "--contexts 64 --vocabulary 48",
            "--contexts: --source dirichlet takes 1 to 48, got 64. Give a number of contexts from 1 to 48: "
            "a vocabulary of 48 tokens has no more classes, see --vocabulary.",
        ),
        (
            "--contexts 600 --vocabulary 1000",
            "--contexts: --source dirichlet takes 1 to 512, got 600. "
            "Give a number of contexts from 1 to 512.",
        ),
        ("--contexts 1 --source ngram", "--contexts: --source ngram takes 2 to 16, got 1."),
        ("--vocabulary 100000 --contexts 64", "--vocabulary: 64 contexts of 100000"),
        (
            "--rule lecture-test",
            "--rule: lecture-test is a planted fault, not a rule. Give --fault lecture-test.",
        ),
        ("--rule lenience:l=2", "--rule: lenience:l must be above 0"),
        ("--fault stale-cache", "--fault: stale-cache is unknown."),
        ("--fault no-residual --rule lenience", "--fault: no-residual is a fault of"),
        ("--temperature 0", "--temperature: a greedy target"),
        ("--tokens 0", "--tokens must be a"),
        ("--out /dev/null/folder", "--out: /dev/null/folder cannot be written to"),
    ],
)
def test_bad_input_is_refused_before_any_loop(
    cli: Cli, arguments: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.whatif.simulate.study.simulate", None)
    result = cli("simulate", *arguments.split())
    assert result.code == 2
    assert " ".join(result.err.split()).startswith(f"error: {said}")


@pytest.mark.parametrize("refused", ["--alpha 0.01", "--contexts 600 --vocabulary 1000", "--k 0"])
def test_what_is_refused_leaves_no_folder(cli: Cli, tmp_path: Path, refused: str) -> None:
    assert cli("simulate", *refused.split(), "--out", tmp_path / "out").code == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    small = ("simulate", "--k", "1", "--tokens", "256", "--vocabulary", "8", "--contexts", "1", "--quiet")
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "figure1.svg").write_text("theirs")
    result = cli(*small, "--out", foreign)
    assert (result.code, [path.name for path in foreign.iterdir()]) == (2, ["figure1.svg"])
    assert f"--out: {foreign} is not empty and holds no simulation." in " ".join(result.err.split())
    assert [cli(*small, "--out", own).code for _ in range(2)] == [0, 0]
