"""The worker of MLX LM, whose library is a fake here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spsbench.base.protocol import Ask
from spsbench.parts.external.workers.mlx_lm import MlxLm, _rope_settings


def test_requests_without_a_seed_go_on_in_the_engines_stream() -> None:
    """A seed of our own in each would make them copies of each other, and the engine would look wrong."""
    seeds: list[int] = []
    worker: Any = MlxLm.__new__(MlxLm)
    worker._mx, worker._draft = SimpleNamespace(random=SimpleNamespace(seed=seeds.append)), None
    worker._tokens = lambda ask: iter([(1, False), (2, False)])
    for seed in (None, 0, 7):
        assert worker.generate(Ask([1], 2, seed=seed)).output_ids == [1, 2]
    assert seeds == [0, 7]


def test_the_base_of_rotary_positions_is_told_as_mlx_lm_reads_it() -> None:
    """It reads ``rope_theta`` alone, and takes 10,000 where transformers 5 writes ``rope_parameters``."""
    default = {"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}
    assert _rope_settings(default) == {"rope_theta": 1e5}
    assert _rope_settings(default | {"rope_theta": 1e5}) == {}
    scaled = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    assert _rope_settings(scaled) == {
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    one, other = {"rope_theta": 1e6, "rope_type": "default"}, {"rope_theta": 1e4, "rope_type": "default"}
    by_layer = {"rope_parameters": {"full_attention": one, "sliding_attention": one}}
    assert _rope_settings(by_layer) == {"rope_theta": 1e6}
    unlike = {"rope_parameters": {"full_attention": one, "sliding_attention": other}}
    assert _rope_settings(unlike) == _rope_settings({}) == {}
