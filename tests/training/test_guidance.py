from __future__ import annotations

import pytest
import torch

from training.guidance import LEAST, guidance

IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 9, 0, 0]])
"""5 6 7 twice, another token, EOS and padding."""
ANSWERS = torch.tensor([[False, False, False, True, True, False, False, False]])


def looking(places: dict[tuple[int, int, int], int]) -> list[torch.Tensor]:
    """Attentions [1, 2, 8, 8] of two layers, all at ``places[layer, head, row]`` or the row."""
    layers = [torch.eye(8).repeat(1, 2, 1, 1) for _ in range(2)]
    for (layer, head, row), column in places.items():
        layers[layer][0, head, row] = torch.nn.functional.one_hot(torch.tensor(column), 8)
    return layers


def right_places() -> dict[tuple[int, int, int], int]:
    before = {(0, 0, row): row - 1 for row in range(1, 8)}
    repeated = {(1, 0, 3): 1, (1, 0, 4): 2}  # behind 5 comes 6, behind 6 comes 7: look at those
    pointed = {(1, 1, 3): 1, (1, 1, 4): 2}
    return before | repeated | pointed


def test_heads_that_look_where_they_should_cost_nothing() -> None:
    assert guidance(looking(right_places()), IDS, ANSWERS).item() == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("spoilt", [(0, 0, 3), (1, 0, 3), (1, 1, 3)])
def test_each_of_the_three_heads_is_held_to_its_place(spoilt: tuple[int, int, int]) -> None:
    places = right_places() | {spoilt: 0}
    assert guidance(looking(places), IDS, ANSWERS).item() > 1


def test_only_answers_point_and_only_with_an_earlier_copy() -> None:
    places = right_places()
    del places[1, 1, 3], places[1, 1, 4]
    nobody = torch.zeros_like(ANSWERS)
    assert guidance(looking(places), IDS, nobody).item() == pytest.approx(0, abs=1e-3)
    assert guidance(looking(places), IDS, ANSWERS).item() == pytest.approx(
        -torch.tensor(LEAST).log().item(), abs=0.01
    )


def test_a_text_without_copies_still_has_the_token_before() -> None:
    ids = torch.tensor([[1, 2, 3, 4]])
    attentions = [torch.full((1, 2, 3, 3), 0.5)] * 2
    answers = torch.ones((1, 3), dtype=torch.bool)
    assert guidance(attentions, ids, answers).item() == pytest.approx(0.693, abs=0.01)
