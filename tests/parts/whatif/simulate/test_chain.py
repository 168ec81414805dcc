"""The exact law of a simulation, against enumeration and the papers' formula; closeness by bisection."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams
from spsbench.decode.rejection import accept_draft
from spsbench.drafters.model import ModelDrafter
from spsbench.law.enumeration import Scene, law_of_loop
from spsbench.law.theory import expected_tokens
from spsbench.parts.whatif.simulate.loops import ChainModel
from spsbench.parts.whatif.simulate.study import distance_of
from spsbench.parts.whatif.simulate.tables import (
    SOURCES,
    Chain,
    Contexts,
    Language,
    Source,
    Tables,
    limit_matrix,
)

PLAIN = SamplingParams()


def test_one_row_everywhere_gives_the_formula() -> None:
    target, draft = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.3, 0.5]])
    chain = Chain(Tables(Contexts(1), target, draft))
    assert chain.alpha == pytest.approx(0.7)
    assert chain.deviation == pytest.approx(0.0, abs=1e-7)
    for k in (1, 3, 8):
        assert chain.tokens_per_loop(k) == pytest.approx(expected_tokens(0.7, k), abs=1e-12)


def _enumerated(tables: Tables, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean tokens of a loop in each context, and where it leads, by the production's loop on all paths."""
    count = tables.contexts.count
    lengths, moves = np.zeros(count), np.zeros((count, count))
    for context in range(count):
        target, draft = (ChainModel(tables.contexts, rows) for rows in (tables.target, tables.draft))
        make = partial(ModelDrafter, draft, PLAIN, torch.device("cpu"))
        prompt = tables.contexts.tokens_of(context)
        for tokens, chance in law_of_loop(Scene(target, make, accept_draft, prompt, k, PLAIN)).items():
            lengths[context] += chance * len(tokens)
            moves[context, tables.contexts.of((*prompt, *tokens))] += chance
    return lengths, moves


@pytest.mark.parametrize(("name", "classes"), [("dirichlet", 3), ("ngram", 2)])
def test_tokens_per_loop_are_those_of_every_path_through_the_loop(name: str, classes: int) -> None:
    tables = _source(name).make(Language(vocabulary=3, classes=classes, variation=0.5), 0.5)
    lengths, moves = _enumerated(tables, 2)
    starts = limit_matrix(moves)[0]
    assert Chain(tables).tokens_per_loop(2) == pytest.approx(float(starts @ lengths), abs=1e-9)


def test_a_chain_that_takes_turns_has_a_long_run() -> None:
    assert limit_matrix(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(np.full((2, 2), 0.5))


def test_a_chain_that_ends_somewhere_is_there_in_the_long_run() -> None:
    ends = np.array([[0.0, 1.0], [0.0, 1.0]])
    assert limit_matrix(np.array([[0.5, 0.5], [0.0, 1.0]])) == pytest.approx(ends)


@pytest.mark.parametrize("name", ["dirichlet", "temperature"])
def test_easy_texts_and_hard_ones_share_the_tokens_and_not_the_loops(name: str) -> None:
    """Nothing leads from easy to hard: two kinds of text of equal length, each with one row everywhere."""
    chain = Chain(_source(name).make(Language(vocabulary=8, classes=2, stay=1.0), 0.5))
    easy, hard = (expected_tokens(float(overlap), 8) for overlap in chain.overlap)
    assert chain.text == pytest.approx([0.5, 0.5])
    assert easy > 1.2 * hard
    assert chain.tokens_per_loop(8) == pytest.approx(2 / (1 / easy + 1 / hard))


def test_unequal_contexts_in_runs_give_less_than_the_formula_and_alike_ones_the_same() -> None:
    source = _source("dirichlet")
    for variation, stay, differs in ((0.9, 0.95, True), (0.9, 0.5, False)):
        language = Language(variation=variation, stay=stay)
        chain = Chain(source.make(language, distance_of(source, language, PLAIN, 0.8)))
        short = expected_tokens(chain.alpha, 8) - chain.tokens_per_loop(8)
        assert (short > 0.1) is differs
        assert short > -0.01


def _source(name: str) -> Source:
    return next(source for source in SOURCES.values() if source.name == name)


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_draft_at_no_distance_is_the_target(name: str) -> None:
    tables = _source(name).make(Language(classes=4, vocabulary=8), 1e-7)
    assert Chain(tables).alpha == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", list(SOURCES))
@pytest.mark.parametrize("sampling", [PLAIN, SamplingParams(temperature=0.8), SamplingParams(top_p=0.95)])
def test_bisection_finds_the_alpha(name: str, sampling: SamplingParams) -> None:
    source, language = _source(name), Language(classes=8)
    distance = distance_of(source, language, sampling, 0.9)
    assert Chain(source.make(language, distance).warped(sampling)).alpha == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize("name", list(SOURCES))
def test_an_alpha_out_of_reach_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"--alpha: 0\.02 cannot be reached"):
        distance_of(_source(name), Language(classes=4), PLAIN, 0.02)


def test_a_draft_at_another_temperature_is_just_that() -> None:
    source = _source("temperature")
    for temperature in (0.5, 2.0):
        tables = source.make(Language(classes=1), source.distance(temperature))
        power = tables.target ** (1 / temperature)
        assert tables.draft == pytest.approx(power / power.sum())
        assert source.closeness(source.distance(temperature)) == pytest.approx(temperature)


def test_the_shorter_ngram_is_the_mean_of_the_longer_one_over_its_text() -> None:
    tables = _source("ngram").make(Language(vocabulary=6, classes=3, variation=0.0), 0.8)
    text = Chain(tables).text.reshape(3, 3)
    by_last = (text[:, :, None] * tables.target.reshape(3, 3, 6)).sum(axis=0) / text.sum(axis=0)[:, None]
    assert tables.draft.reshape(3, 3, 6)[0] == pytest.approx(by_last)


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
