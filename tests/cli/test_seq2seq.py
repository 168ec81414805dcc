"""Encoder-decoders from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import ALONE, Cli
from support.tiny_models import save_seq2seq


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "sources.jsonl"
    rows = ({"id": str(i), "prompt": f"Source {i} of some, to be read."} for i in range(3))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=["t5", "bart"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp(request.param)
    target, draft = (
        save_seq2seq(request.param, folder / name, seed) for seed, name in enumerate(("target", "draft"))
    )
    return "--target", str(target), "--draft", str(draft)


def test_a_run_measures_it_and_proves_it(
    cli: Cli, pair: tuple[str, ...], prompts: Path, tmp_path: Path
) -> None:
    asked = ("--k", "2", "--drafter", "model,lookup", "--sampling", "greedy", "--max-new-tokens", "12")
    done = cli("run", prompts, *pair, *asked, *ALONE, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    judged = [arm for arm in summary["losslessness"]["arms"] if arm["method"] == "sps"]
    assert {arm["drafter"] for arm in judged} == {"model", "lookup"}
    assert [arm["identity"]["identical"] for arm in judged] == [1.0, 1.0]
    recorded = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    backend = recorded["models"]["target"]["backend"]
    assert backend == ("onnxruntime" if recorded["models"]["target"]["model_type"] == "t5" else "torch")


def test_documents_that_are_cut_are_counted(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "articles.jsonl"
    texts = ("Short.", "Much longer than the window of the encoder. " * 20)
    rows = ({"id": str(i), "article": text, "highlights": "Short."} for i, text in enumerate(texts))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = ("--data", file, "--k", "2", "--max-new-tokens", "4", "--sampling", "greedy")
    quiet = [flag for flag in ALONE if flag != "--no-score"]
    done = cli("run", "cnndm", *pair, *asked, *quiet, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert [text for text in summary["warnings"] if "cut to fit" in text] == [
        "1 prompt has a document that was cut to fit into the models' window."
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--drafter", "early-exit"), "reads the layers of a decoder alone"),
        (("--engine", "hf-assisted"), "runs decoders alone"),
        (("--max-new-tokens", "512"), "exceeds the decoder's window of 512"),
    ],
)
def test_what_needs_a_decoder_alone_is_refused(
    cli: Cli, pair: tuple[str, ...], prompts: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    done = cli("run", prompts, *pair, "--k", "2", *flags, *ALONE, "--out", tmp_path / "run")
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "run").exists()


def test_a_decoder_beside_it_is_refused(cli: Cli, pair: tuple[str, ...], prompts: Path) -> None:
    done = cli("run", prompts, *pair[:2], "--draft", "embedded:mini/draft", *ALONE)
    assert done.code == 2
    assert "the target is an encoder-decoder and the draft a decoder alone" in done.err


def test_distill_refuses_it(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("distill", "--target", pair[1], "--out", tmp_path / "draft")
    assert done.code == 2
    assert "is an encoder-decoder" in done.err
