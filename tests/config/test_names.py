"""Names of one's own models and files: they stay apart, and are safe wherever they are printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.commandline import ALONE, BRIEF, call

from spsbench.base.files import slug
from spsbench.base.paths import mini_dir
from spsbench.config import ModelRef, resolve
from spsbench.config.files import LONGEST, file_name, model_name, pair_name, with_draft
from spsbench.store import fresh_directory

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("target", "draft", "name"),
    [
        ("./my-llama-8b", "./my-llama-1b", "my-llama-8b with my-llama-1b"),
        ("/models/llama-3.1-8b/", "~/llama-3.2-1b", "llama-3.1-8b with llama-3.2-1b"),
        ("./a/model", "./b/model", "a/model with b/model"),
        ("/x/a/model", "/y/a/model", "x/a/model with y/a/model"),
        ("./model", "./model/draft", "model with draft"),
        ("meta-llama/Llama-3-8B", "org/draft", "meta-llama/Llama-3-8B with org/draft"),
        ("gpt2", "./gpt2", "gpt2 with {cwd}/gpt2"),
        ("embedded:mini/target", "package:smollm2", "mini/target with smollm2"),
        ("./größe 8b", "./modèle 1b", "größe 8b with modèle 1b"),
        (f"/cache/models--org--name/snapshots/{COMMIT}", "./d", "org/name@0123456 with d"),
        ("./model.Q8_0.gguf", "./d", "model.Q8_0.gguf with d"),
        ("./same", "./same", "same with itself"),
    ],
)
def test_a_pair_is_called_by_both_models(target: str, draft: str, name: str) -> None:
    found = pair_name(ModelRef(id=target), ModelRef(id=draft))
    assert found == name.replace("{cwd}", Path.cwd().name)


@pytest.mark.parametrize(
    ("revision", "shown"), [(COMMIT, "org/name@0123456"), ("v1.2", "org/name@v1.2"), (None, "org/name")]
)
def test_a_revision_is_shown_and_a_commit_is_shortened(revision: str | None, shown: str) -> None:
    assert model_name(ModelRef(id="org/name", revision=revision)) == shown


def test_two_revisions_of_one_model_stay_apart() -> None:
    one, two = (ModelRef(id="org/m", revision=digit * 40) for digit in "ab")
    assert pair_name(one, two) == "org/m@aaaaaaa with org/m@bbbbbbb"


def test_a_long_name_loses_its_middle_unless_that_is_what_tells_two_apart() -> None:
    long = model_name(ModelRef(id="./" + "a" * 100 + "end"))
    assert len(long) == LONGEST
    assert long.endswith("aend")
    one, two = ("./" + "a" * 60 + middle + "z" * 60 for middle in "bc")
    first, second = pair_name(ModelRef(id=one), ModelRef(id=two)).split(" with ")
    assert first != second


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "t with d"),
        ({"drafter": "lookup"}, "t"),
        ({"drafter": "lookup,suffix"}, "t"),
        ({"drafter": "lookup,model"}, "t with d"),
        ({"arms": "ars"}, "t"),
        ({"target": f"t@{COMMIT}", "draft": "d@main"}, "t@0123456 with d@main"),
    ],
)
def test_the_draft_is_named_where_one_runs(flags: dict[str, str], name: str) -> None:
    assert resolve({"target": "t", "draft": "d"} | flags).pair.name == name


def test_a_pair_with_another_draft_is_not_called_by_its_name() -> None:
    pair = resolve({}).pair
    other = with_draft(pair, ModelRef(id="./mine"))
    assert other.name == "mini/target with mine"
    assert with_draft(pair, pair.draft) is pair


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("p.jsonl", "p.jsonl"),
        ("./p.jsonl", "p.jsonl"),
        ("../p.jsonl", "p.jsonl"),
        ("a/p.jsonl", "a/p.jsonl"),
        ("/x/b/p.jsonl", "b/p.jsonl"),
        ("/p.jsonl", "p.jsonl"),
    ],
)
def test_a_file_is_called_with_the_folder_that_was_typed(typed: str, shown: str) -> None:
    assert file_name(Path(typed)) == shown


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("llama-3.1-8b with llama-3.2-1b", "llama-3.1-8b-with-llama-3.2-1b"),
        ("Größe/modèle", "Groe-modele"),
        ("[bold]<b>|x;$(rm)", "bold-b-x-rm"),
        ("../..", ""),
        ("模型", ""),
        ("x" * 300, "x" * 23 + "--" + "x" * 23),
    ],
)
def test_a_directory_is_called_in_plain_ascii(text: str, safe: str) -> None:
    assert slug(text) == safe


def test_a_run_directory_can_be_made_under_any_name(tmp_path: Path) -> None:
    for task, pair in (("x" * 255 + ".jsonl", "y" * 500), ("模型.txt", "模型"), ("a b.jsonl", "[red]ü\n")):
        made = fresh_directory(tmp_path, task, pair)
        assert made.parent == tmp_path
        assert made.name.isascii()
        assert len(made.name) < 130


SHOWN = tuple(flag for flag in ALONE if flag != "--quiet")
HOSTILE = "[bold red]m|<b>*x*_`ü é"


@pytest.mark.thorough
def test_names_reach_tables_report_and_directory_and_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder whose name is markup in rich, Markdown and HTML at once."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(mini_dir() / "target", HOSTILE)
    asked = ("--target", f"./{HOSTILE}", "--draft", mini_dir() / "draft", *BRIEF)
    done = call("run", "xsum", *asked, "--limit", "1", "--max-new-tokens", "4", *SHOWN)
    assert done.code == 0, done.err
    name = f"{HOSTILE} with draft"
    assert f"pair {name}" in " ".join(done.out.split())
    (run,) = (tmp_path / "results").iterdir()
    assert run.name.endswith("-xsum-bold-red-m-b-x-_-u-e-with-draft")
    assert json.loads((run / "summary.json").read_text())["pair"] == name
    shown = call("report", run, "--html")
    assert shown.code == 0, shown.err
    markdown, page = ((run / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))
    assert "<b>" not in markdown
    assert r"\|" in markdown
    assert "<b>*x*" not in page
    assert "&lt;b&gt;*x*" in page


@pytest.mark.thorough
def test_prompts_files_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("größe", "b c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my prompts.txt").write_text("The council said\n")
        asked = (f"{folder}/my prompts.txt", "--max-new-tokens", "4", "--out", f"run {folder}")
        done = call("run", *asked, *SHOWN)
        assert done.code == 0, done.err
        assert f"{folder}/my prompts.txt" in done.out
    compared = call("report", "run größe", "run b c")
    assert compared.code == 0, compared.err
    assert "größe/my prompts.txt" in compared.out
    assert "b c/my prompts.txt" in compared.out
    # What a run is known by is the file's name and content, as it was before.
    identity = json.loads((tmp_path / "run b c/run.json").read_text())["identity"]
    assert identity["task"] == "my prompts.txt"


@pytest.mark.thorough
def test_a_run_of_before_goes_on_under_the_name_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = ("--target", mini_dir() / "target", "--draft", mini_dir() / "draft", *BRIEF)
    asked = ("run", "xsum", *models, "--limit", "1", "--max-new-tokens", "4", *ALONE, "--out", "run")
    assert call(*asked).code == 0
    for name in ("config.yaml", "run.json"):
        path = tmp_path / "run" / name
        text = path.read_text()
        assert "target with draft" in text
        path.write_text(text.replace("target with draft", "custom"))
    again = call("run", "--resume", "run", "--limit", "2")
    assert again.code == 0, again.err
    assert len((tmp_path / "run/samples.jsonl").read_text().splitlines()) == 4
    more = call(*asked, "--limit", "3")
    assert more.code == 0, more.err
