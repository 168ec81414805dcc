"""``spsbench doctor FOLDER``: what a drafter's folder is, on the screen and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import Cli
from support.published_heads import READS, as_authors, changed, save_published, some
from support.tiny_models import config_of, make, save
from support.tiny_mtp import make_gemma4, save_assistant

HIDDEN, SIZE = 32, 258


def test_a_folder_is_described_with_what_engines_make_of_it(cli: Cli, tmp_path: Path) -> None:
    ours = save_published(tmp_path / "a", HIDDEN, SIZE, vocabulary=some(SIZE))
    folder = as_authors(ours, tmp_path / "b", eagle_config={READS: [0, 1, 2]})
    screen = cli("doctor", str(folder))
    assert screen.code == 0, screen.err
    for said in ("eagle3, in the layout of its authors", "ids 0, 1, 2", "129 tokens; d2t has offsets"):
        assert said in " ".join(screen.out.split())
    for said in ("(not certain)", "SGLang 0.5.23", "(ids=output here)", "transformers 5.23.0"):
        assert said in " ".join(screen.out.split())
    told = json.loads(cli("doctor", str(folder), "--json").out)
    assert (told["kind"], told["ids"], told["proposes"]) == ("eagle3", [0, 1, 2], 129)
    assert {each["engine"]: each["options"] for each in told["engines"]}["SGLang 0.5.23"] == {"ids": "output"}


def test_what_does_not_run_says_why_and_what_is_none_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = changed(save_published(tmp_path / "x", HIDDEN, SIZE), speculators_model_type="xpress")
    told = json.loads(cli("doctor", str(folder), "--json").out)
    assert "argmax" in told["refused"]
    assert "not lossless" in told["engines"][0]["says"]
    nothing = cli("doctor", str(tmp_path))
    assert (nothing.code, "is not a trained draft" in nothing.err) == (3, True)


def test_an_assistant_is_described(cli: Cli, tmp_path: Path) -> None:
    folder = save_assistant(tmp_path / "a", SIZE)
    said = " ".join(cli("doctor", str(folder)).out.split())
    assert "assistant, in the layout of its authors" in said
    assert "its last layers of sliding attention and full attention" in said
    assert "--drafter assistant:from=FOLDER" in said


@pytest.mark.thorough
def test_an_assistant_is_measured_under_both_positions(cli: Cli, tmp_path: Path) -> None:
    """Over one text, which has no interval."""
    folder = save_assistant(tmp_path / "a", SIZE)
    target = save(make_gemma4(SIZE), tmp_path / "target")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One prompt.\n")
    flags = ("--target", str(target), "--task", str(prompts), "--limit", "1", "--json")
    measured = cli("doctor", str(folder), *flags)
    assert measured.code == 0, measured.err
    found = json.loads(measured.out)["readings"]
    assert [each["options"] for each in found] == [{}, {"position": "written"}]
    assert [found[0]["tokens_per_loop"][end] for end in ("low", "high")] == [None, None]


def test_an_assistant_of_another_target_and_one_that_lacks_a_tensor_are_refused(
    cli: Cli, tmp_path: Path
) -> None:
    target = save(make_gemma4(SIZE), tmp_path / "target")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One prompt.\n")
    flags = ("--target", str(target), "--task", str(prompts))
    wide = cli("doctor", str(save_assistant(tmp_path / "w", SIZE, width=48)), *flags)
    assert (wide.code, "backbone_hidden_size 48; the target has 32" in wide.err) == (2, True)
    folder = save_assistant(tmp_path / "a", SIZE)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    other = cli("doctor", str(folder))
    assert (other.code, "of the shape [48, 16], not [64, 16]" in other.err) == (3, True)


def test_missing_data_are_said_of_an_option_that_the_command_has(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    target = save(make_gemma4(SIZE), tmp_path / "target")
    missing = cli("doctor", str(save_assistant(tmp_path / "a", SIZE)), "--target", str(target))
    assert missing.code == 3
    assert "error: --task: the split validation is unavailable" in missing.err
    assert "Give prompts of your own with --task FILE" in missing.err
    assert "--data" not in missing.err


@pytest.mark.parametrize("flags", [("--target", "x"), ("--task", "humaneval")])
def test_what_is_for_a_folder_is_refused_without_one(cli: Cli, flags: tuple[str, str]) -> None:
    refused = cli("doctor", *flags)
    assert (refused.code, f"{flags[0]}: {flags[0]} is for a drafter" in refused.err) == (2, True)


@pytest.mark.thorough
def test_with_a_target_each_reading_has_its_acceptance(cli: Cli, tmp_path: Path) -> None:
    target = save(make(config_of("llama", head_dim=16)), tmp_path / "target")
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, ids=[1, 2, 3])
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One prompt.\nAnother one.\n")
    flags = ("--target", str(target), "--task", str(prompts), "--limit", "2")
    screen = cli("doctor", str(folder), *flags)
    assert screen.code == 0, screen.err
    for said in ("as written", "ids=output", "recycle=post", "residual=post", "Acceptance is highest when"):
        assert said in screen.out
    told = json.loads(cli("doctor", str(folder), *flags, "--json").out)
    assert len(told["readings"]) == 4
    assert sum(each["best"] for each in told["readings"]) == 1
    assert all(1 <= each["tokens_per_loop"]["mean"] <= 6 for each in told["readings"])
