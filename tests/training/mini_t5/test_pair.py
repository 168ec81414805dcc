"""The encoder-decoder pair as it ships: complete, loadable, small, labelled."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from spsbench.base.paths import embedded_dir, mini_dir
from spsbench.config.files import load_pair
from training.gates import rows_of, shipped_bytes
from training.mini_t5.examples import TRANSLATE
from training.mini_t5.gates import MEGABYTES
from training.mini_t5.model import SHAPES
from training.mini_t5.tokenizer import WINDOW


@pytest.mark.parametrize("name", SHAPES)
def test_the_shipped_models_have_the_shapes_of_the_recipe(name: str) -> None:
    folder, shape = mini_dir("mini_t5") / name, SHAPES[name]
    config = AutoConfig.from_pretrained(folder)
    found = (config.num_layers, config.num_decoder_layers, config.d_model, config.d_ff, config.d_kv)
    assert found == (shape.encoder, shape.decoder, shape.width, shape.feed_forward, shape.head)
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert json.loads((folder / "training.json").read_text())["updates"] > 0


def test_all_models_have_one_tokenizer() -> None:
    assert len({(mini_dir("mini_t5") / name / "tokenizer.json").read_bytes() for name in SHAPES}) == 1
    assert len(AutoTokenizer.from_pretrained(mini_dir("mini_t5") / "target")) == 1024


def test_the_pair_is_found_by_name_and_says_that_it_is_synthetic() -> None:
    pair = load_pair("mini-t5")
    assert pair.synthetic
    assert embedded_dir(pair.target.id) == mini_dir("mini_t5") / "target"
    assert embedded_dir(pair.draft.id) == mini_dir("mini_t5") / "draft-small"
    assert "synthetic" in (mini_dir("mini_t5") / "README.md").read_text().splitlines()[0]
    assert shipped_bytes(mini_dir("mini_t5")) <= MEGABYTES * 1e6


def test_every_source_and_answer_fits_the_window() -> None:
    tokenizer = AutoTokenizer.from_pretrained(mini_dir("mini_t5") / "target")
    for file in ("wmt.jsonl", "cnndm.jsonl"):
        for row in rows_of(mini_dir("mini_t5") / "data" / file):
            assert all(len(tokenizer.encode(text)) + 16 < WINDOW / 2 for text in row.values())


def test_transformers_generates_from_the_target_and_it_translates_what_training_never_saw() -> None:
    """Encoder and decoder differ in depth; generate() sizes its cache by a key that is not T5's own."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(mini_dir("mini_t5") / "target")
    model = AutoModelForSeq2SeqLM.from_pretrained(mini_dir("mini_t5") / "target", dtype=torch.float32)
    rows = rows_of(mini_dir("mini_t5") / "data" / "wmt.jsonl")[:8]
    batch = tokenizer([TRANSLATE.format(**row) for row in rows], return_tensors="pt", padding=True)
    with torch.inference_mode():
        answers = model.generate(**batch, max_new_tokens=96)
    found = tokenizer.batch_decode(answers, skip_special_tokens=True)
    assert sum(text == row["target"] for text, row in zip(found, rows, strict=True)) >= 3
