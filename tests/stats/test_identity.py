"""Where two outputs part."""

from __future__ import annotations

import pandas as pd
import pytest
from simulated_evidence import samples

from spsbench.stats.losslessness import divergence, identity


@pytest.mark.parametrize(
    ("one", "other", "position"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [4], 0), ([], [], None)],
)
def test_the_first_difference_or_end(one: list[int], other: list[int], position: int | None) -> None:
    assert divergence(one, other) == position


def test_without_tokens_or_common_sequences_there_is_nothing_to_compare() -> None:
    frame = samples([None, None])
    assert identity(frame, frame) is None
    tokens = frame.assign(token_ids=[[1], [2]])
    assert identity(tokens, tokens.assign(example_id="other")) is None
    same = identity(tokens, tokens)
    assert same == {"sequences": 2, "identical": 1.0, "first_divergence": None}


def test_a_sequence_is_compared_within_its_process() -> None:
    """Two processes that wrote different texts, each of them the same in both arms."""
    frame = samples([None, None])
    both = pd.concat(
        [frame.assign(process=process, token_ids=[[process], [2]]) for process in (0, 1)], ignore_index=True
    )
    assert identity(both, both) == {"sequences": 4, "identical": 1.0, "first_divergence": None}
