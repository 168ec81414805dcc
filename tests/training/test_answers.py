from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from spsbench.base.paths import mini_dir
from training.answers import GREEDY, Job, Sampling, acceptance, generate, r_prime, text_of, warped
from training.model import Shape, build


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(mini_dir() / "target")


def test_r_prime_of_certain_acceptance_is_one_and_of_none_is_the_least() -> None:
    assert r_prime([[1.0] * 50], k=4) == 1.0
    assert r_prime([[0.0] * 50], k=4) == pytest.approx(1 / 5)


def test_r_prime_of_independent_chances_has_the_closed_form() -> None:
    alpha, k = 0.8, 4
    expected = (1 - alpha ** (k + 1)) / (1 - alpha) / (k + 1)
    assert r_prime([[alpha] * 200_000], k) == pytest.approx(expected, abs=0.01)


def test_warping_keeps_the_nucleus_and_greedy_one_token() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert warped(logits, Sampling(1.0, 0.7))[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert warped(logits, GREEDY)[0].tolist() == [1, 0, 0, 0]


def test_a_model_that_drafts_for_itself_is_always_accepted(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = build(Shape(layers=1, hidden=32, head_dim=16)).eval()
    sampling = Sampling(0.8, 0.95)
    job = Job("test", ["Article: a", "Article: a longer one"], sampling, 12, ())
    emitted = generate(model, tokenizer, job, sampling, seed=1)
    prompts = [tokenizer.encode(prompt) for prompt in job.prompts]
    found = acceptance(model, {"self": model}, prompts, emitted, sampling)["self"]
    for rows in (found.chances, found.overlaps):
        assert [len(row) for row in rows] == [len(tokens) for tokens in emitted]
        assert all(chance == pytest.approx(1.0) for row in rows for chance in row)
    assert found.alpha == pytest.approx(1.0)


def test_alpha_is_the_mean_chance_of_a_token_before_it_is_known(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    target, draft = (build(Shape(layers=1, hidden=32, head_dim=16)).eval() for _ in range(2))
    sampling = Sampling(1.0, 1.0)
    prompt = tokenizer.encode("Article: a")
    found = acceptance(target, {"d": draft}, [prompt], [[5, 6]], sampling)["d"]
    ids = torch.tensor([[*prompt, 5]])
    p, q = (model(input_ids=ids).logits[0, -2:].softmax(-1) for model in (target, draft))
    assert found.overlaps[0] == pytest.approx((1 - (p - q).abs().sum(-1) / 2).tolist(), abs=1e-5)
    assert found.alpha == pytest.approx(sum(found.overlaps[0]) / 2)


def test_padding_on_the_left_does_not_change_greedy_answers(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(1)
    model = build(Shape(layers=2, hidden=32, head_dim=16)).eval()
    prompts = ["def f(x):", "Article: something that is clearly longer than the other one"]
    both = generate(model, tokenizer, Job("t", prompts, GREEDY, 6, ()), GREEDY, seed=0)
    alone = [
        generate(model, tokenizer, Job("t", [prompt], GREEDY, 6, ()), GREEDY, seed=0)[0] for prompt in prompts
    ]
    assert both == alone


def test_the_text_ends_before_the_stop_string(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode(" a summary.\n")
    assert text_of([*ids, 0], tokenizer, ("\n",)) == " a summary."
