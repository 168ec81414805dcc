from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from support.commandline import Cli, Result
from support.synthetic_run import make_run


@pytest.fixture
def run(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of a finished run as the only one in results/."""
    directory = tmp_path / "results" / "one"
    shutil.copytree(finished[0], directory)
    return directory


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    """A small run of which nothing was measured."""
    return make_run(tmp_path / "simulated", ks=(0, 4), samplings=("nucleus",), prompts=3, tokens=8)


def test_the_latest_run_is_shown_as_it_was(cli: Cli, run: Path, finished: tuple[Path, Result]) -> None:
    result = cli("report")
    assert result.code == 0, result.err
    assert result.out == finished[1].out
    assert "results/one/report.md" in result.err


def test_json_is_the_summary(cli: Cli, run: Path) -> None:
    before = json.loads((run / "summary.json").read_text())
    result = cli("report", run, "--json", "--quiet")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == before
    assert json.loads((run / "summary.json").read_text()) == before


def test_csv_is_alone_on_stdout(cli: Cli, simulated: Path) -> None:
    result = cli("report", simulated, "--csv", "--quiet")
    assert (result.code, result.err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(result.out)))
    assert [(line["run"], line["method"]) for line in lines] == [("simulated", "ars"), ("simulated", "sps")]


def test_latex_is_alone_on_stdout_a_run_after_the_other(cli: Cli, simulated: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", ks=(0, 2), samplings=("nucleus",), prompts=3, tokens=8, seed=8)
    result = cli("report", simulated, other, "--latex", "--quiet")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("% Run simulated: ")
    assert "\n% Run other: " in result.out
    assert result.out.count("\\begin{tabular}") == result.out.count("\\end{tabular}") == 4
    assert result.out.endswith("\\end{table}\n")


@pytest.mark.thorough
def test_the_report_links_figures_that_are_there(cli: Cli, simulated: Path, drawn: None) -> None:
    assert cli("report", simulated).code == 0
    text = (simulated / "report.md").read_text()
    linked = [line.partition("](")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert "figures/loop_time.svg" in linked
    for name in linked:
        assert (simulated / name).is_file()
        assert (simulated / name).with_suffix(".png").is_file()
        assert (simulated / name).with_suffix(".pdf").is_file()
    assert "* Figure 1: one lookahead makes no sweep" in text


def test_a_real_run_has_a_page_whose_trace_can_be_read(cli: Cli, run: Path, drawn: None) -> None:
    """The texts of traced tokens come with the run: no tokenizer is asked."""
    result = cli("report", "--html")
    assert result.code == 0, result.err
    assert f"The page is in {Path('results/one/report.html')}" in result.err
    page = (run / "report.html").read_text()
    texts = json.loads((run / "run.json").read_text())["token_texts"]
    tokens = json.loads((run / "samples.jsonl").read_text().splitlines()[0])["token_ids"]
    assert {str(token) for token in tokens} <= set(texts)
    assert any(text.strip() and f">{text}</span>" in page for text in texts.values())


@pytest.mark.thorough
def test_several_runs_are_compared(cli: Cli, simulated: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", ks=(0, 2), samplings=("nucleus",), prompts=3, tokens=8, seed=8)
    result = cli("report", simulated, other, "--html", "--out", tmp_path / "both.html")
    assert result.code == 0, result.err
    assert " A  simulated: xsum-fixture (synthetic)" in result.out
    assert " B  other: xsum-fixture (synthetic)" in result.out
    assert "seed" in result.out
    assert "2 runs side by side" in (tmp_path / "both.html").read_text()
    content = json.loads(cli("report", simulated, other, "--json", "--quiet").out)
    assert [Path(entry["run"]).name for entry in content["runs"]] == ["simulated", "other"]


@pytest.mark.thorough
def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    cli: Cli, simulated: Path, tmp_path: Path
) -> None:
    result = cli("report", simulated, tmp_path)
    assert result.code == 2
    assert "SpS (K=4)" in result.out
    assert f"{tmp_path} is not a run directory" in result.err


def test_an_unfinished_run_is_reported_from_its_journal(cli: Cli, run: Path) -> None:
    journal = run / "samples.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    (run / "summary.json").unlink()
    (run / "report.md").unlink()
    result = cli("report", run, "--json")
    summary = json.loads(result.out)
    assert sum(row["sequences"] for row in summary["rows"]) == 1
    assert sum(row["missing"] for row in summary["rows"]) == 1
    assert summary["complete"] is False
    assert f"spsbench run --resume {run}" in result.err
    assert not (run / "report.md").exists(), "nothing is drawn for another program"
    assert cli("report", run).code == 0
    assert (run / "report.md").is_file()


def test_a_folder_without_a_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = cli("report", tmp_path)
    assert result.code == 2
    assert "is not a run directory" in result.err


def test_a_run_that_has_measured_nothing_says_so(cli: Cli, tmp_path: Path, drawn: None) -> None:
    empty = make_run(tmp_path / "empty", ks=(0, 4), prompts=0)
    result = cli("report", empty, "--html")
    assert result.code == 0, result.err
    assert "not run" in result.out
    text = (empty / "report.md").read_text()
    assert text.count("\n* ") >= 6
    assert "no speculative arm finished a sequence" in text


def test_a_torn_journal_and_a_damaged_summary_are_survived(cli: Cli, simulated: Path) -> None:
    journal = simulated / "samples.jsonl"
    journal.write_text(journal.read_text()[:-40])
    (simulated / "summary.json").write_text('{"schema_version": 1, "rows": 3}')
    result = cli("report", simulated)
    assert result.code == 0, result.err
    assert "have not been run" in result.out.replace("\n   ", " ")


@pytest.mark.thorough
def test_one_arm_alone_is_reported_without_a_speedup(cli: Cli, tmp_path: Path, drawn: None) -> None:
    alone = make_run(tmp_path / "alone", ks=(4,), samplings=("nucleus",), prompts=3, tokens=8)
    result = cli("report", alone, "--html")
    assert result.code == 0, result.err
    assert "no ArS arm to compare with" in result.out
    assert (alone / "figures/acceptance.svg").is_file()


def test_another_schema_is_refused(cli: Cli, simulated: Path) -> None:
    content = json.loads((simulated / "run.json").read_text())
    (simulated / "run.json").write_text(json.dumps(content | {"schema_version": 99}))
    result = cli("report", simulated)
    assert result.code == 2
    assert "schema version 99" in result.err


@pytest.mark.thorough
def test_out_needs_html_and_a_folder(cli: Cli, simulated: Path, tmp_path: Path) -> None:
    assert cli("report", simulated, "--out", tmp_path / "x.html").code == 2
    result = cli("report", simulated, "--html", "--out", tmp_path / "nowhere/x.html")
    assert result.code == 2
    assert "is not a folder" in result.err
