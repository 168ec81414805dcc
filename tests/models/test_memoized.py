"""The memoized model equals the wrapped one, which computes each context once."""

from __future__ import annotations

import torch
from support.tiny_models import config_of, make

from spsbench.models.torch_lm import TorchLM
from spsbench.parts.verify.outputs import MemoizedModel

CPU = torch.device("cpu")


def test_rows_are_those_of_the_model_and_are_computed_once() -> None:
    plain = TorchLM(make(config_of("llama")))
    inner = TorchLM(make(config_of("llama")))
    forwards = 0
    score = inner.score

    def counted(tokens: torch.Tensor, last: int) -> torch.Tensor:
        nonlocal forwards
        forwards += 1
        return score(tokens, last)

    inner.score = counted  # type: ignore[method-assign]
    model = MemoizedModel(inner, CPU)
    paths = [[1, 2, 3, 4, 5], [1, 2, 3, 9, 8], [1, 2, 3, 4, 7], [1, 2, 3, 4, 5]]
    with torch.inference_mode():
        for path in paths:
            model.rollback(0)
            plain.rollback(0)
            tokens = torch.tensor(path)
            assert torch.allclose(model.score(tokens, last=3), plain.score(tokens, last=3), atol=1e-5)
        assert forwards == 3
        model.rollback(4)
        assert model.length == 4
        plain.rollback(4)
        assert torch.allclose(
            model.score(torch.tensor([7]), last=1), plain.score(torch.tensor([7]), last=1), atol=1e-5
        )
    assert forwards == 3
