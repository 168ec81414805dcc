"""Batches give what one sequence after the other would: tokens, hidden states, masses, ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spsbench.base.records import SamplingParams
from spsbench.parts.distill.sampler import Sampled, Writer, draw

COLD = SamplingParams(temperature=1e-4)
PROMPTS = [[256, 7, 3], [256, 9], [256, 40, 41, 42, 43, 44, 45], [256, 7, 3, 200]]
LIMIT = 12


def sampled(model: Any, eos: list[int], sampling: SamplingParams = COLD, limit: int = LIMIT) -> list[Sampled]:
    generator = torch.Generator().manual_seed(0)
    return Writer(model, eos, 258).write(PROMPTS, limit, sampling, generator)


def test_the_coldest_samples_are_those_of_greedy_decoding_one_by_one(model: Any) -> None:
    for prompt, found in zip(PROMPTS, sampled(model, []), strict=True):
        alone = model.generate(
            torch.tensor([prompt]), max_new_tokens=LIMIT, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert found.start == len(prompt)
        assert found.tokens.tolist() == alone[0].tolist()


def test_states_and_masses_are_those_of_a_forward_of_the_whole(model: Any) -> None:
    for found in sampled(model, [], SamplingParams(temperature=0.8), 20):
        with torch.inference_mode():
            states = model.get_decoder()(input_ids=found.tokens[None, :-1]).last_hidden_state[0]
            masses = (model.get_output_embeddings()(states) / 0.8).logsumexp(-1)
        torch.testing.assert_close(found.features, states, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(found.log_masses, masses[found.start - 1 :], rtol=1e-4, atol=1e-4)


def test_a_sequence_ends_at_eos_and_not_before(model: Any) -> None:
    whole = sampled(model, [])
    eos = int(whole[0].tokens[whole[0].start + 3])
    for one, other in zip(whole, sampled(model, [eos]), strict=True):
        wanted = one.tokens.tolist()
        ends = [i for i in range(one.start, len(wanted)) if wanted[i] == eos]
        length = ends[0] + 1 if ends else len(wanted)
        # The last of a batch may be cut, but is never longer, and never another text.
        assert other.tokens.tolist() == wanted[: len(other.tokens)]
        assert len(other.tokens) <= length
    assert any(int(found.tokens[-1]) == eos for found in sampled(model, [eos]))


def test_eos_inside_of_a_prompt_ends_nothing(model: Any) -> None:
    found = Writer(model, [9], 258).write(
        [[256, 9], [256, 9, 9, 9]], 4, COLD, torch.Generator().manual_seed(0)
    )
    assert all(len(item.tokens) > item.start for item in found)


def test_reading_gives_the_states_of_the_text_that_is_there(model: Any) -> None:
    texts = [([256, 7, 3, 9, 9], 2), ([256, 5, 6], 1)]
    for (ids, start), found in zip(texts, Writer(model, [], 258).read(texts, 1.0), strict=True):
        assert (found.tokens.tolist(), found.start) == (ids, start)
        with torch.inference_mode():
            states = model.get_decoder()(input_ids=torch.tensor([ids[:-1]])).last_hidden_state[0]
        torch.testing.assert_close(found.features, states, rtol=1e-3, atol=1e-4)
        assert len(found.log_masses) == len(ids) - start


@pytest.mark.parametrize(("top_p", "allowed"), [(1.0, {0, 1, 2, 3}), (0.8, {0, 1, 2})])
def test_draws_follow_the_probabilities_of_the_nucleus(top_p: float, allowed: set[int]) -> None:
    probs = torch.tensor([0.5, 0.25, 0.2, 0.05])
    tokens = draw(probs.log().repeat(20_000, 1), top_p, torch.Generator().manual_seed(1))
    assert set(tokens.tolist()) == allowed
    kept = probs * torch.tensor([float(i in allowed) for i in range(4)])
    found = torch.bincount(tokens, minlength=4) / len(tokens)
    assert float((found - kept / kept.sum()).abs().max()) < 0.015
