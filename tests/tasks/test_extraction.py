"""``--extract`` through the command line: what runs, what is recorded, what keeps old runs alive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commandline import SMALL, call
from tiny_models import CHAT_TEMPLATE, config_of, make, make_tokenizer, save

from spsbench.cli.paper import _OPTIONS, PARTS, settings
from spsbench.stats.comparison import reasons

ROW = {
    "task_id": "local/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}
FENCED = "Here is it:\n\n```python\ndef double(x):\n    return 2 * x\n```\n\nIt doubles.\n"
TAKEN = "pass@1: code taken from the first Python fence that defines the function"
AS_IT_IS = "pass@1: every answer run as it is, behind its prompt."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instruct model beside a file with one problem."""
    folder = tmp_path_factory.mktemp("chat")
    model = make(config_of("llama", num_hidden_layers=1, max_position_embeddings=1024))
    save(model, folder / "m", make_tokenizer(bos=True, chat_template=CHAT_TEMPLATE))
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    return folder


def command(models: Path, out: Path, *options: object) -> list[object]:
    pair = ("--target", models / "m", "--draft", models / "m", "--data", models / "rows.jsonl")
    device = ("--device", "cpu", "--quiet", "--out", out)
    return ["run", "humaneval", *pair, *SMALL, *device, *options]


def written(run: Path, name: str = "run.json") -> Any:
    return json.loads((run / name).read_text())


def answer_with(run: Path, text: str) -> None:
    """Put an answer into the journal, as if the models had written it."""
    path = run / "samples.jsonl"
    rows: Sequence[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["text"] = text
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def scores(run: Path) -> set[float]:
    return {row["metrics"]["pass@1"] for row in written(run, "summary.json")["rows"]}


@pytest.mark.parametrize(
    ("options", "rule", "in_identity", "said"),
    [
        ((), "fence", None, TAKEN),
        (("--extract", "auto"), "fence", None, TAKEN),
        (("--extract", "fence"), "fence", None, TAKEN),
        (("--extract", "none"), "none", "none", AS_IT_IS),
        (("--chat-template", "none"), "none", None, AS_IT_IS),
        (("--chat-template", "none", "--extract", "fence"), "fence", "fence", TAKEN),
    ],
)
def test_the_rule_is_recorded_and_told(
    models: Path, tmp_path: Path, options: tuple[str, ...], rule: str, in_identity: str | None, said: str
) -> None:
    result = call(*command(models, tmp_path / "run", *options))
    assert result.code == 0, result.err
    run = written(tmp_path / "run")
    assert (run["extract"], run["identity"].get("extract")) == (rule, in_identity)
    assert (run["identity"]["stop"] == []) == ("--chat-template" not in options or rule == "fence")
    assert said in (tmp_path / "run/report.md").read_text()
    assert said in " ".join(result.out.split())


def test_scores_by_either_rule_and_never_by_both(models: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*command(models, run, "--no-score")).code == 0
    answer_with(run, FENCED)
    assert call("score", run).code == 0
    assert (scores(run), written(run)["extract"]) == ({1.0}, "fence")
    mixed = call("score", run, "--missing", "--extract", "none")
    assert (mixed.code, scores(run)) == (2, {1.0})
    assert "judged with fence, the missing ones would be with none" in mixed.err
    assert call("score", run, "--extract", "none").code == 0
    assert (scores(run), written(run)["extract"]) == ({0.0}, "none")
    refused = call("run", "--resume", run, "--quiet")
    assert refused.code == 2
    assert "extract: none -> (absent)" in refused.err
    assert call("run", "--resume", run, "--quiet", "--extract", "none").code == 0
    assert call("score", run, "--extract", "auto").code == 0
    assert (scores(run), "extract" in written(run)["identity"]) == ({1.0}, False)


@pytest.mark.parametrize("template", ["auto", "none"])
def test_a_run_from_before_there_was_a_choice_is_continued(
    models: Path, tmp_path: Path, template: str
) -> None:
    run = tmp_path / "run"
    assert call(*command(models, run, "--chat-template", template)).code == 0
    old = {key: value for key, value in written(run).items() if key != "extract"}
    (run / "run.json").write_text(json.dumps(old))
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(settings.replace("extract: auto\n", ""))
    assert "extract" not in (run / "config.yaml").read_text()
    result = call("run", "--resume", run, "--samples", "2")
    assert result.code == 0, result.err
    assert "pass@1:" not in result.out


def test_judge_takes_fences_only_when_told(tmp_path: Path) -> None:
    problems, samples = tmp_path / "problems.jsonl", tmp_path / "samples.jsonl"
    problems.write_text(json.dumps(ROW) + "\n")
    row = {"task_id": "local/0", "completion": FENCED, "mark": "a"}
    samples.write_text(json.dumps(row) + "\n")
    judged = ("judge", samples, "--problem-file", problems, "--n-workers", "1", "--json")
    found = {}
    for options in ((), ("--extract", "none"), ("--extract", "fence")):
        result = call(*judged, *options)
        assert result.code == 0, result.err
        printed = json.loads(result.out)
        found[options] = (printed["extract"], printed["pass@1"])
    assert list(found.values()) == [("none", 0.0), ("none", 0.0), ("fence", 1.0)]
    kept = json.loads((tmp_path / "samples.jsonl_results.jsonl").read_text())
    assert kept == {**row, "result": "passed", "passed": True}


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        (("run", "humaneval", "--extract", "markdown"), "Give auto, none or fence."),
        (("sweep-k", "humaneval", "--extract", "Fence"), "Give auto, none or fence."),
        (("paper", "--extract", "yes"), "Give auto, none or fence."),
        (("score", "RUN", "--extract", "x"), "Give auto, none or fence."),
        (("judge", "samples.jsonl", "--extract", "auto"), "Give none or fence."),
        (("run", "xsum", "--extract", "fence"), "Give auto or none."),
    ],
)
def test_bad_values(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], choices: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "RUN" in arguments:
        assert call(*command(models, tmp_path / "RUN", "--no-score")).code == 0
    result = call(*arguments)
    assert result.code == 2
    assert "--extract" in result.err
    assert choices in " ".join(result.err.split())


def test_runs_of_different_rules_are_compared_with_a_warning() -> None:
    by_auto, by_none = {"identity": {}}, {"identity": {"extract": "none"}}
    assert reasons(by_auto, by_none, []).warnings == ("how code is taken from answers differs (None, none)",)
    assert reasons(by_none, by_none, []) == reasons(by_auto, by_auto, [])


def test_paper_takes_fences_in_its_code_alone() -> None:
    options: dict[str, Any] = dict.fromkeys(_OPTIONS) | {"extract": "fence"}
    rules = {part.name: settings(part, options).extract for part in PARTS}
    assert {name for name, rule in rules.items() if rule == "fence"} == {
        "table1-humaneval",
        "figure1-humaneval",
    }
