"""``--extract`` through the command line: what runs, what is recorded, what keeps old runs alive."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import SMALL, call
from support.tiny_models import CHAT_TEMPLATE, config_of, make, make_tokenizer, save

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
AS_IT_IS = "pass@1: every answer run as it is, after its prompt."
BEGUN = "pass@1: the answer is begun with a fence and the function's head, and run up to the closing fence."
STOPS = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]


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
    device = ("--device", "cpu", "--out", out)
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


@pytest.mark.thorough_but("options0")
@pytest.mark.parametrize(
    ("options", "rule", "in_identity", "stop", "said"),
    [
        ((), "begun", "begun", ["\n```"], BEGUN),
        (("--extract", "auto"), "begun", "begun", ["\n```"], BEGUN),
        (("--extract", "fence"), "fence", None, [], TAKEN),
        (("--extract", "none"), "none", "none", [], AS_IT_IS),
        (("--chat-template", "none"), "none", None, STOPS, AS_IT_IS),
        (("--chat-template", "none", "--extract", "fence"), "fence", "fence", [], TAKEN),
    ],
)
def test_the_rule_is_recorded_and_told(
    models: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    rule: str,
    in_identity: str | None,
    stop: list[str],
    said: str,
) -> None:
    result = call(*command(models, tmp_path / "run", *options))
    assert result.code == 0, result.err
    run = written(tmp_path / "run")
    assert (run["extract"], run["identity"].get("extract")) == (rule, in_identity)
    assert run["identity"]["stop"] == stop
    assert said in (tmp_path / "run/report.md").read_text()
    assert said in " ".join(result.out.split())


@pytest.mark.thorough
def test_scores_by_either_rule_and_never_by_both(models: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*command(models, run, "--no-score", "--extract", "fence")).code == 0
    answer_with(run, FENCED)
    assert call("score", run).code == 0
    assert (scores(run), written(run)["extract"]) == ({1.0}, "fence")
    mixed = call("score", run, "--missing", "--extract", "none")
    assert (mixed.code, scores(run)) == (2, {1.0})
    assert "judged with fence, the missing ones would be with none" in mixed.err
    assert call("score", run, "--extract", "none").code == 0
    assert (scores(run), written(run)["extract"]) == ({0.0}, "none")
    refused = call("run", "--resume", run, "--quiet", "--extract", "fence")
    assert refused.code == 2
    assert "extract: none -> (absent)" in refused.err
    assert call("run", "--resume", run, "--quiet", "--extract", "none").code == 0
    assert call("score", run, "--extract", "auto").code == 0
    assert (scores(run), "extract" in written(run)["identity"]) == ({1.0}, False)


@pytest.mark.thorough
def test_an_answer_that_was_begun_is_scored_as_what_it_continues(models: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*command(models, run, "--no-score")).code == 0
    answer_with(run, "\n    return 2 * x")
    for options in ((), ("--missing",), ("--extract", "auto")):
        assert call("score", run, *options).code == 0
        assert (scores(run), written(run)["identity"]["extract"]) == ({1.0}, "begun")
    refused = call("score", run, "--extract", "fence")
    assert refused.code == 2
    assert "--extract: the answers of this run were begun for the model" in " ".join(refused.err.split())
    assert call("run", "--resume", run, "--quiet").code == 0
    assert call("run", "--resume", run, "--quiet", "--extract", "fence").code == 2


def as_before(run: Path, drop: str) -> None:
    """Take the rule out of a run's record, as if an earlier version had written it."""
    for name in ("run.json", "config.yaml"):
        text = (run / name).read_text()
        if name == "run.json":
            kept = {key: value for key, value in json.loads(text).items() if key != drop}
            (run / name).write_text(json.dumps(kept))
        else:
            (run / name).write_text(re.sub(r"extract: \w+\n", "" if drop else "extract: auto\n", text))


@pytest.mark.thorough
@pytest.mark.parametrize("template", ["auto", "none"])
@pytest.mark.parametrize("drop", ["", "extract"])
def test_a_run_of_free_answers_from_an_earlier_version_is_continued(
    models: Path, tmp_path: Path, template: str, drop: str
) -> None:
    """Its ``auto`` meant another thing in a chat, or it tells nothing at all."""
    run = tmp_path / "run"
    rule = "fence" if template == "auto" else "none"
    assert call(*command(models, run, "--chat-template", template, "--extract", rule)).code == 0
    as_before(run, drop)
    result = call("run", "--resume", run, "--samples", "2")
    assert result.code == 0, result.err
    assert ("pass@1:" in result.out) == (drop == "")


def test_judge_takes_fences_only_when_told(tmp_path: Path) -> None:
    problems, samples = tmp_path / "problems.jsonl", tmp_path / "samples.jsonl"
    problems.write_text(json.dumps(ROW) + "\n")
    row = {"task_id": "local/0", "completion": FENCED, "mark": "a"}
    samples.write_text(json.dumps(row) + "\n")
    judged = ("score", samples, "--problem-file", problems, "--n-workers", "1", "--json")
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
        (("run", "humaneval", "--extract", "markdown"), "must be auto, none or fence"),
        (("sweep-k", "humaneval", "--extract", "Fence"), "must be auto, none or fence"),
        (("paper", "--extract", "yes"), "must be auto, none or fence"),
        (("score", "RUN", "--extract", "x"), "must be auto, none or fence"),
        (("score", "samples.jsonl", "--extract", "auto"), "Give none or fence."),
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
    (warning,) = reasons(by_auto, by_none, []).warnings
    assert str(warning) == "how code is taken from answers differs (None, none)"
    assert reasons(by_none, by_none, []) == reasons(by_auto, by_auto, [])
