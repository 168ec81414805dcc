"""vLLM's CPU build as `spsbench get vllm` installs it: red (vllm issue 55005)."""

from collections.abc import Callable

import pytest


@pytest.mark.lossless(engine="vllm:draft_sample_method=probabilistic:eager=true", k=4)
def test_speculative_sampling_keeps_the_law(lossless_engine: Callable[..., object]) -> None:
    lossless_engine()
