"""Theory against measured as one command, with random weights of GPT-2's shape in place of the hub's pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import ALONE, Cli
from support.tiny_models import make_pair, make_tokenizer, save

from spsbench.config import load_pair
from spsbench.law.theory import chen_speedup


def test_the_pair_gpt2_is_toyllms() -> None:
    pair = load_pair("gpt2")
    assert (pair.target.id, pair.draft.id) == ("openai-community/gpt2-xl", "openai-community/gpt2")


def test_a_file_of_prompts_gives_theory_beside_measured(cli: Cli, tmp_path: Path) -> None:
    for name, model in zip(("target", "draft"), make_pair("gpt2"), strict=True):
        save(model, tmp_path / name, make_tokenizer())
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Alan Turing theorized that computers\nThe harbour opened\n")
    models = ("--target", tmp_path / "target", "--draft", tmp_path / "draft")
    asked = ("run", prompts, *models, "--sampling", "greedy", "--k", "4", "--max-new-tokens", "16")
    done = cli(*asked, *ALONE, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (arm,) = summary["prediction"]["arms"]
    (row,) = [row for row in summary["rows"] if row["method"] == "sps"]
    assert arm["chen"] == pytest.approx(chen_speedup(row["acceptance"]["r_prime"], 4, 1.0, arm["c"]))
    assert arm["chen_residual"] == pytest.approx(row["speedup"]["ratio"] - arm["chen"])
    report = (tmp_path / "run" / "report.md").read_text()
    assert f"{arm['chen']:.2f}" in report.split("## Theory")[1]
