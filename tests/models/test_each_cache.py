"""One type of each kind of cache, and of each family in use, through the loop that a run takes.

The models are saved and found as a run finds them, of images and text the whole. Encoder-decoders are in
``test_seq2seq_lm``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.tiny_models import pair_of

from benchmarks.architectures import NEW_TOKENS, PROMPTS, K, saved, tokenizer, uncached
from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.config.models import TORCH
from spsbench.decode.clock import SystemClock
from spsbench.engines.local import EagerEngine
from spsbench.models.hf_errors import quiet_libraries
from spsbench.models.pair import Pair, load_pair
from spsbench.models.recurrent import StateLayer

CACHES = {
    "llama": "length",
    "gpt_oss": "length",
    "deepseek_v3": "length",
    "deepseek_v32": "length",
    "qwen3_5_text": "planes",
    "lfm2": "planes",
    "mamba2": "planes",
    "deepseek_v4": "replay",
}
"""By type, how its cache is rolled back: full attention, sliding windows, latent
attention, an index, a gated delta rule, short convolutions, Mamba's states, compressed attention."""

FAMILIES = (
    "qwen3", "qwen3_next", "gemma3_text", "gemma3n_text", "mistral", "mixtral", "glm4_moe", "glm_moe_dsa",
    "gemma4_text", "nemotron_h", "granitemoehybrid", "falcon_h1", "kimi_linear", "minimax", "minimax_m2",
    "mamba", "rwkv", "olmo_hybrid", "bamba", "zamba2", "qwen3_vl", "mistral3", "kimi_k25", "step3p7",
    "gemma4",
)  # fmt: skip
"""Of the last years, beside those above."""

CPU = torch.device("cpu")
GREEDY = SamplingParams(greedy=True)


def answer(pair: Pair, prompt: list[int], *, drafts: bool) -> Generation:
    draft = pair.draft if drafts else None
    engine = EagerEngine(pair.target, draft, K, pair.tokenizer, CPU, SystemClock())
    return engine.generate(Request(tuple(prompt), NEW_TOKENS, (), GREEDY, 0, fixed_length=True))


def loaded(kind: str, folder: Path) -> tuple[Pair, list[int], list[int]]:
    """A type's pair, a prompt longer than its windows, and the greedy text of a loop without a cache.

    No token of that text is so near the next best that rounding might write another: such prompts are passed.
    """
    quiet_libraries()
    target, draft, whole = saved(kind, folder)
    assert not isinstance(whole, Exception), whole
    for end in ("", " that", " that it"):
        prompt = tokenizer()(PROMPTS[1] + end)["input_ids"]
        expected, leads = uncached(whole, prompt, "float32")
        if min(leads) > 1e-4:
            return load_pair(pair_of(target, draft), ("float32", "float32"), CPU, TORCH), prompt, expected
    raise AssertionError("ties in all texts")


@pytest.mark.parametrize(
    "kind", [*CACHES, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in FAMILIES)]
)
def test_greedy_sps_is_greedy_ars_is_a_loop_without_a_cache(kind: str, tmp_path: Path) -> None:
    pair, prompt, expected = loaded(kind, tmp_path)
    assert answer(pair, prompt, drafts=False).tokens == expected
    generation = answer(pair, prompt, drafts=True)
    assert generation.tokens == expected
    if kind in CACHES:
        assert any(loop.accepted < loop.drafted for loop in generation.loops or []), "nothing was rolled back"
        assert pair.info["target"].get("rollback", "length") == CACHES[kind]


def test_a_state_that_is_not_put_back_writes_another_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, prompt, expected = loaded("qwen3_5_text", tmp_path)
    monkeypatch.setattr(StateLayer, "back_to", lambda self, snapshot: None)
    monkeypatch.setattr(StateLayer, "take", lambda self, length, kept, block: None)
    assert answer(pair, prompt, drafts=True).tokens != expected
