"""``spsbench doctor FOLDER``: what a drafter's folder is, on the screen and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import Cli
from support.published_heads import READS, as_authors, changed, save_published, some

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
