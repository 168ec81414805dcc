"""Models that cannot be rolled back are refused by their configuration, before weights are searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_models import ARCHITECTURES, RECURRENT, config_of

from spsbench.errors import UsageError
from spsbench.models.source import find, require_generative


@pytest.mark.parametrize("architecture", list(RECURRENT))
def test_a_running_state_is_refused_without_weights_or_tokenizer(architecture: str, tmp_path: Path) -> None:
    config_of(architecture).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"running state.*cannot be rolled back") as caught:
        find(str(tmp_path), None, "--target")
    assert str(caught.value).startswith("--target: ")


def test_an_indexed_cache_is_refused() -> None:
    """Sparse attention keeps a second cache, which ``RewindLayer`` does not have."""
    with pytest.raises(UsageError, match="keeps DynamicIndexedLayer in its cache"):
        require_generative(transformers.DeepseekV32Config(), "it", "--target")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (transformers.WhisperConfig(), "nor an encoder-decoder of text"),
        (transformers.CLIPConfig(), "not a causal language model"),
    ],
)
def test_models_that_write_no_text_from_text_are_refused(config: Any, what: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=what):
        find(str(tmp_path), None, "--draft")


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_attention_passes(architecture: str) -> None:
    require_generative(config_of(architecture), architecture, "--target")


def test_without_private_names_of_transformers_the_self_test_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(transformers.AutoModelForCausalLM, "_model_mapping")
    require_generative(config_of("llama"), "llama", "--target")
    with pytest.raises(UsageError, match="hybrid"):  # seen from the public cache
        require_generative(config_of("jamba"), "jamba", "--target")
