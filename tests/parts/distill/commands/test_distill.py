"""``spsbench distill`` from end to end: a draft, its card, and a run with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import SMALL, call
from support.tiny_models import config_of, make, save

from spsbench.parts.distill import own_text

FEW = ("--tokens", "200", "--epochs", "1", "--batch-tokens", "512", "--threads", "1")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_text, "BATCH", 48)
    monkeypatch.setattr(own_text, "ANSWER_TOKENS", 6)
    monkeypatch.setattr(own_text, "REQUEST_TOKENS", 12)
    monkeypatch.setattr(own_text, "SHORTEST_REQUEST", 0)


def distil(target: Path, out: Path, *more: object, kind: str = "model") -> Any:
    kind = kind if kind == "mtp" else f"{kind}:vocabulary=200"
    asked = ("--target", target, "--out", out, "--data", "own", "--kind", kind)
    return call("distill", *asked, *FEW, *more)


@pytest.mark.thorough_but("medusa")
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "dflash:block=4", "medusa"])
def test_a_head_is_made_and_runs(target: Path, tmp_path: Path, kind: str) -> None:
    made = distil(target, tmp_path / "head", kind=kind)
    assert made.code == 0, made.err
    assert "forecast" in made.out
    assert "alpha" in made.err
    card = (tmp_path / "head" / "README.md").read_text()
    assert "0 sequences were left out" in card
    record = json.loads((tmp_path / "head" / "training.json").read_text())
    assert record["updates"] == record["curve"][-1]["updates"]
    drafter, backend = ("mtp", "torch") if kind == "mtp" else ("heads", "auto")
    head = f"{drafter}:from={tmp_path / 'head'}"
    models = ("--target", target, "--draft", target, "--drafter", head, "--k", "2", "--backend", backend)
    run = call("run", "humaneval", "--data", "mini", *models, *SMALL, "--out", tmp_path / "run", "--no-score")
    assert run.code == 0, run.err
    assert drafter in run.out


@pytest.mark.thorough
def test_a_second_call_goes_on_and_ends_with_the_same_bytes(target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    for _ in range(2):
        result = distil(target, folder, "--json", kind="medusa")
        assert result.code == 0, result.err
        (folder / "again.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert json.loads(result.out)["forecast"][0]["kind"] == "chat"
    assert (folder / "again.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        (("--kind", "tree"), "--kind"),
        (("--kind", "model:layers=3"), "--kind model:layers"),
        (("--kind", "model:layers=none"), "--kind model:layers"),
        (("--kind", "model:vocabulary=3"), "--kind model:vocabulary"),
        (("--kind", "eagle:vocabulary=100000"), "--kind eagle:vocabulary"),
        (("--kind", "medusa:layers=1"), "--kind medusa"),
        (("--kind", "mtp:vocabulary=200"), "--kind mtp"),
        (("--kind", "eagle3:states=2:vocabulary=200"), "--kind eagle3:states"),
        (("--kind", "dflash:block=1:vocabulary=200"), "--kind dflash:block"),
        (("--kind", "dflash:layers=4:vocabulary=200"), "--kind dflash:layers"),
        (("--data", "news"), "--data"),
        (("--tokens", "0"), "--tokens"),
        (("--minutes", "-1"), "--minutes"),
    ],
)
def test_a_value_that_is_not_valid_is_refused_before_anything_is_written(
    target: Path, tmp_path: Path, given: tuple[str, str], flag: str
) -> None:
    result = call("distill", "--target", target, "--out", tmp_path / "draft", *given)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith((f"error: {flag}:", f"error: {flag} must "))
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize("missing", ["--target", "--out"])
def test_target_and_folder_are_needed(target: Path, tmp_path: Path, missing: str) -> None:
    given = {"--target": target, "--out": tmp_path / "draft"}
    del given[missing]  # type: ignore[arg-type]
    result = call("distill", *(part for pair in given.items() for part in pair))
    assert (result.code, missing in result.err) == (2, True)


def test_a_folder_with_other_things_in_it_is_left_alone(target: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = distil(target, tmp_path, "--corpus", tmp_path.parent / "corpus")
    assert result.code == 2
    assert "--out" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.thorough
def test_another_recipe_does_not_go_on_in_a_folder_that_was_begun(target: Path, tmp_path: Path) -> None:
    assert distil(target, tmp_path / "head", kind="medusa").code == 0
    result = distil(target, tmp_path / "head", kind="eagle")
    assert result.code == 2
    assert "kind medusa" in result.err


def test_a_target_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    granite = make(config_of("granite", num_hidden_layers=2, hidden_size=64, logits_scaling=4.0))
    result = distil(save(granite, tmp_path / "granite"), tmp_path / "draft")
    assert result.code == 2
    assert "scales" in result.err


@pytest.mark.thorough
def test_evaluated_prompts_are_kept_out_of_the_text(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(f"word{i}" for i in range(20))
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps({"prompt": f"{words} {i}"}) + "\n" for i in range(60)))
    given = (
        "--data",
        mine,
        "--evaluated",
        mine,
        "--kind",
        "model:vocabulary=200",
        *FEW,
        "--out",
        tmp_path / "draft",
    )
    result = call("distill", "--target", target, *given)
    assert result.code == 3
    assert "nothing to learn from" in result.err
