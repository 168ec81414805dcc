"""Translation and metrics of evaluate from the command line, with a pair that never learned to translate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import Cli

from spsbench.base.paths import data_dir

SOURCES = ["The old tower fell.", "Two people were hurt.", "It rained all night."]
TARGETS = ["The old tower fell down.", "Two people were hurt on the road.", "It rained."]
FLAGS = ("--max-new-tokens", "8", "--threads", "1", "--set", "warmup=false", "--no-proof", "--k", "2")


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Two aligned files of made-up lines, as ``--data`` names them."""
    paths = tmp_path / "test.en", tmp_path / "test.de"
    for path, texts in zip(paths, (SOURCES, TARGETS), strict=True):
        path.write_text("".join(f"{text}\n" for text in texts))
    return ",".join(map(str, paths))


def summary_of(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())


def test_bleu_of_a_run_is_that_of_sacrebleu_on_its_outputs(cli: Cli, tmp_path: Path, lines: str) -> None:
    run = tmp_path / "run"
    result = cli("run", "wmt14-ende", "--data", lines, *FLAGS, "--out", run)
    assert result.code == 0, result.err
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    assert f"BLEU: {signature}" in result.out
    assert "BLEU" in result.out.split("ArS")[0]
    samples = map(json.loads, (run / "samples.jsonl").read_text().splitlines())
    texts = {row["example_id"]: row["text"] for row in samples if row["arm"] == "ars-greedy"}
    (tmp_path / "output").write_text("".join(f"{texts[name]}\n" for name in sorted(texts)))
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "test.de"), "-i", str(tmp_path / "output")]
    told = subprocess.run([*command, "-b", "-w", "10"], capture_output=True, text=True, check=True).stdout
    summary = summary_of(run)
    assert {f"{row['metrics']['bleu']:.10f}" for row in summary["rows"]} == {told.strip()}
    assert summary["parity"]["metric"] == "bleu"
    recorded = json.loads((run / "run.json").read_text())["metrics"]["bleu"]["signature"]
    assert recorded.startswith(signature)
    assert recorded.replace("|", "\\|") in (run / "report.md").read_text()

    (run / "scores.jsonl").write_text("")
    again = cli("score", run, "--json")
    assert again.code == 0, again.err
    assert [row["metrics"] for row in json.loads(again.out)["rows"]] == [
        r["metrics"] for r in summary["rows"]
    ]
    compared = json.loads(cli("compare", run, run, "--json").out)
    assert [found["metric"] for found in compared["arms"][0]["metrics"]] == ["bleu"]


@pytest.mark.thorough
def test_metrics_of_evaluate_score_a_task(
    cli: Cli, tmp_path: Path, lines: str, metric_script: Callable[[str, str], Path]
) -> None:
    script = metric_script("words", '{"words": sum(same) / len(same), "lengths": lengths}')
    content = yaml.safe_load((data_dir("tasks") / "wmt14-ende.yaml").read_text())
    named = ["bleu", f"evaluate:{script.name}", f"evaluate:{script.name}:lengths"]
    task = tmp_path / "task.yaml"
    task.write_text(yaml.safe_dump(content | {"metrics": named, "headline": "words:lengths"}))
    run = tmp_path / "run"
    result = cli("run", task, "--data", lines, *FLAGS, "--out", run)
    assert result.code == 0, result.err
    summary = summary_of(run)
    for row in summary["rows"]:
        assert row["metrics"].keys() == {"bleu", "words", "words:lengths"}
        assert row["metric_intervals"].keys() == {"bleu"}
    (comparison,) = summary["parity"]["comparisons"]
    assert (comparison["difference"], comparison["verdict"]) == (0.0, None)
    assert "outputs identical on all" in " ".join(result.out.split())
    scored = json.loads(cli("score", run, "--json").out)
    assert [row["metrics"] for row in scored["rows"]] == [row["metrics"] for row in summary["rows"]]
    assert cli("report", run, "--quiet").code == 0
    assert [row["metrics"] for row in summary_of(run)["rows"]] == [row["metrics"] for row in summary["rows"]]


def figures_of(run: Path, name: str) -> list[float | None]:
    return [row["metrics"].get(name) for row in summary_of(run)["rows"]]


@pytest.mark.thorough
def test_a_figure_is_dropped_once_the_run_has_other_outputs(
    cli: Cli, tmp_path: Path, lines: str, metric_script: Callable[[str, str], Path]
) -> None:
    """Scored, continued without scoring, reported, and scored again."""
    script = metric_script("stretch", '{"score": lengths, "same": same[0]}')
    content = yaml.safe_load((data_dir("tasks") / "wmt14-ende.yaml").read_text())
    task, run = tmp_path / "task.yaml", tmp_path / "run"
    task.write_text(yaml.safe_dump(content | {"metrics": [f"evaluate:{script.name}"], "headline": "stretch"}))
    asked = ("run", task, "--data", lines, *FLAGS)
    assert cli(*asked, "--limit", "1", "--out", run).code == 0
    assert None not in figures_of(run, "stretch")
    longer = cli(*asked, "--limit", "3", "--no-score", "--resume", run)
    assert longer.code == 0, longer.err
    assert set(figures_of(run, "stretch")) == {None}
    report = cli("report", run)
    assert set(figures_of(run, "stretch")) == {None}
    assert "stretch has no figure here" in " ".join(report.out.split())
    assert cli("score", run, "--missing").code == 0
    assert None not in figures_of(run, "stretch")
    assert cli("report", run).code == 0
    assert None not in figures_of(run, "stretch")


FILE_METRIC = """
from spsbench.tasks.metrics.kind import MetricKind, Sums

def counts(prompts, outputs, references):
    return [[len(output), len(reference)] for output, reference in zip(outputs, references)]

KIND = MetricKind("lengths", "Ratio of lengths.", sums=Sums(("out", "in"), counts, lambda s: s[0] / s[1]))
"""


@pytest.mark.thorough
def test_a_report_keeps_the_figures_of_a_files_metric(cli: Cli, tmp_path: Path, lines: str) -> None:
    content = yaml.safe_load((data_dir("tasks") / "wmt14-ende.yaml").read_text())
    task, run = tmp_path / "task.yaml", tmp_path / "run"
    (tmp_path / "lengths.py").write_text(FILE_METRIC)
    task.write_text(yaml.safe_dump(content | {"metrics": ["lengths.py:KIND"], "headline": "lengths"}))
    result = cli("run", task, "--data", lines, *FLAGS, "--out", run)
    assert result.code == 0, result.err
    rows = [(row["metrics"], row["metric_intervals"]) for row in summary_of(run)["rows"]]
    assert None not in figures_of(run, "lengths")
    (tmp_path / "lengths.py").write_text("raise SystemExit('executed')")
    assert cli("report", run).code == 0
    assert [(row["metrics"], row["metric_intervals"]) for row in summary_of(run)["rows"]] == rows


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ("unaligned", 3, "they differ in their number of lines"),
        ("empty", 3, "line 2 of"),
        ("three", 2, "names 3 files, and the task reads 2 columns (source, target)"),
        ("unknown", 2, "blue is unknown. Did you mean bleu?"),
        ("script", 3, "nothing.py is not there"),
        ("mini", 2, "wmt14-ende has no synthetic data"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    cli: Cli, tmp_path: Path, lines: str, change: str, code: int, told: str
) -> None:
    task, data = "wmt14-ende", lines
    if change in ("unaligned", "empty"):
        (tmp_path / "test.en").write_text("One.\n" if change == "unaligned" else "One.\n\nThree.\n")
    elif change == "three":
        data = f"{lines},{tmp_path / 'test.en'}"
    elif change == "mini":
        data = "mini"
    else:
        content = yaml.safe_load((data_dir("tasks") / "wmt14-ende.yaml").read_text())
        name = "blue" if change == "unknown" else "evaluate:nothing.py"
        (tmp_path / "task.yaml").write_text(yaml.safe_dump(content | {"metrics": [name]}))
        task = str(tmp_path / "task.yaml")
    result = cli("run", task, "--data", data, *FLAGS, "--out", tmp_path / "run")
    assert result.code == code
    assert told in " ".join(result.err.split())
    assert "Loading" not in result.err
    assert not (tmp_path / "run").exists()
