"""Any pair: many architectures from saved checkpoints, loaded as real models are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import ARCHITECTURES, TOKENS, WINDOW, make_pair, pair_of, save

from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.config.models import TORCH
from spsbench.decode.clock import SystemClock
from spsbench.engines.local import EagerEngine
from spsbench.models.causal_lm import CausalLM
from spsbench.models.pair import Pair, load_pair

pytestmark = pytest.mark.thorough_but("gpt2", "llama", "mistral")

CPU = torch.device("cpu")
PROMPT = tuple(
    torch.randint(TOKENS - 2, (2 * WINDOW + 5,), generator=torch.Generator().manual_seed(1)).tolist()
)
NEW_TOKENS = 24
# Real families pad the embeddings of small and large models to different widths.
VOCAB_SIZES = {"qwen2": (TOKENS + 14, TOKENS + 6)}


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    torch.set_num_threads(1)
    target, draft = make_pair(request.param, vocab_sizes=VOCAB_SIZES.get(request.param, (TOKENS, TOKENS)))
    folder: Path = tmp_path_factory.mktemp(request.param)
    paths = [save(model, folder / name) for name, model in (("target", target), ("draft", draft))]
    return load_pair(pair_of(*paths), ("auto", "auto"), CPU, TORCH)


def answer(pair: Pair, draft: CausalLM | None, sampling: SamplingParams, seed: int = 0) -> Generation:
    engine = EagerEngine(pair.target, draft, 4, pair.tokenizer, CPU, SystemClock())
    return engine.generate(Request(PROMPT, NEW_TOKENS, (), sampling, seed, fixed_length=True))


def rate(generations: Sequence[Generation]) -> float:
    loops = [loop for generation in generations for loop in generation.loops or []]
    return sum(loop.accepted for loop in loops) / sum(loop.drafted for loop in loops)


def reference(model: Any) -> list[int]:
    """What the library itself generates, with the cache that the library chooses, without EOS."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return list(output[0, len(PROMPT) :].tolist())


def test_greedy_sps_is_greedy_ars_is_generate(pair: Pair) -> None:
    greedy = SamplingParams(greedy=True)
    expected = reference(pair.target.model)
    assert len(set(expected)) > 1
    assert answer(pair, None, greedy).tokens == expected
    assert answer(pair, pair.draft, greedy).tokens == expected


def test_a_draft_that_shares_the_first_layers_is_accepted_sometimes(pair: Pair) -> None:
    generations = [answer(pair, pair.draft, SamplingParams(), seed) for seed in range(3)]
    assert 0.2 < rate(generations) < 1


def test_every_model_passed_its_self_test_beyond_its_window(pair: Pair) -> None:
    for role in ("target", "draft"):
        result = pair.info[role]["self_test"]
        assert max(result["cached"], result["rolled_back"]) < 1e-4 < 1 < result["scale"]
        if pair.info[role]["model_type"] in ("mistral", "gemma3_text"):
            assert result["prompt_tokens"] > WINDOW
        assert pair.info[role]["dtype"] == "float32"
