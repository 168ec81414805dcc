"""transformers' own ways to generate, against ours on the mini pair."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

import pytest
import torch
from support.tiny_models import TOKENS, make_pair
from support.virtual_device import VirtualDevice

from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.config import resolve
from spsbench.config.models import TORCH
from spsbench.decode.clock import SystemClock
from spsbench.engines import hf
from spsbench.engines.hf import ASSISTED, GENERATE, LOOKUP, HFGenerateEngine
from spsbench.engines.local import EagerEngine
from spsbench.models.pair import Pair, find_pair, load_pair
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import Letters

CPU = torch.device("cpu")
GREEDY = SamplingParams(greedy=True)
PROMPTS = ("Article: The vote in", "def peaum(data: List[int]):\n", "Summary:")


@cache
def pair() -> Pair:
    return load_pair(find_pair(resolve({}).pair), ("float32", "float32"), CPU, TORCH)


def request(text: str, **changes: Any) -> Request:
    ids = tuple(pair().tokenizer.encode(text, special=True))
    settings = {"prompt_ids": ids, "max_new_tokens": 20, "stop": (), "sampling": GREEDY, "seed": 0}
    return Request(**(settings | changes))


def ours(asked: Request) -> Generation:
    return EagerEngine(pair().target, None, 0, pair().tokenizer, CPU, SystemClock()).generate(asked)


def peer(name: str, asked: Request, k: int = 4) -> Generation:
    draft = pair().draft if name == ASSISTED else None
    return HFGenerateEngine(name, pair().target, draft, k, pair().tokenizer).generate(asked)


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("name", [GENERATE, ASSISTED, LOOKUP])
@pytest.mark.parametrize("text", PROMPTS)
def test_greedy_text_is_ours_token_for_token(name: str, text: str) -> None:
    for asked in (request(text, stop=("\n",)), request(text, fixed_length=True)):
        mine, theirs = ours(asked), peer(name, asked)
        assert (theirs.tokens, theirs.text) == (mine.tokens, mine.text)
        assert theirs.finish_reason == mine.finish_reason


@pytest.mark.parametrize("name", [GENERATE, ASSISTED, LOOKUP])
def test_loops_add_up(name: str) -> None:
    found = peer(name, request(PROMPTS[0], sampling=SamplingParams(top_p=0.8), fixed_length=True), k=3)
    assert found.loops is not None
    assert len(found.tokens) == 20 == sum(loop.emitted for loop in found.loops)
    assert all(loop.emitted + loop.truncated <= loop.accepted + 1 for loop in found.loops)
    assert all(loop.accepted <= loop.tested <= loop.drafted <= 3 for loop in found.loops)
    drafted = {loop.drafted for loop in found.loops}
    assert drafted == {0} if name == GENERATE else max(drafted) == 3
    assert found.decode_s > 0
    assert found.prefill_s >= 0


def test_seeds_decide_and_checkpoints_do_not() -> None:
    asked = request(PROMPTS[0], sampling=SamplingParams(), fixed_length=True)
    assert peer(GENERATE, asked).tokens == peer(GENERATE, asked).tokens
    other = request(PROMPTS[0], sampling=SamplingParams(), fixed_length=True, seed=1)
    assert peer(GENERATE, asked).tokens != peer(GENERATE, other).tokens
    pair().target.model.generation_config.top_k = 1
    assert peer(GENERATE, asked).tokens != ours(request(PROMPTS[0], fixed_length=True)).tokens


def test_no_hook_is_left_behind() -> None:
    peer(ASSISTED, request(PROMPTS[0]))
    for model in (pair().target.model, pair().draft.model):
        assert not model._forward_hooks
        assert not model._forward_pre_hooks


def test_engines_of_two_ks_on_one_draft_keep_theirs() -> None:
    engines = {
        k: HFGenerateEngine(ASSISTED, pair().target, pair().draft, k, pair().tokenizer) for k in (1, 3)
    }
    asked = request(PROMPTS[0], fixed_length=True)
    for k in (1, 3, 1):
        loops = engines[k].generate(asked).loops
        assert loops is not None
        assert max(loop.drafted for loop in loops) == k


@pytest.mark.parametrize("name", [GENERATE, ASSISTED])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams()], ids=str)
def test_vocabularies_that_are_padded_unlike_are_cut_to_what_both_have(
    name: str, sampling: SamplingParams
) -> None:
    """As in Qwen2.5: transformers takes such models for strangers, and would sample what only pads."""
    target, draft = make_pair("llama", vocab_sizes=(TOKENS + 40, TOKENS + 3))
    letters = Letters("".join(chr(0x100 + i) for i in range(TOKENS)))
    pair_ = TorchLM(target, TOKENS), TorchLM(draft, TOKENS)
    engine = HFGenerateEngine(name, pair_[0], pair_[1] if name == ASSISTED else None, 3, letters)
    for seed in range(3):
        found = engine.generate(Request((5, 6, 7), 24, (), sampling, seed=seed, fixed_length=True))
        assert len(found.tokens) == 24
        assert max(found.tokens) < TOKENS
    assert target.config.vocab_size == TOKENS + 40, "the models are as they were"
    assert target(input_ids=torch.tensor([[5]])).logits.shape[-1] == TOKENS + 40


def test_on_a_device_forwards_are_timed_and_nothing_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait before and after each forward would take from them what a device does beside its host."""
    device, model = VirtualDevice(), pair().target.model
    forward = model.forward

    @wraps(forward)
    def launched(*positional: Any, **named: Any) -> Any:
        device.launch(100e-3 if named["input_ids"].shape[1] > 1 else 10e-3)
        return forward(*positional, **named)

    def waited(_: torch.device) -> float:
        device.wait()
        return device.now()

    monkeypatch.setattr(model, "forward", launched)
    monkeypatch.setattr(hf, "stopwatch_of", lambda *_: device.stopwatch())
    monkeypatch.setattr(hf, "device_now", waited)
    found = peer(GENERATE, request(PROMPTS[0], fixed_length=True))
    assert device.waits == 2
    assert found.prefill_s == pytest.approx(90e-3, rel=0.01)
    assert found.decode_s == pytest.approx(20 * 10e-3, rel=0.01)
