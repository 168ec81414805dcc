"""A benchmark says which kernels computed: read of the functions that a model's layers call."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from benchmarks.tiny_types import tiny_config
from spsbench.base.other_layers import REFERENCE, slow_kernels
from spsbench.models.causal_lm import built
from spsbench.models.kernels import kernels_of, kernels_of_config


def test_a_hybrid_names_the_packages_that_it_lacks() -> None:
    found = kernels_of(built(tiny_config("qwen3_next"), torch.float32))
    assert found == {"causal-conv1d": REFERENCE, "flash-linear-attention": REFERENCE}
    assert str(slow_kernels(found)).endswith("pip install causal-conv1d flash-linear-attention.")


def test_attention_alone_has_one_kernel() -> None:
    assert kernels_of_config(tiny_config("qwen3")) == {}
    assert kernels_of(built(tiny_config("qwen3"), torch.float32)) == {}


def test_a_function_of_a_package_is_not_called_reference_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

    model = built(tiny_config("lfm2"), torch.float32)
    code = sys.modules[type(model).__module__]

    def fast(name: str) -> Any:
        def reference(*args: Any, **kwargs: Any) -> None: ...

        reference.__name__ = name
        return use_kernel_func_from_hub_with_fallback("is_tensor", "torch")(reference)

    assert "pip install causal-conv1d." in str(slow_kernels(kernels_of(model)))
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        monkeypatch.setattr(code, name, fast(name))
    assert slow_kernels(kernels_of(model)) is None
    assert list(kernels_of(model)) == ["torch"]
