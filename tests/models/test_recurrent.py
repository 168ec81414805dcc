"""Recurrent and hybrid models are rolled back exactly, and every way of doing it wrong is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.state_table import StateTable
from support.tiny_models import MORE_RECURRENT, RECURRENT, TOKENS, config_of, make, make_tokenizer, pair_of
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.base.other_layers import slower_than_asked
from spsbench.base.records import SamplingParams
from spsbench.models import pair, recurrent
from spsbench.models.causal_lm import require_exact_rollback, self_test
from spsbench.models.pair import _rollback_facts
from spsbench.models.recurrent import PLANES, REPLAY, StateCache, StateLayer, state_bytes_of
from spsbench.models.rewind import RewindLayer
from spsbench.models.source import ModelSource, find, require_generative, require_rollback
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import EXACT as EXACT_LAW
from spsbench.testing import assert_lossless

HOW = {
    "qwen3.5": "planes",
    "lfm2": "planes",
    "mamba": "planes",
    "falcon-h1": "planes",
    "deepseek-v4": "replay",
    "deepseek-v3.2": "length",
    "minimax": "replay",
    "recurrent-gemma": "steps",
    "rwkv": "replay",
}
EXACT = 1e-4


def lm_of(architecture: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> TorchLM:
    return TorchLM(make(config_of(architecture), seed).to(dtype), TOKENS)


@pytest.mark.parametrize("architecture", list(RECURRENT))
def test_each_kind_of_cache_is_rolled_back_exactly(architecture: str) -> None:
    require_generative(config_of(architecture), architecture, "--target")
    model = lm_of(architecture)
    assert self_test(model).worst < EXACT
    assert model.rolled_back_by == HOW[architecture]


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", list(MORE_RECURRENT))
def test_each_family_is_rolled_back_exactly(architecture: str) -> None:
    require_generative(config_of(architecture), architecture, "--target")
    assert self_test(lm_of(architecture)).worst < EXACT


@pytest.mark.parametrize("architecture", ["qwen3.5", "mamba", "falcon-h1"])
def test_planes_and_replay_are_the_same(architecture: str) -> None:
    """Where the states do not fit, the accepted tokens are read again."""
    model = lm_of(architecture)
    model.cache.mechanism = REPLAY
    assert self_test(model).worst < EXACT
    assert model.rolled_back_by == REPLAY


@pytest.mark.parametrize("architecture", ["qwen3.5", "minimax", "llama"])
def test_states_are_counted_before_a_weight_is_loaded(architecture: str) -> None:
    model = lm_of(architecture, torch.bfloat16)
    with torch.inference_mode():
        model.score(torch.arange(5), last=1)
    counted = state_bytes_of(config_of(architecture), torch.bfloat16)
    assert counted == model.state_bytes
    assert (counted > 0) == (architecture != "llama")


def test_states_that_do_not_fit_are_read_again_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lm_of("qwen3.5")
    assert self_test(model).worst < EXACT
    assert "slower_than_asked" not in _rollback_facts(model)
    monkeypatch.setattr(pair, "available_bytes", lambda device: 15 * model.state_bytes)
    found = _rollback_facts(model)
    assert found["rollback"] == REPLAY
    sentence = " ".join(slower_than_asked({"target": found, "draft": {}}))
    assert sentence.startswith(
        "The target reads accepted tokens again after a rejection (replay): its states"
    )
    assert self_test(model).worst < EXACT


def test_a_rollback_before_everything_that_is_kept_reads_from_the_beginning() -> None:
    model = lm_of("qwen3.5")
    tokens = torch.randint(TOKENS, (60,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        for token in tokens.split(1):
            model.score(token, last=1)
        model.rollback(7)
        assert model.length == 7
        row = model.score(tokens[7:8], last=1)
        assert torch.allclose(row, model.score_uncached(tokens[:8], last=1), atol=1e-3)
        model.restore(30)  # the same tokens, as after a rollback
        assert model.length == 30
        row = model.score(tokens[30:31], last=1)
        assert torch.allclose(row, model.score_uncached(tokens[:31], last=1), atol=1e-3)


def test_as_few_states_are_kept_as_a_draft_rolls_back_over() -> None:
    model = lm_of("mamba")
    with torch.inference_mode():
        for token in torch.arange(50).split(1):
            model.score(token, last=1)
    assert isinstance(model.cache, StateCache)
    assert len(model.cache._marks) == recurrent.MOST_MARKS


def test_outside_of_a_cache_transformers_computes_as_always() -> None:
    """The recurrence goes in steps only while one of these caches is read by."""
    one = make(config_of("qwen3.5"))
    tokens = torch.arange(40)[None]
    with torch.inference_mode():
        before = one(input_ids=tokens, use_cache=False).logits
        TorchLM(one, TOKENS).score(tokens[0], last=1)
        assert torch.equal(one(input_ids=tokens, use_cache=False).logits, before)


class Forgotten(transformers.cache_utils.DynamicLayer):
    """A layer of a later transformers, with a state that nobody can copy."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = iter(())


def found(config: Any, folder: Path) -> ModelSource:
    config.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return find(str(folder), None, "--target")


def test_a_state_that_cannot_be_copied_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recurrent, "layers_of", lambda config: [Forgotten()])
    source = found(config_of("llama"), tmp_path)
    with pytest.raises(UsageError, match=r"cannot be copied \(Forgotten.kept is a tuple_iterator\)"):
        require_rollback(source, "--target")


def test_a_state_outside_of_the_cache_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transformers.LlamaForCausalLM, "_is_stateful", True)
    source = found(config_of("llama"), tmp_path)  # who scores its texts alone finds it
    with pytest.raises(UsageError, match="keeps its running state outside of its cache"):
        require_rollback(source, "--target")
    with pytest.raises(UsageError, match="keeps its running state outside of its cache"):
        pair_of(tmp_path)


# What an implementation may get wrong, as changes of the right one.
Fault = Callable[[pytest.MonkeyPatch], None]


def _state_stays(patch: pytest.MonkeyPatch) -> None:
    def back_to(self: StateLayer, snapshot: Any) -> None:
        conv, _, has = snapshot
        self.conv_states, self.has_previous_state = dict(conv), dict(has)

    patch.setattr(StateLayer, "back_to", back_to)
    patch.setattr(StateLayer, "take", _take_without("recurrent_states"))


def _convolution_stays(patch: pytest.MonkeyPatch) -> None:
    def back_to(self: StateLayer, snapshot: Any) -> None:
        _, recurrent_states, has = snapshot
        self.recurrent_states, self.has_previous_state = dict(recurrent_states), dict(has)

    patch.setattr(StateLayer, "back_to", back_to)
    patch.setattr(StateLayer, "take", _take_without("conv_states"))


def _take_without(name: str) -> Any:
    right = StateLayer.take

    def take(self: StateLayer, *where: int) -> None:
        stays = dict(getattr(self, name))
        right(self, *where)
        setattr(self, name, stays)

    return take


def _one_too_few(patch: pytest.MonkeyPatch) -> None:
    """Of the accepted tokens one less is read again, or the state before it is taken."""
    right, take = TorchLM._read_again, StateLayer.take

    def read_again(self: TorchLM, tokens: Tensor | None) -> None:
        right(self, None if tokens is None or len(tokens) < 2 else tokens[1:])
        self.cache.length += 0 if tokens is None else 1

    patch.setattr(TorchLM, "_read_again", read_again)
    patch.setattr(
        StateLayer, "take", lambda self, length, kept, block: take(self, length, max(kept - 1, 1), block)
    )


def _attention_cut(patch: pytest.MonkeyPatch) -> None:
    """Attention is cropped by one row that it should have kept, and one stays that it should not have."""
    right = RewindLayer.rollback
    patch.setattr(RewindLayer, "rollback", lambda self, length: right(self, length + 1 if length else 0))


def _shared_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Two sequences of the same weights keep what was before a block in one place."""
    kept: dict[int, Any] = {}
    right, back_to = StateCache.rollback, StateLayer.back_to
    snapshot = StateLayer.snapshot

    def shared(self: StateLayer) -> Any:
        kept[len(self.conv_states)] = snapshot(self)
        return None

    patch.setattr(StateLayer, "snapshot", shared)
    patch.setattr(StateLayer, "back_to", lambda self, none: back_to(self, kept[len(self.conv_states)]))
    patch.setattr(StateLayer, "knows", lambda self, *where: False)
    patch.setattr(StateCache, "rollback", right)


FAULTS: dict[str, Fault] = {
    "the state is not put back": _state_stays,
    "the convolution is not put back": _convolution_stays,
    "one accepted token too few": _one_too_few,
    "attention is cropped by one": _attention_cut,
    "two sequences share a snapshot": _shared_snapshot,
}


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [PLANES, REPLAY])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_every_planted_fault_is_found_within_8_texts(
    fault: str, how: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test reads two texts; the right implementation passes in both dtypes."""
    model = lm_of("qwen3.5", dtype)
    model.cache.mechanism = how
    require_exact_rollback(model, "right")
    FAULTS[fault](monkeypatch)
    with pytest.raises(UsageError, match="cannot be rolled back exactly"):
        require_exact_rollback(model, fault)


@pytest.mark.parametrize("how", [PLANES, REPLAY])
def test_the_law_is_kept_over_a_table_with_a_running_state(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path of the production loop is enumerated, target and draft with a state: exact below 1e-12."""
    monkeypatch.setattr(StateTable, "how", how)
    monkeypatch.setattr("spsbench.testing.TableModel", StateTable)
    sampled = (SamplingParams(),)
    assert EXACT_LAW <= 1e-12
    assert_lossless("model", vocab_size=2, ks=(2,), samplings=sampled)
    monkeypatch.setattr(StateLayer, "back_to", lambda self, snapshot: None)
    monkeypatch.setattr(StateLayer, "take", lambda self, length, kept, block: None)
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless("model", vocab_size=2, ks=(2,), samplings=sampled)
