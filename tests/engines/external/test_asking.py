"""What engines are asked with: sampling, seeds and the folders of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models

from spsbench.engines.external.engine import sampling_of
from spsbench.engines.external.protocol import Sampling, request_seed
from spsbench.errors import UnavailableError
from spsbench.records import SamplingParams
from spsbench.runner.peers import folder_of


@pytest.mark.parametrize(
    ("ours", "asked"),
    [
        (SamplingParams(), Sampling()),
        (SamplingParams(greedy=True), Sampling(greedy=True)),
        (SamplingParams(0.7, 5, 0.9), Sampling(temperature=0.7, top_k=5, top_p=0.9)),
    ],
)
def test_a_sampling_is_asked_for_by_its_names(ours: SamplingParams, asked: Sampling) -> None:
    assert sampling_of(ours) == asked


def test_seeds_fit_into_31_bits() -> None:
    assert [request_seed(seed) for seed in (0, 7, 2**31 - 1, 2**31, 2**63 + 5)] == [0, 7, 2**31 - 1, 0, 5]


def test_a_folder_is_found_behind_a_link_and_a_model_that_is_not_here_is_none(tmp_path: Path) -> None:
    saved = tiny_models.save(tiny_models.make(tiny_models.config_of("llama")), tmp_path / "model")
    (tmp_path / "link").symlink_to(saved)
    source = tiny_models.pair_of(tmp_path / "link").target
    assert folder_of(source) == saved.resolve()
    with pytest.raises(UnavailableError, match="nobody/nothing"):
        folder_of(replace(source, name="nobody/nothing", location="nobody/nothing"))
