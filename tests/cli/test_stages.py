"""What a run says of stages that ran operator by operator; and whether it is so."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, call
from support.tiny_models import TOKENS, make_pair, make_tokenizer, save

from spsbench.decode.rows import StagedRows
from spsbench.engines.buffer import LoopBuffer, TruncatedLoop
from spsbench.runner.execute import note_stages
from spsbench.store import RunStore

ECHO = Path(__file__).parents[2] / "examples" / "echo_drafter.py"
ONE_ROW = "one row's nucleus is as fast without"
QUICK = (*BRIEF, *SMALL, "--no-proof", "--no-score", "--remeasure", "0", "--k", "2")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bool]]:
    """How many loops' rows came from a program, and how many did not, by stage; of ArS by its name."""
    seen: Counter[tuple[str, bool]] = Counter()
    add = LoopBuffer.add

    def seeing(self: LoopBuffer, loop: TruncatedLoop) -> None:
        decoded = loop.decoded
        seen["ArS" if decoded.draft is None else "verify", isinstance(decoded.target_rows, StagedRows)] += 1
        if decoded.draft is not None:
            seen["propose", isinstance(decoded.draft.drawn_from, StagedRows)] += 1
        add(self, loop)

    monkeypatch.setattr(LoopBuffer, "add", seeing)
    return seen


def measured(run: Path, *typed: object) -> tuple[str, dict[str, Any]]:
    """What the title on the screen says, and what run.json has, of ``ArS`` and of each stage of SpS."""
    done = call("run", "xsum", *QUICK, *typed, "--out", run)
    assert done.code == 0, done.err
    told = json.loads((run / "run.json").read_text())["stages"]
    summary = json.loads((run / "summary.json").read_text())
    assert {row["arm"]: row["stages"] for row in summary["rows"]} == told
    stages = {("ArS" if len(own) == 1 else name): how for own in told.values() for name, how in own.items()}
    title = done.out.strip().split("\n\n")[0].split(" \n \n")[0]
    title = " ".join(title[: title.find("tokens, EOS") + 1 or None].split())
    report = (run / "report.md").read_text()
    said = title.partition("operator by operator: ")[2]
    assert done.out.count("perator by") <= 1
    assert report.count("Operator by operator: ") == bool(said)
    return said, stages


NOT_STAGED = {
    "greedy": (["--sampling", "greedy"], "", {}),
    "nucleus": ([], f"ArS ({ONE_ROW})", {"ArS": ONE_ROW}),
    "a drafter from a file": (
        ["--sampling", "greedy", "--drafter", f"{ECHO}:KIND"],
        "propose and verify (the drafter has no program)",
        dict.fromkeys(("propose", "verify"), "the drafter has no program"),
    ),
    "a processed law": (
        ["--process", "min_p=0.1"],
        "everything (the law is processed)",
        dict.fromkeys(("ArS", "propose", "verify"), "the law is processed"),
    ),
    "trees": (
        ["--sampling", "greedy", "--drafter", "model:siblings=top", "--tree", "2,2", "--rule", "one-hot"],
        "propose and verify (drafts are trees)",
        dict.fromkeys(("propose", "verify"), "drafts are trees"),
    ),
    "another rule": (
        ["--sampling", "greedy", "--rule", "block"],
        "verify (another rule judges)",
        {"verify": "another rule judges"},
    ),
    "a policy": (
        ["--sampling", "greedy", "--policy", "entropy"],
        "propose and verify (a policy changes K)",
        dict.fromkeys(("propose", "verify"), "a policy changes K"),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("nucleus", "a drafter from a file")
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in NOT_STAGED
    ],
)
def test_the_title_says_what_ran_operator_by_operator(
    name: str, tmp_path: Path, ran: Counter[tuple[str, bool]]
) -> None:
    typed, wanted, why = NOT_STAGED[name]
    said, stages = measured(tmp_path / "run", *typed)
    assert said == wanted
    assert stages == {"ArS": "program", "propose": "program", "verify": "program"} | why
    for stage, how in stages.items():
        assert bool(ran[stage, True]) == (how == "program"), stage
        assert bool(ran[stage, False]) != (how == "program"), stage


@pytest.mark.thorough
def test_a_large_vocabulary_runs_as_before(tmp_path: Path, ran: Counter[tuple[str, bool]]) -> None:
    size = 20_000
    models = make_pair("llama", vocab_sizes=(size, size), hidden_size=64)
    folders = [
        save(model, tmp_path / name, make_tokenizer(extra=size - TOKENS))
        for model, name in zip(models, ("target", "draft"), strict=True)
    ]
    said, _ = measured(tmp_path / "run", "--target", folders[0], "--draft", folders[1], "--top-k", "0")
    assert said == "everything (a vocabulary of 20,000)"
    assert not any(staged for _, staged in ran)


@pytest.mark.thorough
def test_resuming_and_runs_from_before(tmp_path: Path) -> None:
    """A run without the record is reported, compared and continued; then it has one."""
    run = tmp_path / "run"
    measured(run)
    path = run / "run.json"
    told = json.loads(path.read_text())
    stages = told.pop("stages")
    path.write_text(json.dumps(told))
    done = call("report", run)
    assert done.code == 0, done.err
    assert "perator by" not in done.out
    assert call("compare", run, run).code == 0
    lines = (run / "samples.jsonl").read_text().splitlines(keepends=True)
    (run / "samples.jsonl").write_text("".join(lines[:-1]))
    assert call("run", "--resume", run).code == 0
    now = json.loads(path.read_text())["stages"]
    assert now, "of the arms that ran this time"
    assert now.items() <= stages.items()


def test_a_run_that_is_continued_has_the_stages_of_all_its_loops(tmp_path: Path) -> None:
    before = {"sps": {"propose": "program", "verify": "why"}, "gone": {"verify": "why"}}
    run = tmp_path / "run"
    with RunStore.create(run, identity={}, config={}, info={"stages": before}, prompts=[]) as store:
        note_stages(store, {"sps": {"propose": "program", "verify": "program"}, "new": {"verify": "program"}})
        assert store.run_info()["stages"] == {
            "sps": {"propose": "program", "verify": "program in part: why"},
            "gone": {"verify": "why"},
            "new": {"verify": "program"},
        }


@pytest.mark.thorough
def test_batches_have_no_programs(tmp_path: Path) -> None:
    said, _ = measured(tmp_path / "run", "--limit", "2", "--batch", "2")
    assert said == "everything (a batch of 2)"
