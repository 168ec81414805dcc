from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from training.batches import Batches
from training.corpus import Corpus
from training.model import Shape, build, load
from training.train import Recipe, rate, train

TINY = Shape(layers=1, hidden=32, head_dim=16)


def repeating_corpus() -> Corpus:
    """Contexts that count upwards, of 8 to 15 tokens, answered from the fourth token on."""
    pieces = [np.arange(start, start + 8 + start % 8) % 40 + 1 for start in range(64)]
    lengths = [len(piece) for piece in pieces]
    answers = np.concatenate([np.arange(length) >= 3 for length in lengths])
    return Corpus(
        np.concatenate(pieces).astype(np.uint16), answers, np.concatenate([[0], np.cumsum(lengths)])
    )


def test_a_batch_shifts_labels_and_gives_padding_no_weight() -> None:
    corpus = repeating_corpus()
    weights = set()
    for batch in islice(Batches(corpus, tokens=100, seed=0, device="cpu"), 8):
        inside = batch.weights > 0
        assert torch.equal(batch.labels[inside], batch.inputs[inside] % 40 + 1)
        weights |= {round(weight, 3) for weight in batch.weights.unique().tolist()}
    assert weights == {0.0, 0.3, 1.0}


def test_one_pass_hands_out_every_context_once() -> None:
    corpus = repeating_corpus()
    seen = 0
    for batch in Batches(corpus, tokens=64, seed=0, device="cpu"):
        assert batch.inputs.numel() <= 64
        seen += len(batch.inputs)
        if seen >= len(corpus):
            break
    assert seen == len(corpus)


def test_the_rate_warms_up_stays_and_falls_to_zero() -> None:
    assert rate(0.01) == pytest.approx(0.5)
    assert rate(0.3) == 1.0
    assert rate(0.7) == pytest.approx(0.5)
    assert rate(1.0) == pytest.approx(0.0)


def test_training_lowers_the_loss_and_saves_bfloat16(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    batches = Batches(repeating_corpus(), tokens=256, seed=0, device="cpu")
    _, short = train(Recipe(TINY, tokens=256, updates=1), batches, tmp_path / "short")
    model, long = train(Recipe(TINY, tokens=256, updates=40), batches, tmp_path / "long")
    assert long.loss < 0.7 * short.loss
    again = load(tmp_path / "long", "cpu")
    difference = again.model.embed_tokens.weight - model.model.embed_tokens.weight
    assert 0 < difference.abs().max() < 0.01
    assert again.dtype == torch.float32


def test_both_models_share_the_heads_width_and_the_window() -> None:
    config = build(TINY).config
    assert config.max_position_embeddings >= 2048
    assert config.tie_word_embeddings
