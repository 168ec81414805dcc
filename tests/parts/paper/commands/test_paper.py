from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.commandline import Cli, Result, call

import spsbench.runner  # noqa: F401  (fills sys.modules)
from spsbench.parts.paper import command as paper
from spsbench.parts.paper.command import PARTS, PaperStudy, settings
from spsbench.report import figures

pytestmark = pytest.mark.thorough

SMALL = ("--limit", "1", "--samples", "1", "--no-score", "--threads", "1")


def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same parts with outputs of a few tokens and fewer Ks."""
    short = []
    for part in PARTS:
        ks = "0,1,2" if part.name.startswith("figure1") else part.settings["ks"]
        changed = {**part.settings, "max_new_tokens": 6, "ks": ks, "warmup": False}
        short.append(paper.Part(part.name, part.title, changed))
    monkeypatch.setattr(paper, "PARTS", tuple(short))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished paper and what was printed; not to be changed."""
    directory = tmp_path_factory.mktemp("whole") / "paper"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(figures, "FIGURES", {"Figure 1": figures.figure1})
        _short(patch)
        return directory, call("paper", *SMALL, "--json", "--out", directory)


def test_one_page_puts_table_1_and_figure_1_together(whole: tuple[Path, Result]) -> None:
    directory, result = whole
    assert result.code == 0, result.err
    page = json.loads(result.out)
    assert page == json.loads((directory / "paper.json").read_text())
    table = [
        (row["benchmark"].split("-")[0], row["method"], row["k"], row["sampling"]) for row in page["table1"]
    ]
    assert table == [
        ("xsum", "ars", 0, "nucleus"),
        ("xsum", "sps", 4, "nucleus"),
        ("xsum", "ars", 0, "greedy"),
        ("xsum", "sps", 4, "greedy"),
        ("humaneval", "ars", 0, "nucleus"),
        ("humaneval", "sps", 4, "nucleus"),
    ]
    assert [[point["k"] for point in curve["points"]] for curve in page["figure1"]] == [[0, 1, 2], [0, 1, 2]]
    text = (directory / "paper.md").read_text()
    assert "(synthetic)" in text.splitlines()[0]
    for task in ("xsum", "humaneval"):
        assert f"](figure1-{task}/figures/figure1.svg)" in text
        assert (directory / f"figure1-{task}" / "figures" / "figure1.svg").is_file()
    for part in PARTS:
        assert f"({part.name}/report.md)" in text
        assert (directory / part.name / "summary.json").is_file()


def test_a_finished_paper_measures_nothing_again(
    cli: Cli, whole: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    _short(monkeypatch)

    def refused(*arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(sys.modules["spsbench.runner.execution"], "load", refused)
    again = cli("paper", "--resume", whole[0])
    assert again.code == 0, again.err
    assert "Table 1 and Figure 1" in " ".join(again.out.split())


def test_a_refused_continuation_leaves_the_paper_as_it_was(
    cli: Cli, whole: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    _short(monkeypatch)
    before = (whole[0] / "options.json").read_bytes()
    refused = cli("paper", "--resume", whole[0], "--seed", "1")
    assert (refused.code, "holds another run" in refused.err) == (2, True)
    assert (whole[0] / "options.json").read_bytes() == before


def test_ctrl_c_tells_how_to_go_on(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _short(monkeypatch)

    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "measure_part", interrupted)
    stopped = cli("paper", *SMALL, "--seed", "3", "--out", tmp_path / "paper")
    assert stopped.code == 130
    assert f"spsbench paper --resume {tmp_path / 'paper'}" in stopped.err
    kept = json.loads((tmp_path / "paper" / "options.json").read_text())
    assert (kept["seed"], kept["limit"], kept["no_score"]) == (3, 1, True)


def test_everything_is_checked_before_anything_is_made(cli: Cli, tmp_path: Path) -> None:
    refused = cli("paper", "--limit", "1", "--pair", "minni", "--out", tmp_path / "paper")
    assert refused.code == 2
    assert not (tmp_path / "paper").exists()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    refused = cli("paper", *SMALL, "--out", foreign)
    assert (refused.code, "holds no paper" in refused.err) == (2, True)
    refused = cli("paper", *SMALL, "--resume", tmp_path / "nowhere")
    assert refused.code == 2
    assert "--resume" in refused.err


def test_the_parts_are_those_of_the_paper() -> None:
    xsum, humaneval, *of_figure1 = [settings(part, PaperStudy()) for part in PARTS]
    assert (xsum.task, xsum.ks, xsum.samplings, xsum.methods) == (
        "xsum",
        (4,),
        ("nucleus", "greedy"),
        ("ars", "sps"),
    )
    assert (humaneval.task, humaneval.ks, humaneval.samplings) == ("humaneval", (4,), ("nucleus",))
    for part in of_figure1:
        assert (part.ks, part.fixed_length, part.max_new_tokens) == (tuple(range(8)), True, 128)
        assert part.score is False


def test_all_is_the_papers_own_size() -> None:
    xsum, humaneval, *_ = [settings(part, PaperStudy(limit="all", samples=100)) for part in PARTS]
    assert (xsum.limit, xsum.samples) == (None, 1)
    assert (humaneval.limit, humaneval.samples) == (None, 100)


def test_options_reach_every_part() -> None:
    given = PaperStudy(limit=3, seed=7, no_score=True, data="mini", unsafe_exec=True)
    for config in [settings(part, given) for part in PARTS]:
        assert (config.limit, config.seed, config.score, config.data) == (3, 7, False, "mini")


def test_programs_run_without_a_sandbox_where_a_part_is_scored() -> None:
    scored = [settings(part, PaperStudy()).score for part in PARTS]
    assert {True, False} == {*scored}
    unsafe = [settings(part, PaperStudy(unsafe_exec=True)).score for part in PARTS]
    assert unsafe == ["unsafe" if score else False for score in scored]


def test_fences_are_taken_in_code_alone() -> None:
    rules = {part.name: settings(part, PaperStudy(extract="fence")).extract for part in PARTS}
    assert {name for name, rule in rules.items() if rule == "fence"} == {
        "table1-humaneval",
        "figure1-humaneval",
    }
