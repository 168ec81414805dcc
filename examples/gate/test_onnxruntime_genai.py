"""ONNX Runtime GenAI as `spsbench get onnxruntime-genai` installs it: green."""

from collections.abc import Callable

import pytest


@pytest.mark.lossless(engine="onnxruntime-genai", k=4)
def test_speculative_sampling_keeps_the_law(lossless_engine: Callable[..., object]) -> None:
    lossless_engine()
