"""llama.cpp as `spsbench get llama-cpp` compiles it, under both of its rules: green."""

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("rule", ["greedy", "probabilistic"])
def test_speculative_sampling_keeps_the_law(lossless_engine: Callable[..., object], rule: str) -> None:
    lossless_engine(f"llama-cpp:draft_sampling={rule}", k=4)
