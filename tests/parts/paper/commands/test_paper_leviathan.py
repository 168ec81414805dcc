"""``paper --of leviathan`` from end to end on the embedded encoder-decoders, with two prompts of one task."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli, Result, call

import spsbench.runner  # noqa: F401  (fills sys.modules)
from spsbench.base.errors import UsageError
from spsbench.config import load_paper, resolve
from spsbench.law.theory import walltime_factor
from spsbench.parts.paper import alphas
from spsbench.parts.paper import command as paper
from spsbench.parts.paper.command import PaperOptions, PaperStudy, chosen_k, setup_of, study_of

PAPER = ("paper", "--of", "leviathan")
SMALL = (
    *("--task", "ende=wmt-mini", "--draft", "small=embedded:mini-t5/draft-small"),
    *("--limit", "2", "--threads", "1"),
)
SHORT = {"max_new_tokens": 12, "warmup": False}
NOTHING = PaperStudy(of="leviathan")


def short(patch: pytest.MonkeyPatch) -> None:
    """Outputs of a few tokens, no warm-up, one round of timing."""
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    patch.setattr(alphas, "ROUNDS", 1)
    patch.setattr(paper, "LIMITS", paper.LIMITS | SHORT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished paper and what was printed; not to be changed."""
    directory = tmp_path_factory.mktemp("whole") / "paper"
    with pytest.MonkeyPatch.context() as patch:
        short(patch)
        return directory, call(*PAPER, *SMALL, "--json", "--out", directory)


def test_three_tables_and_three_figures(whole: tuple[Path, Result]) -> None:
    directory, result = whole
    assert result.code == 0, result.err
    page = json.loads(result.out)
    assert page == json.loads((directory / "paper.json").read_text())
    assert len(page["table1"]) == 6
    assert [(row["task"], row["draft"], row["temperature"]) for row in page["table2"]] == [
        ("ende", "small", 0),
        ("ende", "small", 1),
    ]
    assert [(row["draft"], row["temperature"]) for row in page["table3"]] == [
        (draft, temperature) for temperature in (0, 1) for draft in ("unigram", "bigram", "small")
    ]
    assert [row["paper"]["speed"] for row in page["table2"]] == [3.4, 2.6]
    for name in ("figure2", "figure3", "figure4"):
        assert (directory / "figures" / f"{name}.png").is_file()
        assert f"](figures/{name}.svg)" in (directory / "paper.md").read_text()


def test_alpha_is_one_number_in_both_tables_and_k_follows_from_it(whole: tuple[Path, Result]) -> None:
    """Table 2's comes from a run's own record, Table 3's from reading the texts again."""
    page = json.loads((whole[0] / "paper.json").read_text())
    kept = json.loads((whole[0] / "drafts-ende.json").read_text())["temperatures"]
    ngram = {row["draft"]: row["alpha"]["estimate"] for row in page["table3"] if row["temperature"] == 1}
    for row in page["table2"]:
        same = next(
            one
            for one in page["table3"]
            if (one["draft"], one["temperature"]) == ("small", row["temperature"])
        )
        assert row["alpha"]["estimate"] == pytest.approx(same["alpha"]["estimate"], abs=1e-5)
        chosen = kept[str(row["temperature"])]["drafts"]["small"]
        assert row["k"] == chosen["k"] == chosen_k(chosen["alpha"], chosen["c"], 10)
        assert row["predicted"] == pytest.approx(
            walltime_factor(row["alpha"]["estimate"], row["c"], row["k"]), rel=1e-4
        )
    assert max(ngram["unigram"], ngram["bigram"]) < ngram["small"]


def test_the_runs_are_of_temperature_0_and_1(whole: tuple[Path, Result]) -> None:
    greedy = json.loads((whole[0] / "table2-ende-small-t0" / "run.json").read_text())
    drawn = json.loads((whole[0] / "table2-ende-small-t1" / "run.json").read_text())
    assert all(arm["params"]["greedy"] for arm in greedy["arms"])
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "greedy": False}
    assert all(arm["params"] == plain for arm in drawn["arms"])
    assert [arm["method"] for arm in drawn["arms"]] == ["ars", "sps"]


@pytest.mark.thorough
def test_a_finished_paper_measures_nothing_again(
    cli: Cli, whole: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)

    def refused(*arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(sys.modules["spsbench.runner.execution"], "load", refused)
    monkeypatch.setattr(paper, "_loaded_pairs", refused)
    again = cli("paper", "--resume", whole[0])
    assert again.code == 0, again.err
    assert "Tables 1 to 3 of Leviathan" in " ".join(again.out.split())
    other = cli("paper", "--resume", whole[0], "--of", "chen")
    assert (other.code, "holds the paper leviathan" in other.err) == (2, True)


def test_a_refused_continuation_leaves_the_paper_as_it_was(
    cli: Cli, whole: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    place = shutil.copytree(whole[0], tmp_path / "paper")
    before = (place / "options.json").read_bytes()
    for given in (("--draft", "small=embedded:mini-t5/draft-base"), ("--seed", "1"), ("--target", "a")):
        refused = cli("paper", "--resume", place, *given)
        assert refused.code in (2, 3), (given, refused.err)
        assert (place / "options.json").read_bytes() == before, given


@pytest.mark.thorough
@pytest.mark.parametrize("after", [(), ("--draft", "small=embedded:mini-t5/draft-small")])
def test_texts_stay_when_another_draft_is_put_first(
    cli: Cli,
    whole: tuple[Path, Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: tuple[str, ...],
) -> None:
    """In place of the draft that their run was begun with, or before it."""
    short(monkeypatch)
    place, read = shutil.copytree(whole[0], tmp_path / "paper"), []

    def stopped(plans: Mapping[str, Any]) -> None:
        read.extend(plans)
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "_loaded_pairs", stopped)
    samples = (place / "texts-ende" / "samples.jsonl").read_bytes()
    found = cli("paper", "--resume", place, "--draft", "base=embedded:mini-t5/draft-base", *after)
    assert found.code == 130, found.err
    assert read == (["base", "small"] if after else ["base"])
    assert (place / "texts-ende" / "samples.jsonl").read_bytes() == samples


@pytest.mark.thorough
def test_a_row_without_phases_is_predicted_with_the_rehearsals_c(
    cli: Cli, whole: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where no run gives c."""
    short(monkeypatch)
    monkeypatch.setattr(
        "spsbench.stats.predict.costs.draft_over_target", lambda *given: (None, "not measured")
    )
    place = shutil.copytree(whole[0], tmp_path / "paper")
    assert cli("paper", "--resume", place, "--quiet").code == 0
    kept = json.loads((place / "drafts-ende.json").read_text())["temperatures"]
    for row in json.loads((place / "paper.json").read_text())["table2"]:
        c = kept[str(row["temperature"])]["drafts"]["small"]["c"]
        assert (row["c"], row["c_source"]) == (c, "rehearsal")
        predicted = walltime_factor(row["alpha"]["estimate"], c, row["k"])
        assert row["predicted"] == pytest.approx(predicted, rel=1e-4)
        assert row["residual"] == pytest.approx(row["speedup"]["estimate"] - row["predicted"])


@pytest.mark.thorough
def test_a_paper_that_was_stopped_keeps_its_k(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped behind the choice of K, and continued with more texts: alphas are new, the K stays."""
    short(monkeypatch)
    place, measure = tmp_path / "paper", paper.measure_part
    titles: list[str] = []

    def interrupted(part: paper.Part, *given: Any, **named: Any) -> Any:
        titles.append(part.title)
        if part.name.startswith("table2"):
            raise KeyboardInterrupt
        return measure(part, *given, **named)

    monkeypatch.setattr(paper, "measure_part", interrupted)
    monkeypatch.setattr(paper, "chosen_k", lambda *given: 3)
    stopped = cli(*PAPER, *SMALL, "--quiet", "--out", place)
    assert stopped.code == 130
    assert f"spsbench paper --resume {place}" in stopped.err
    before = json.loads((place / "drafts-ende.json").read_text())
    monkeypatch.setattr(paper, "chosen_k", lambda *given: 5)
    assert cli("paper", "--resume", place, "--limit", "3", "--quiet").code == 130
    after = json.loads((place / "drafts-ende.json").read_text())
    assert before["texts"] != after["texts"]
    assert before["temperatures"]["0"]["drafts"] == after["temperatures"]["0"]["drafts"]
    assert titles == ["Texts of the target, ende", "Table 2, ende, small, T=0, K=3"] * 2
    assert cli("paper", "--resume", place, "--draft", "small=embedded:mini-t5/draft-base").code == 130
    assert titles[-1] == "Table 2, ende, small, T=0, K=5"  # it is another model


def test_a_typed_0_takes_the_place_of_what_was_typed_before(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"seed": 5, "limit": 3, "no_score": true, "draft": ["a=x"]}')
    nothing: dict[str, Any] = {field.name: None for field in fields(PaperOptions)}
    typed = {"of": "chen", "resume": tmp_path, "seed": "0", "no_score": False, "draft": []}
    kept = study_of(PaperOptions(**nothing | typed))
    assert kept == PaperStudy(seed=0, limit=3, no_score=True, draft=["a=x"])


def test_a_paper_of_ones_own_is_found_from_another_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way its file is written."""
    short(monkeypatch)
    monkeypatch.setattr(paper, "_measured", lambda *given, **named: ({}, [], []))
    monkeypatch.setattr(paper, "_conclude", lambda *given: None)
    file, place = tmp_path / "mine.yaml", tmp_path / "paper"
    file.write_text("pair: mini-t5\ndrafts: {a: {id: embedded:mini-t5/draft-small}}\ntasks: {t: wmt-mini}\n")
    monkeypatch.chdir(tmp_path)
    assert cli("paper", "--of", "mine.yaml", "--limit", "1", "--out", place).code == 0
    assert json.loads((place / "options.json").read_text())["of"] == str(file.resolve())
    assert cli("paper", "--of", "./mine.yaml", "--resume", place).code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli("paper", "--resume", place).code == 0


def test_a_task_without_greedy_sampling_is_refused(cli: Cli, tmp_path: Path) -> None:
    task = tmp_path / "drawn.yaml"
    task.write_text(
        "name: drawn\ntitle: t\nkind: text\nprompt: '{text}'\nreference: text\nmax_new_tokens: 4\n"
        "samplings: {nucleus: {top_p: 0.9}}\ndefault_sampling: nucleus\nmetrics: [exact_match]\n"
        "headline: exact_match\n"
    )
    refused = cli(*PAPER, "--task", task, "--out", tmp_path / "paper")
    assert (refused.code, "no greedy sampling" in refused.err) == (2, True)


def test_models_and_tasks_of_ones_own_take_the_place_of_the_papers(tmp_path: Path) -> None:
    own = setup_of(replace(NOTHING, target="org/T", draft=["small=org/A", "org/B.gguf"], task=["x=xsum"]))
    assert {name: model.id for name, model in own.drafts.items()} == {"small": "org/A", "B": "org/B.gguf"}
    assert (own.tasks, own.notes) == ({"x": "xsum"}, "")
    numbered = setup_of(replace(NOTHING, draft=["meta-llama/Llama-3.2-1B"], task=["tasks/xsum.yaml"]))
    assert (list(numbered.drafts), list(numbered.tasks)) == (["Llama-3.2-1B"], ["xsum"])
    pair = setup_of(replace(NOTHING, pair="gpt2"))
    assert (pair.pair, [model.id for model in pair.drafts.values()]) == ("gpt2", ["openai-community/gpt2"])
    file = tmp_path / "mine.yaml"
    file.write_text("pair: mini\ndrafts: {a: {id: x}}\ntasks: {t: xsum}\nmost_k: 4\n")
    assert (load_paper(str(file)).most_k, load_paper(str(file)).name) == (4, "mine")
    file.write_text("pair: mini\ndrafts: {a: {id: x}}\ntasks: {t: xsum}\nmost_k: 0\n")
    with pytest.raises(UsageError, match="most_k"):
        load_paper(str(file))
    file.write_text("pair: mini\ndrafts: {bigram: {id: x}}\ntasks: {t: xsum}\n")
    with pytest.raises(UsageError, match="no NAME unigram or bigram"):
        load_paper(str(file))


def test_the_shipped_paper_names_models_and_tasks_that_exist() -> None:
    shipped = load_paper("leviathan")
    for task in shipped.tasks.values():
        assert resolve({"task": task, "protocol": "paper", "pair": shipped.pair}).pair.target.id


def test_k_is_the_best_of_the_formula_and_at_least_1() -> None:
    assert chosen_k(0.8, 0.1, 10) == max(range(1, 11), key=lambda k: walltime_factor(0.8, 0.1, k))
    assert chosen_k(0.99, 0.01, 10) == 10
    assert chosen_k(0.05, 0.5, 10) == 1
