"""OpenVINO GenAI as `spsbench get openvino` installs it: red (openvino.genai issue 4190)."""

from collections.abc import Callable

import pytest


@pytest.mark.lossless(engine="openvino", k=4)
def test_speculative_sampling_keeps_the_law(lossless_engine: Callable[..., object]) -> None:
    lossless_engine()
