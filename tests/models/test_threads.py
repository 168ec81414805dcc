from __future__ import annotations

import pytest
import torch
from tiny_models import config_of, make

from spsbench.models import memory
from spsbench.models.causal_lm import CausalLM


@pytest.mark.parametrize(
    ("parameters", "most", "expected"),
    [(1, 8, 1), (3_000_000, 8, 1), (3_000_001, 8, 2), (6_700_000, 2, 2), (135_000_000, 16, 16)],
)
def test_threads_follow_from_the_size_and_the_cores_alone(
    monkeypatch: pytest.MonkeyPatch, parameters: int, most: int, expected: int
) -> None:
    model = CausalLM(make(config_of("llama")))
    model.model.parameters = lambda: [torch.empty(parameters, device="meta")]
    monkeypatch.setattr(memory, "_MOST", most)
    assert memory.suitable_threads(model) == expected
