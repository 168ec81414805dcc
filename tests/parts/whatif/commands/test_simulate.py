"""``spsbench simulate``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli

from spsbench.parts.verify import tree_faults
from spsbench.parts.verify.effort import TREE_FAULTS
from spsbench.parts.whatif.simulate.tables import read_table


def test_the_command_prints_writes_and_draws(cli: Cli, tmp_path: Path) -> None:
    small = ("--k", "1,2", "--tokens", "512", "--source", "dirichlet:vocabulary=8", "--contexts", "1,4")
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
    small = (
        "simulate",
        "--k",
        "1",
        "--tokens",
        "256",
        "--source",
        "dirichlet:vocabulary=8",
        "--contexts",
        "1",
        "--quiet",
    )
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "figure1.svg").write_text("theirs")
    result = cli(*small, "--out", foreign)
    assert (result.code, [path.name for path in foreign.iterdir()]) == (2, ["figure1.svg"])
    assert f"--out: {foreign} is not empty and holds no simulation." in " ".join(result.err.split())
    assert [cli(*small, "--out", own).code for _ in range(2)] == [0, 0]


THREE = Path(__file__).parents[4] / "examples/three_tokens.json"


def of_three_tokens(cli: Cli, *flags: str) -> dict[str, Any]:
    result = cli("simulate", "--source", THREE, "--tokens", "1280", *flags, "--json", "--quiet")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


@pytest.mark.thorough_but("[one-hot", "[block")
@pytest.mark.parametrize(
    ("rule", "flags"),
    [
        ("modified-rejection", ("--k", "2")),
        ("block", ("--k", "1,2")),
        ("traversal", ("--tree", "2")),
        ("one-hot", ("--tree", "2:siblings=top")),
        ("recursive-rejection", ("--tree", "1,1")),
        ("k-seq", ("--tree", "2")),
        ("sample-and-compare", ("--tree", "2")),
    ],
)
def test_loops_of_three_tokens_are_enumerated(cli: Cli, rule: str, flags: tuple[str, ...]) -> None:
    """Drawn loops agree; modified rejection's enumeration is what the products of matrices give."""
    told = of_three_tokens(cli, "--rule", rule, *flags)
    (world,) = told["worlds"]
    for row in world["rows"]:
        assert row["enumerated"]["variation"] < 1e-12
        assert 0 < row["enumerated"]["share_of_optimum"] < 1 + 1e-9
        assert row["exact"] == pytest.approx(row["enumerated"]["tokens_per_loop"], abs=1e-9)
    assert world["law"]["follows"]
    assert world["exact_p_value"] > 1e-3
    assert told["siblings"] == {"k-seq": "independent", "one-hot": "top"}.get(
        rule, "without" if "--tree" in flags else None
    )
    if rule == "block":
        assert world["rows"][1]["enumerated"]["share_of_optimum"] == pytest.approx(1)
        assert world["rows"][1]["formula"] is None


@pytest.mark.thorough_but("token", "drawn")
@pytest.mark.parametrize("fault", TREE_FAULTS)
def test_faults_of_trees_are_enumerated(cli: Cli, fault: str) -> None:
    (world,) = of_three_tokens(cli, "--fault", fault)["worlds"]
    assert world["rows"][0]["enumerated"]["variation"] > 0.01


def test_the_faults_of_trees_are_those_that_are_planted() -> None:
    assert tuple(tree_faults.FAULTS) == TREE_FAULTS


def test_a_larger_tree_is_drawn_and_its_page_written(cli: Cli, tmp_path: Path) -> None:
    small = ("--tokens", "256", "--source", "dirichlet:vocabulary=8", "--contexts", "1")
    result = cli("simulate", "--rule", "traversal", "--tree", "4,2,1", *small, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    assert "tree 4,2,1" in " ".join(result.out.split())
    assert "which no formula covers" in " ".join(result.out.split())
    assert "enumerated" not in result.out
    assert (tmp_path / "out" / "figure1.svg").is_file()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--rule", "block", "--tree", "2,1"), "--rule: block judges chains"),
        (("--rule", "lenience", "--tree", "2"), "--rule: lenience judges chains"),
        (("--rule", "k-seq", "--tree", "2:siblings=top"), "--rule: k-seq tests siblings by one law"),
        (("--rule", "one-hot", "--tree", "40"), "--tree: 40 different siblings, and a row has 32 tokens"),
        (("--rule", "one-hot", "--tree", "4", "--top-k", "3"), "a row has 3 tokens"),
        (("--rule", "one-hot", "--tree", "2,x"), "--tree: 2,x is not the shape of a draft"),
        (("--rule", "one-hot", "--tree", "8,8"), "--tree: 8,8 has 72 nodes"),
        (("--rule", "one-hot", "--tree", "dynamic:8"), "--tree: tables draw static trees"),
        (("--rule", "one-hot", "--tree", "2", "--k", "3"), "--k: a tree has its own depth"),
        (("--rule", "one-hot", "--tree", "2:siblings=all"), "--tree siblings: all is unknown"),
        (("--tree", "chain:siblings=top"), "--tree: a chain has no siblings"),
        (("--tree", "2:sibling=top"), "--tree: the option sibling is unknown. Did you mean siblings?"),
        (("--fault", "not normalised", "--tree", "2"), "--tree: not normalised has its own drafts"),
        (("--fault", "not normalised", "--rule", "block"), "a fault of a rule of its own"),
        (("--source", "nowhere.json"), "--source: nowhere.json holds no table"),
        (("--source", str(THREE), "--alpha", "0.3"), "--alpha: the table says what both models are"),
        (("--source", f"{THREE}:stay=0.5"), "the table says what both models are. Leave stay out."),
        (("--source", "dirichlet:stays=0.5"), "the option stays is unknown. Did you mean stay?"),
    ],
)
def test_trees_and_tables_that_cannot_be_are_refused(cli: Cli, flags: tuple[str, ...], said: str) -> None:
    result = cli("simulate", *flags)
    assert (result.code, result.out) == (2, "")
    assert said in " ".join(result.err.split())


@pytest.mark.parametrize(
    "rows",
    [
        {"target": [[0.5, 0.6]], "draft": [[0.5, 0.5]]},
        {"target": [[0.5, 0.5]]},
        {"target": [[0.5, 0.5]], "draft": [[1.5, -0.5]]},
        {"target": [[0.2, 0.3, 0.5]] * 2, "draft": [[0.2, 0.3, 0.5]] * 2},
        [1],
    ],
)
def test_a_file_without_rows_is_refused(cli: Cli, tmp_path: Path, rows: object) -> None:
    (tmp_path / "table.json").write_text(json.dumps(rows))
    result = cli("simulate", "--source", tmp_path / "table.json")
    assert result.code == 2
    assert "holds no table" in " ".join(result.err.split())


def test_a_mark_of_byte_order_is_no_part_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(THREE.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert read_table(path)[1:] == read_table(THREE)[1:]
