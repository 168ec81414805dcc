"""``spsbench doctor FOLDER``: what a drafter's folder is, on the screen and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import Cli
from support.published_heads import READS, as_authors, changed, save_published, some
from support.tiny_models import config_of, make, save

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
    for said in ("as written", "ids=output", "recycle=post", "residual=post", "Most is accepted of it"):
        assert said in screen.out
    told = json.loads(cli("doctor", str(folder), *flags, "--json").out)
    assert len(told["readings"]) == 4
    assert sum(each["best"] for each in told["readings"]) == 1
    assert all(1 <= each["tokens_per_loop"]["mean"] <= 6 for each in told["readings"])
