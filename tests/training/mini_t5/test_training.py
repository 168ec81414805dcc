"""Batches, tokenizer, a few updates of target and draft, and what is measured of them, on tiny models."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from training.answers import GREEDY, Sampling
from training.corpus import Corpus, save_corpus
from training.mini_t5.answers import agreement, generate
from training.mini_t5.batches import Batches
from training.mini_t5.examples import draw_example
from training.mini_t5.gates import bleu_ratio, bleu_statistics, corpus_bleu
from training.mini_t5.model import Shape, build, load
from training.mini_t5.tokenizer import EOS_ID, PAD_ID, train_tokenizer
from training.mini_t5.train import (
    Recipe,
    answer_logits,
    cross_entropy,
    optimizers,
    step,
    train,
    train_in_parallel,
)
from training.train import rate

TINY = Shape(encoder=1, decoder=2, width=32, feed_forward=64, head=16)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(seed=3, sample=600)


def copying_corpus() -> Corpus:
    """Sources of 3 to 6 tokens, answered by the same tokens; both end with EOS."""
    generator = np.random.default_rng(0)
    ids, answers, lengths = [], [], []
    for number in range(64):
        piece = [*generator.integers(2, 12, 3 + number % 4).tolist(), EOS_ID]
        ids += piece * 2
        answers += [False] * len(piece) + [True] * len(piece)
        lengths.append(2 * len(piece))
    return Corpus(np.array(ids, np.uint16), np.array(answers), np.concatenate([[0], np.cumsum(lengths)]))


def test_the_tokenizer_keeps_a_text_ends_it_and_splits_digits(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    rng = random.Random(1)
    for _ in range(30):
        example = draw_example(rng)
        for text in (example.source, example.target):
            ids = again.encode(text)
            assert ids[-1] == EOS_ID == again.eos_token_id
            assert again.decode(ids, skip_special_tokens=True) == text
    assert again.pad_token_id == PAD_ID
    assert len(again.encode("2047", add_special_tokens=False)) == 4


def test_a_batch_shifts_the_answer_behind_the_start_token() -> None:
    for batch in islice(Batches(copying_corpus()).share(60, seed=0), 10):
        assert batch.tokens <= 60
        assert (batch.inputs[:, 0] == PAD_ID).all()
        assert torch.equal(batch.inputs[:, 1:], batch.labels[:, :-1])
        for row in range(len(batch.sources)):
            source = batch.sources[row][batch.mask[row] == 1]
            assert torch.equal(source, batch.labels[row][batch.inside[row]])


def test_two_workers_share_the_batches_of_one() -> None:
    alone = [batch.sources for batch in islice(Batches(copying_corpus()).share(60, seed=0), 6)]
    shared = [
        [batch.sources for batch in islice(Batches(copying_corpus()).share(60, 0, rank, 2), 3)]
        for rank in range(2)
    ]
    assert all(torch.equal(alone[number], shared[number % 2][number // 2]) for number in range(6))


@pytest.mark.thorough
def test_training_lowers_the_loss_and_saves_bfloat16(tmp_path: Path) -> None:
    recipe = Recipe(TINY, tokens=200, updates=40, stop=40, workers=1)
    model = train(recipe, copying_corpus(), tmp_path)
    batch = next(Batches(copying_corpus()).share(200, seed=0))
    wanted = batch.labels[batch.inside]
    with torch.no_grad():
        before, after, stored = (
            torch.nn.functional.cross_entropy(answer_logits(which, batch), wanted)
            for which in (build(TINY).eval(), model, load(tmp_path))
        )
    assert after < 0.8 * before
    assert float(stored) == pytest.approx(float(after), rel=0.1)
    assert load(tmp_path).dtype == torch.float32


@pytest.mark.thorough
def test_two_processes_take_the_mean_of_both_batches(tmp_path: Path) -> None:
    save_corpus(copying_corpus(), tmp_path / "corpus")
    recipe = Recipe(TINY, tokens=100, updates=3, stop=2, workers=2)
    train_in_parallel(recipe, tmp_path / "corpus", tmp_path / "trained")
    torch.manual_seed(recipe.seed)
    alone = build(TINY).train()
    steppers = optimizers(alone)
    batches = Batches(copying_corpus()).share(100, recipe.seed)
    for number in range(recipe.stop):
        for batch in islice(batches, recipe.workers):
            torch.autograd.backward(cross_entropy(alone, batch) / recipe.workers)
        step(steppers, rate((number + 1) / recipe.updates))
    trained = load(tmp_path / "trained").state_dict()
    for name, weights in alone.state_dict().items():
        assert torch.allclose(trained[name], weights, atol=1e-3, rtol=0.01), name


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 1.0)])
def test_a_model_agrees_with_itself_and_answers_alone_as_in_a_batch(sampling: Sampling) -> None:
    torch.manual_seed(1)
    model = build(TINY).eval()
    sources = [[5, 6, 7, EOS_ID], [8, EOS_ID]]
    emitted = generate(model, sources, sampling, seed=0)
    found = agreement({"target": model, "draft": model}, sources, emitted, sampling)
    assert found["draft"].alpha == pytest.approx(1.0)
    if sampling == GREEDY:
        assert generate(model, sources[1:], sampling, seed=0) == emitted[1:]


def test_bleu_is_sacrebleus_and_the_ratio_lies_in_its_interval() -> None:
    from sacrebleu import corpus_bleu as reference

    texts = ["the cat sat on the mat today", "a dog ran in the park", "no"] * 20
    right = ["the cat sat on a mat today", "the dog ran in the park", "no birds sing here"] * 20
    found = corpus_bleu(bleu_statistics(texts, right))
    assert found == pytest.approx(reference(texts, [right]).score)
    ratio, low, high = bleu_ratio(bleu_statistics(right, right), bleu_statistics(texts, right))
    assert ratio == pytest.approx(100 / found)
    assert low <= ratio <= high
