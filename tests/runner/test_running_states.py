"""What a running state excludes is refused before a weight is loaded, with that reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commandline import SMALL, call
from support.tiny_models import config_of, make, save


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid's configuration and tokenizer; whoever loads its weights finds that they are none."""
    folder = save(make(config_of("qwen3.5")), tmp_path_factory.mktemp("hybrid") / "m")
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "p.txt"
    shutil.copy(Path(__file__).parents[1] / "support" / "short_prompts.txt", path)
    return path


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--tree", "2,1"), "--tree: "),
        (("--sampling", "beam:width=2"), "--sampling: "),
        (("--batch", "2", "--limit", "2"), "--batch: "),
    ],
)
def test_trees_beams_and_batches(more: tuple[Any, ...], said: str, hybrid: Path, prompts: Path) -> None:
    result = call("run", prompts, "--target", hybrid, "--draft", hybrid, *SMALL, *more)
    assert result.code == 2
    assert f"error: {said}{hybrid} (qwen3_5_text) keeps a running state" in " ".join(result.err.split())
    assert "Loading" not in result.err


def test_what_transformers_refuses_itself(hybrid: Path, prompts: Path) -> None:
    engines = ("--engine", "hf-generate,hf-assisted")
    result = call("run", prompts, "--target", hybrid, "--draft", hybrid, *SMALL, *engines)
    assert result.code == 2
    assert "assisted generation refuses such models" in " ".join(result.err.split())
    assert "Loading" not in result.err
