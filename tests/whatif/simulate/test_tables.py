"""Contexts are numbered consistently, and a table as a model answers with its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spsbench.records import SamplingParams
from spsbench.whatif.simulate.loops import ChainModel
from spsbench.whatif.simulate.tables import SOURCES, Contexts, Language, Tables


@pytest.mark.parametrize("contexts", [Contexts(1), Contexts(3), Contexts(3, order=2), Contexts(1, order=2)])
def test_a_successor_is_the_context_of_the_longer_text(contexts: Contexts) -> None:
    successors = contexts.successors(7)
    assert successors.shape == (contexts.count, 7)
    for context in range(contexts.count):
        tokens = contexts.tokens_of(context)
        assert contexts.of(tokens) == context
        for token in range(7):
            assert successors[context, token] == contexts.of((*tokens, token))


def test_a_model_gives_the_logarithms_of_its_context_s_row() -> None:
    rows = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    model = ChainModel(Contexts(2), rows)
    model.score(torch.tensor([0]), last=1)
    logits = model.score(torch.tensor([1, 2]), last=2)
    assert logits.dtype == torch.float64
    assert torch.equal(logits.exp(), torch.from_numpy(rows[[1, 0]]))
    model.rollback(1)
    assert model.length == 1


@pytest.mark.parametrize("name", list(SOURCES))
def test_rows_are_distributions_and_one_seed_makes_one_language(name: str) -> None:
    source = next(each for each in SOURCES.values() if each.name == name)
    tables = source.make(Language(classes=4, vocabulary=9), 0.3)
    again = source.make(Language(classes=4, vocabulary=9), 0.3)
    other = source.make(Language(classes=4, vocabulary=9, seed=1), 0.3)
    for rows in (tables.target, tables.draft):
        assert rows.shape == (tables.contexts.count, 9)
        assert np.allclose(rows.sum(axis=1), 1.0)
        assert (rows >= 0).all()
    assert np.array_equal(tables.draft, again.draft)
    assert not np.array_equal(tables.target, other.target)


def test_tables_are_warped_as_a_loop_warps() -> None:
    rows = np.array([[0.6, 0.3, 0.1]])
    warped = Tables(Contexts(1), rows, rows[:, ::-1].copy()).warped(SamplingParams(top_k=2))
    assert warped.target == pytest.approx(np.array([[2 / 3, 1 / 3, 0.0]]))
    assert warped.draft == pytest.approx(np.array([[0.0, 1 / 3, 2 / 3]]))
