"""``run field``: a run a task in one folder, the row of all, and what a missing task does to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console
from support.commandline import call, journal

from spsbench.base.records import Generation, Request
from spsbench.engines import rescore
from spsbench.engines.local import EagerEngine
from spsbench.parts.paper import field as paper_field
from spsbench.runner import execute

FIELD_TASKS = ("gsm8k", "mt-bench")
"""Fewer than there are: each is a run."""
TINY = ("--limit", "1", "--max-new-tokens", "8", "--threads", "1", "--set", "warmup=false")
BARE = ("--no-proof", "--no-score", "--remeasure", "0", "--quiet")


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_field, "FIELD_TASKS", FIELD_TASKS)
        yield


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished folder, and what --json printed of it."""
    folder = tmp_path_factory.mktemp("field") / "all"
    done = call("run", "field", *TINY, *BARE, "--json", "--out", folder)
    assert done.code == 0, done.err
    return folder, json.loads(done.out)


@pytest.mark.thorough
def test_every_task_is_a_run_and_the_row_has_each_and_their_mean(field: tuple[Path, dict[str, Any]]) -> None:
    folder, page = field
    assert json.loads((folder / "field.json").read_text()) == page
    (row,) = page["rows"]
    assert tuple(row["tasks"]) == FIELD_TASKS
    assert row["sampling"] == "greedy"
    for task, cell in row["tasks"].items():
        summary = json.loads((folder / task / "summary.json").read_text())
        sps = next(arm for arm in summary["rows"] if arm["method"] == "sps")
        length = cell["mean_acceptance_length"]["estimate"]
        assert length == pytest.approx(sps["acceptance"]["mean_acceptance_length"])
        assert (cell["tokens_per_loop"], cell["speedup"]) == (sps["tokens_per_loop"], sps["speedup"])
    lengths = [cell["mean_acceptance_length"]["estimate"] for cell in row["tasks"].values()]
    assert row["mean"]["mean_acceptance_length"] == pytest.approx(sum(lengths) / len(lengths))
    text = (folder / "field.md").read_text()
    assert "| mean_acceptance_length |" in text
    assert "(synthetic)" in text.splitlines()[0]


@pytest.mark.thorough
def test_a_finished_folder_is_shown_again_and_extended(
    field: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, page = field
    before = {task: journal(folder / task) for task in FIELD_TASKS}
    monkeypatch.setenv("COLUMNS", "80")
    again = call("run", "--resume", folder)
    assert again.code == 0, again.err
    assert {task: journal(folder / task) for task in FIELD_TASKS} == before
    assert max(map(len, again.out.splitlines())) <= 80
    assert f"{page['rows'][0]['mean']['tokens_per_loop']:.2f}" in again.out
    more = call("run", "--resume", folder, "--limit", "2", "--quiet")
    assert more.code == 0, more.err
    # Two prompts by two arms, and of MT-Bench the second turn of each.
    assert [len(journal(folder / task)) for task in FIELD_TASKS] == [4, 8]


@pytest.mark.thorough
def test_what_one_task_lacks_loses_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spsbench.base import UnavailableError
    from spsbench.tasks import task as tasks

    folder, real = tmp_path / "field", tasks.read_rows

    def without_news(path: Path, split: str) -> Any:
        if "gsm8k" in path.name:
            raise UnavailableError("no network.", flag="--data official", remedy="Go online.")
        return real(path, split)

    monkeypatch.setattr(tasks, "read_rows", without_news)
    short = call("run", "field", *TINY, *BARE, "--out", folder)
    assert short.code == 5
    assert f"gsm8k. `spsbench run --resume {folder}` tries again." in short.err
    page = json.loads((folder / "field.json").read_text())
    assert [part["task"] for part in page["missing"]] == ["gsm8k"]
    assert tuple(page["rows"][0]["tasks"]) == tuple(task for task in FIELD_TASKS if task != "gsm8k")
    assert "| mean_acceptance_length | - |" in (folder / "field.md").read_text().replace("–", "-")
    monkeypatch.setattr(tasks, "read_rows", real)
    whole = call("run", "--resume", folder, "--quiet")
    assert whole.code == 0, whole.err
    assert json.loads((folder / "field.json").read_text())["missing"] == []


@pytest.mark.thorough
def test_an_interrupted_field_says_how_it_goes_on_and_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spsbench import runner

    folder, begun = tmp_path / "field", []

    def breaks_off(plan: Any, directory: Path, **more: Any) -> Any:
        if begun:
            raise KeyboardInterrupt
        begun.append(directory)
        return execute(plan, directory, **more)

    monkeypatch.setattr(runner, "execute", breaks_off)
    broken = call("run", "field", *TINY, *BARE, "--out", folder)
    assert broken.code == 130
    assert broken.err.rstrip().endswith(f"spsbench run --resume {folder}")
    kept = journal(folder / FIELD_TASKS[0])
    assert kept
    monkeypatch.setattr(runner, "execute", execute)
    done = call("run", "--resume", folder, "--quiet")
    assert done.code == 0, done.err
    assert journal(folder / FIELD_TASKS[0]) == kept
    assert all(journal(folder / task) for task in FIELD_TASKS)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("field", "--shard", "1/2"), "--shard: 1/2 is for the run of a single task"),
        (("field", "--k", "-1"), "--k"),
        (("field", "--resume", "{empty}"), "--resume: {empty} holds no field."),
        (("field", "--out", "{full}"), "--out: {full} is not empty and holds no field."),
        (("gsm8k", "--resume", "{begun}"), "TASK: gsm8k is given"),
    ],
)
def test_refusals(tmp_path: Path, typed: tuple[str, ...], said: str) -> None:
    places = {name: tmp_path / name for name in ("empty", "full", "begun")}
    places["empty"].mkdir()
    (places["begun"] / "field").mkdir(parents=True)
    places["full"].mkdir()
    (places["full"] / "note.txt").write_text("mine")
    refused = call("run", *(each.format(**places) for each in typed))
    assert refused.code == 2
    assert said.format(**places) in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "empty", "full"]


@pytest.mark.parametrize("undecided", [False, True])
def test_a_mean_of_times_that_others_disturbed_is_marked_as_they_are(undecided: bool) -> None:
    cell = {"mean_acceptance_length": 2.0, "tokens_per_loop": 2.0, "speedup": 1.5}
    part = {"task": "gsm8k", "label": "gsm8k", "prompts": 1, "undecided": undecided}
    row = {"label": "SpS (K=4)", "sampling": "greedy", "tasks": {"gsm8k": cell}, "mean": cell}
    page: Any = {"pair": "mini", "synthetic": True, "tasks": [part], "missing": [], "rows": [row]}
    console = Console(width=80)
    with console.capture() as shown:
        console.print(paper_field.screen(page))
    assert shown.get().count("1.50x?") == (2 if undecided else 0)
    assert shown.get().count("1.50x") == 2


@pytest.mark.thorough
def test_a_gate_is_of_every_task_and_the_field_keeps_what_it_needs(tmp_path: Path) -> None:
    folder = tmp_path / "field"
    bare = tuple(option for option in BARE if option != "--no-proof")
    done = call("run", "field", *TINY, *bare, "--fail-on", "lossless", "--out", folder)
    assert done.code == 0, done.err
    for task in FIELD_TASKS:
        settings = (folder / "field" / f"{task}.yaml").read_text().splitlines()
        assert "proof: true" in settings
        assert "score: false" in settings


def _one_wrong_token() -> AbstractContextManager[Any]:
    generate = EagerEngine.generate

    def wrong(self: EagerEngine, request: Request) -> Generation:
        made = generate(self, request)
        if self._k:
            made.tokens[-1] += 1
        return made

    return patch.object(EagerEngine, "generate", wrong)


def _no_second_reading() -> AbstractContextManager[Any]:
    return patch.object(rescore, "readings", side_effect=RuntimeError("no rows"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "said"), [(_one_wrong_token, "greedy: alarm ("), (_no_second_reading, "greedy: no evidence (")]
)
@pytest.mark.parametrize("command", [("field",), ("gsm8k", "--sampling", "greedy")], ids=" ".join)
def test_without_a_proof_the_gate_lossless_judges_the_outputs(
    tmp_path: Path, command: tuple[str, ...], fault: Callable[[], AbstractContextManager[Any]], said: str
) -> None:
    """--no-proof leaves out sequences at temperature 1; the decisions of the outputs are derived again."""
    with fault():
        wrong = call("run", *command, *TINY, *BARE, "--fail-on", "lossless", "--out", tmp_path / "run")
    assert wrong.code == 4, wrong.err
    assert f"lossless: SpS (K=4), {said}" in wrong.err


@pytest.mark.thorough
def test_settings_of_another_run_are_refused_and_not_kept(field: tuple[Path, dict[str, Any]]) -> None:
    folder, page = field
    kept = {path: path.read_bytes() for path in sorted(folder.rglob("*.yaml"))}
    other = call("run", "--resume", folder, "--seed", "5", "--quiet")
    assert other.code == 2, other.err
    assert "holds another run (its value -> yours):" in other.err
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*.yaml"))} == kept
    again = call("run", "--resume", folder, "--json", "--quiet")
    assert again.code == 0, again.err
    assert json.loads(again.out)["pair"] == page["pair"]


@pytest.mark.thorough
def test_without_a_proof_sound_outputs_pass_the_gate_lossless(field: tuple[Path, dict[str, Any]]) -> None:
    passed = call("run", "--resume", field[0], "--fail-on", "lossless", "--quiet")
    assert passed.code == 0, passed.err


@pytest.mark.thorough
def test_a_gate_that_a_task_does_not_pass_names_it_after_the_row(field: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = field
    done = call("run", "--resume", folder, "--fail-on", "untrusted,parity")
    assert done.code == 4
    assert "gsm8k, parity: nothing was scored" in done.err
    assert "mt-bench, parity" not in done.err
    assert "No parity for mt-bench: no metric scores it" in done.err
    assert "tokens_per_loop" in done.out


def test_gates_of_the_field_are_looked_at_before_anything_is_measured(tmp_path: Path) -> None:
    done = call("run", "field", "--fail-on", "fast", "--out", tmp_path / "field")
    assert done.code == 2
    assert "--fail-on: fast" in done.err
    lossy = call(
        "run", "field", "--rule", "lenience:l=0.9", "--fail-on", "lossless", "--out", tmp_path / "field"
    )
    assert lossy.code == 2, lossy.err
    assert "is lossy by design and cannot pass the gate lossless" in lossy.err
