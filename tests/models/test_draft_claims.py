"""A draft's folder is a stranger's: what it says of itself is bounded, and held against its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.published_heads import as_authors, save_medusa, save_published
from support.tiny_blocks import save_block
from support.walking import WRONG, changed, places

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.models.reading import read_draft

FLAG, HIDDEN, HEADS = "--drafter", 4, 3
MADE = {"name": "a model", "hidden": HIDDEN, "vocab_size": 8, "embedding": "sha256:0"}
LAYER = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
}
TOLD = {
    "medusa": {"format": 1, "kind": "medusa", "target": MADE, "config": None, "heads": HEADS},
    "eagle": {"format": 1, "kind": "eagle", "target": MADE, "config": LAYER, "heads": None},
}
STORED = {
    "medusa": [f"heads.{number}.{part}" for number in range(HEADS) for part in ("weight", "bias")],
    "eagle": ["fc.weight", "model.layers.0.mlp.up_proj.weight"],
}


def head(folder: Path, kind: str, text: str | None = None, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "draft.json").write_text(json.dumps(TOLD[kind]) if text is None else text)
    tensors = {each: np.zeros((HIDDEN, HIDDEN), np.float32) for each in STORED[kind]}
    save_file(tensors | more, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", TOLD)
def test_an_untouched_draft_is_read(kind: str, tmp_path: Path) -> None:
    assert read_draft(head(tmp_path / "head", kind), FLAG).kind == kind


@pytest.mark.parametrize("kind", TOLD)
def test_each_wrong_value_of_a_description_is_refused_by_type(kind: str, tmp_path: Path) -> None:
    """Or it is without effect: nothing else is raised, whatever the libraries make of it."""
    wrong = [*WRONG.values(), 10**9, 1e30]
    folder = head(tmp_path / "head", kind)
    refused = 0
    for number, place in enumerate(places(TOLD[kind])):
        for step in (0, 5, 11, 18, 19):
            head(folder, kind, changed(TOLD[kind], place, wrong[(number + step) % len(wrong)]))
            try:
                read_draft(folder, FLAG)
            except SpsbenchError as problem:
                refused += problem.flag == FLAG
    assert refused > 20


@pytest.mark.parametrize(
    ("kind", "place", "value", "said"),
    [
        ("medusa", ("heads",), 10**9, "heads is 1,000,000,000, and a whole number from 1 to 64 is read"),
        ("medusa", ("heads",), HEADS + 1, "of 4 heads that it describes 3 are stored"),
        ("medusa", ("heads",), HEADS - 1, "it stores 3 heads and describes 2"),
        ("medusa", ("heads",), None, "heads is nothing"),
        ("medusa", ("target", "hidden"), float("inf"), "target.hidden is inf, no finite number"),
        ("medusa", ("target", "vocab_size"), 1 << 40, "vocab_size is 1,099,511,627,776"),
        ("medusa", ("target", "name"), WRONG["3,000 levels"], "more than 100 levels"),
        ("eagle", ("config", "num_hidden_layers"), 10**9, "num_hidden_layers is 1,000,000,000"),
        ("eagle", ("config", "num_hidden_layers"), 2, "of 2 layers that it describes 1 are stored"),
        ("eagle", ("config", "model_type"), ["x"], "cannot be read"),
    ],
)
def test_absurd_and_contradictory_claims_are_named(
    kind: str, place: tuple[str, ...], value: Any, said: str, tmp_path: Path
) -> None:
    folder = head(tmp_path / "head", kind, changed(TOLD[kind], place, value))
    with pytest.raises((UsageError, UnavailableError)) as refused:
        read_draft(folder, FLAG)
    assert said in str(refused.value)


def test_a_vocabulary_is_no_larger_than_the_targets(tmp_path: Path) -> None:
    read_draft(head(tmp_path / "right", "medusa", vocabulary=np.arange(8)), FLAG)
    with pytest.raises(UnavailableError, match="vocabulary has 9 values of I64, for 8 tokens"):
        read_draft(head(tmp_path / "long", "medusa", vocabulary=np.arange(9)), FLAG)
    with pytest.raises(UnavailableError, match="vocabulary has 8 values of F32"):
        read_draft(head(tmp_path / "floats", "medusa", vocabulary=np.zeros(8, np.float32)), FLAG)


def block(folder: Path, kind: str, writer: str) -> Path:
    sizes = {"hidden": 32, "vocab_size": 8, "target_layers": 4}
    return save_block(folder, kind=kind, writer=writer, sliding=4, **sizes)


PUBLISHED: dict[str, Callable[[Path], Path]] = {
    "eagle3": lambda folder: save_published(folder, 32, 8),
    "eagle3 of its authors": lambda folder: as_authors(save_published(folder / "a", 32, 8), folder),
    "peagle": lambda folder: save_published(folder, 32, 8, "peagle"),
    "medusa of its authors": lambda folder: save_medusa(folder, 32, 8),
    "dflash": lambda folder: block(folder, "dflash", "z-lab"),
    "dflash2": lambda folder: block(folder, "dflash2", "speculators"),
    "dspark": lambda folder: block(folder, "dspark", "deepspec"),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_each_wrong_value_of_a_published_drafter_is_refused_by_type(kind: str, tmp_path: Path) -> None:
    """Or it is without effect, as in what ``spsbench distill`` writes."""
    wrong = [*WRONG.values(), 10**9, 1e30]
    folder = PUBLISHED[kind](tmp_path / "head")
    assert kind.startswith(read_draft(folder, FLAG).kind)
    told = json.loads((folder / "config.json").read_text())
    refused = 0
    for number, place in enumerate(places(told)):
        for step in (0, 11, 18):
            text = changed(told, place, wrong[(number + step) % len(wrong)])
            (folder / "config.json").write_text(text)
            try:
                read_draft(folder, FLAG)
            except SpsbenchError as problem:
                refused += problem.flag == FLAG
    assert refused > 5


ABSURD = [
    ("eagle3", ("transformer_layer_config", "hidden_size"), 1 << 40, "hidden_size"),
    ("eagle3", ("transformer_layer_config", "num_hidden_layers"), 7, "has 1 layers of the 7"),
    ("eagle3", ("draft_vocab_size",), float("inf"), "draft_vocab_size is inf, no finite number"),
    ("medusa of its authors", ("medusa_num_heads",), 65, "65 for medusa_num_heads"),
    ("dflash", ("num_hidden_layers",), 2000, "has 2 layers of the 2000"),
    ("dflash", ("block_size",), 1025, "1,025 for block_size"),
    ("dflash", ("dflash_config", "mask_token_id"), 8, "the mask_token_id 8 of 8 tokens"),
    ("dflash2", ("target_hidden_size",), "x", "the target_hidden_size x"),
]


@pytest.mark.parametrize(("kind", "place", "value", "said"), ABSURD)
def test_absurd_claims_of_a_published_drafter_are_named(
    kind: str, place: tuple[str, ...], value: Any, said: str, tmp_path: Path
) -> None:
    folder = PUBLISHED[kind](tmp_path / "head")
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(changed({place[0]: None} | told, place, value))
    with pytest.raises((UsageError, UnavailableError)) as refused:
        read_draft(folder, FLAG)
    assert said in str(refused.value)


def test_a_published_drafter_is_read_through_links_and_from_no_pipe(tmp_path: Path) -> None:
    """The hub's cache consists of links; a pipe would be waited for."""
    folder = PUBLISHED["medusa of its authors"](tmp_path / "head")
    for name in ("config.json", "medusa_lm_head.pt"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    assert read_draft(folder, FLAG).heads == 3
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(UnavailableError, match=r"tokenizer\.json is not read \(it is no ordinary file\)"):
        read_draft(folder, FLAG)
