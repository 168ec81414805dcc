"""The self-test passes correct models and catches silent faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.tiny_models import MORE, WINDOW, config_of, make
from transformers import DynamicCache

from spsbench.base.errors import UsageError
from spsbench.models.causal_lm import (
    CausalLM,
    attention_window,
    context_window,
    require_exact_rollback,
    self_test,
)
from spsbench.models.rewind import RewindLayer
from spsbench.models.source import require_generative
from spsbench.models.torch_lm import TorchLM

WINDOWED = ("mistral", "gemma3")


class LibraryCache:
    """transformers' own cache, which keeps only the window, rolled back by ``crop``."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.held = DynamicCache(config=config)

    def rollback(self, length: int) -> None:
        if length == 0:
            self.held = DynamicCache(config=self.config)
        else:
            self.held.crop(length - self.held.get_seq_length())


class CutLayer(RewindLayer):
    """Drops what no later token can see: correct until tokens are rolled back."""

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().update(*args, **kwargs)
        seen = keys.clone(), values.clone()
        for stored in (keys, values):
            stored[:, :, : max(self.used - WINDOW + 1, 0)] = 0.0
        return seen


class Swapped(TorchLM):
    """A model with another cache."""

    def __init__(self, model: Any, cache: Any) -> None:
        super().__init__(model)
        self.other = cache

    @property
    def length(self) -> int:
        return int(self.other.held.get_seq_length())

    def score(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        output = self.model(input_ids=tokens[None], past_key_values=self.other.held, use_cache=True)
        logits: torch.Tensor = output.logits[0, -last:]
        return logits

    def rollback(self, length: int) -> None:
        self.other.rollback(length)


class Misplaced(TorchLM):
    """Every block starts at position 0."""

    def score(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids=tokens[None],
            past_key_values=self.cache,
            position_ids=torch.arange(len(tokens))[None],
            use_cache=True,
        ).logits[0, -last:]
        return logits


@pytest.mark.parametrize("architecture", list(MORE))
def test_more_architectures_pass(architecture: str) -> None:
    config = config_of(architecture)
    require_generative(config, architecture, "--target")
    result = self_test(TorchLM(make(config)))
    assert result.worst < 1e-5
    assert result.prompt_tokens == 24 + (attention_window(config) or 0)


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_windowed_cache_is_refused(architecture: str) -> None:
    model = make(config_of(architecture))
    assert self_test(TorchLM(model)).worst < 1e-5
    with pytest.raises(UsageError, match="rolled back exactly: RuntimeError"):
        require_exact_rollback(Swapped(model, LibraryCache(model.config)), "windowed")


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_window_cut_too_early_is_caught(architecture: str) -> None:
    broken = TorchLM(make(config_of(architecture)))
    sliding = DynamicCache(config=broken.model.config).is_sliding
    broken.cache.layers = [CutLayer() if slides else RewindLayer() for slides in sliding]
    result = self_test(broken)
    assert result.cached < 1e-4  # right until the first rollback ...
    assert result.worst > 0.01  # ... and silently wrong after it
    with pytest.raises(UsageError, match=r"logits differ by .* after rollback"):
        require_exact_rollback(broken, "cut")


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
def test_a_stale_cache_is_caught(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchLM(make(config_of(architecture)))
    real = model.rollback
    monkeypatch.setattr(model, "rollback", lambda length: real(length + 1 if length else 0))
    with pytest.raises(UsageError, match="cannot be rolled back exactly"):
        require_exact_rollback(model, "stale by one token")


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "phi"])
def test_wrong_positions_are_caught(architecture: str) -> None:
    result = self_test(Misplaced(make(config_of(architecture))))
    assert result.cached > 0.01 * result.scale


def test_half_precision_passes() -> None:
    model = TorchLM(make(config_of("bloom")).to(torch.bfloat16))
    assert require_exact_rollback(model, "half").worst < 6e-2


def test_one_failure_is_rounding_and_repeated_failures_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a router near a tie that takes another expert."""
    model = TorchLM(make(config_of("llama")))
    seeds = []

    def moody(tested: CausalLM, seed: int) -> Any:
        seeds.append(seed)
        return replace(self_test(tested, seed), cached=1.0 if seed in bad else 0.0)

    monkeypatch.setattr("spsbench.models.causal_lm.self_test", moody)
    bad = {0}
    require_exact_rollback(model, "moody")
    assert seeds == [0, 1]
    bad = {0, 1, 2}
    with pytest.raises(UsageError):
        require_exact_rollback(model, "moody")


@pytest.mark.parametrize("wrong", ["cached", "rolled_back", "scale"])
def test_nan_is_no_small_difference(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchLM(make(config_of("llama")))
    result = replace(self_test(model), **{wrong: float("nan")})
    monkeypatch.setattr("spsbench.models.causal_lm.self_test", lambda model, seed: result)
    with pytest.raises(UsageError, match="cannot be rolled back exactly"):
        require_exact_rollback(model, "broken")


def test_the_prompt_crosses_small_windows_and_fits_small_contexts() -> None:
    assert self_test(TorchLM(make(config_of("mistral")))).prompt_tokens == 24 + WINDOW
    assert self_test(TorchLM(make(config_of("mistral", sliding_window=4096)))).prompt_tokens == 24
    assert self_test(TorchLM(make(config_of("gpt2", n_positions=20)))).prompt_tokens == 13


def test_windows_of_configurations() -> None:
    assert attention_window(config_of("gemma3")) == attention_window(config_of("mistral")) == WINDOW
    assert attention_window(config_of("mistral", sliding_window=None)) is None
    assert attention_window(config_of("qwen2", use_sliding_window=False, sliding_window=8)) is None
    assert attention_window(config_of("bloom")) is None
    assert context_window(config_of("gpt2")) == 512
    assert context_window(config_of("bloom")) == 1 << 30


def test_longrope_ends_the_window_where_its_frequencies_change() -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4}
    config = config_of(
        "phi3",
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters=rope | {"original_max_position_embeddings": 32},
    )
    assert context_window(config) == 32
    model = TorchLM(make(config))
    assert self_test(model).worst < 1e-5
    model.context_window = 128  # control: beyond the window the cache is silently wrong
    tokens = torch.arange(40)
    with torch.inference_mode():
        model.score(tokens[:30], last=1)
        after = model.score(tokens[30:], last=1)
        assert float((after - model.score_uncached(tokens)[-1:]).abs().max()) > 1e-3


def test_a_forward_that_fails_without_a_cache_too_is_no_matter_of_rollback() -> None:
    """xLSTM's in bfloat16, of which transformers multiplies matrices of two dtypes."""

    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("expected m1 and m2 to have the same dtype")

    broken = TorchLM(make(config_of("llama")))
    broken.model.forward = fails
    with pytest.raises(UsageError, match="has no forward in float32, with or without a cache"):
        require_exact_rollback(broken, "broken")
