"""The worker of MLX LM, whose library is a fake here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spsbench.base.protocol import Ask
from spsbench.parts.external.workers.mlx_lm import MlxLm


def test_requests_without_a_seed_go_on_in_the_engines_stream() -> None:
    """A seed of our own in each would make them copies of each other, and the engine would look wrong."""
    seeds: list[int] = []
    worker: Any = MlxLm.__new__(MlxLm)
    worker._mx, worker._draft = SimpleNamespace(random=SimpleNamespace(seed=seeds.append)), None
    worker._tokens = lambda ask: iter([(1, False), (2, False)])
    for seed in (None, 0, 7):
        assert worker.generate(Ask([1], 2, seed=seed)).output_ids == [1, 2]
    assert seeds == [0, 7]
