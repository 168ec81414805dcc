"""The n-gram drafter's rows are those of counting by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.records import SamplingParams, Spec
from spsbench.drafters.ngram import CorpusCounts, NgramDrafter
from spsbench.drafters.registry import DRAFTERS, Context, build_drafter
from spsbench.law.enumeration import TableModel

V = 4
TEXTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=20)
CORPORA = st.lists(st.lists(st.integers(0, V - 1), max_size=12), max_size=4)
PLAIN = SamplingParams()


def counted(texts: Sequence[Sequence[int]], context: list[int]) -> Counter[int]:
    n = len(context)
    return Counter(
        text[i] for text in texts for i in range(n, len(text)) if list(text[i - n : i]) == list(context)
    )


def probability(texts: Sequence[Sequence[int]], context: list[int], token: int) -> float:
    """Witten and Bell's interpolation, word for word."""
    followers = counted(texts, context)
    lower = probability(texts, context[1:], token) if context else 1 / V
    total, distinct = followers.total(), len(followers)
    return (followers[token] + distinct * lower) / (total + distinct) if total else lower


def by_hand(texts: Sequence[Sequence[int]], tokens: list[int], order: int) -> list[float]:
    context = tokens[max(len(tokens) - order + 1, 0) :]
    return [probability(texts, context, token) for token in range(V)]


def largest_difference(
    corpus: Sequence[Sequence[int]], tokens: list[int], order: int, adapt: bool, k: int = 3
) -> float:
    """Between the rows of a draft and those of counting by hand, drafted tokens included."""
    drafter = NgramDrafter(CorpusCounts(corpus, order, V), order, adapt, PLAIN)
    drafter.begin(tokens[:1])
    draft = drafter.draft(tokens, k, torch.linspace(0.1, 0.9, k, dtype=torch.float64))
    worst, text = 0.0, list(tokens)
    assert draft.probs is not None
    for token, row in zip(draft.tokens.tolist(), draft.probs, strict=True):
        wanted = by_hand([*corpus, text] if adapt else corpus, text, order)
        worst = max(worst, float((row - torch.tensor(wanted, dtype=torch.float64)).abs().max()))
        text.append(token)
    return worst


@given(CORPORA, TEXTS, st.integers(1, 4), st.booleans())
def test_rows_are_those_of_counting_by_hand(
    corpus: list[list[int]], tokens: list[int], order: int, adapt: bool
) -> None:
    assert largest_difference(corpus, tokens, order, adapt) < 1e-12


def test_the_comparison_sees_a_context_across_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = [[0, 1, 2], [3, 0, 2]]
    assert largest_difference(corpus, [2], 2, False) < 1e-12
    joined = CorpusCounts([[*corpus[0], *corpus[1]]], 2, V)
    monkeypatch.setattr(f"{__name__}.CorpusCounts", lambda *args: joined)
    assert largest_difference(corpus, [2], 2, False) > 1e-3


@given(CORPORA, TEXTS, st.integers(1, 4), st.integers(0, 3))
def test_a_row_depends_on_the_text_alone(
    corpus: list[list[int]], tokens: list[int], order: int, accepted: int
) -> None:
    """Rejected tokens leave nothing behind, and neither does the sequence before."""
    counts = CorpusCounts(corpus, order, V)
    u = torch.tensor([0.2, 0.5, 0.9])
    used, fresh = (NgramDrafter(counts, order, True, PLAIN) for _ in range(2))
    used.begin([3, 3, 1])
    used.draft([3, 3, 1], 3, u)
    used.begin(tokens)
    draft = used.draft(tokens, 3, u).tokens.tolist()
    after = [*tokens, *draft[:accepted], 0]
    used.observe(after, accepted)
    fresh.begin(after)
    rows = [drafter.draft(after, 3, u).probs for drafter in (used, fresh)]
    assert torch.equal(rows[0], rows[1])


def test_rows_are_distributions_in_the_numbers_precision() -> None:
    size = 5000
    generator = np.random.default_rng(0)
    corpus = [generator.zipf(1.3, 300).clip(max=size - 1).tolist() for _ in range(20)]
    drafter = NgramDrafter(CorpusCounts(corpus, 3, size), 3, True, PLAIN)
    drafter.begin(corpus[0])
    for dtype in (torch.float32, torch.float64):
        draft = drafter.draft(corpus[0], 4, torch.full((4,), 0.5, dtype=dtype))
        assert draft.probs.shape == (4, size)
        assert draft.probs.dtype == dtype
        assert float(draft.probs.min()) > 0
        torch.testing.assert_close(draft.probs.sum(-1), torch.ones(4, dtype=dtype))
        drafter.observe(corpus[0], 0)


@pytest.mark.parametrize("sampling", [SamplingParams(greedy=True), SamplingParams(top_k=2, top_p=0.6)])
def test_rows_are_warped_and_tokens_drawn_from_them(sampling: SamplingParams) -> None:
    drafter = NgramDrafter(CorpusCounts([[0, 1, 1, 2, 1, 3]], 2, V), 2, True, sampling)
    drafter.begin([1])
    draft = drafter.draft([1], 3, torch.tensor([0.1, 0.6, 0.95]))
    assert draft.probs is not None
    assert int((draft.probs == 0).sum()) > 0
    assert bool((draft.probs.gather(-1, draft.tokens.unsqueeze(-1)) > 0).all())


@pytest.mark.parametrize(
    ("name", "order"), [("unigram", 1), ("bigram", 2), ("ngram", 3), ("ngram:order=2", 2)]
)
def test_names_stand_for_orders(name: str, order: int) -> None:
    drafter, same = (
        build_drafter(Spec.parse(name), context()),
        NgramDrafter(counts(order), order, True, PLAIN),
    )
    u, tokens = torch.full((3,), 0.4), [0, 1, 2, 0]
    for each in (drafter, same):
        each.begin(tokens)
    assert torch.equal(drafter.draft(tokens, 3, u).probs, same.draft(tokens, 3, u).probs)


def test_point_masses_and_samplers_are_told_apart() -> None:
    assert not DRAFTERS["ngram"].point_mass
    assert DRAFTERS["ngram"].forwards(4) == 0


CORPUS = ((0, 1, 2, 0, 1), (1, 1, 0, 2))


def counts(order: int) -> CorpusCounts:
    return CorpusCounts(CORPUS, order, V)


def context() -> Context:
    target = TableModel(lambda context: [1 / V] * V, V)
    return Context(target, None, PLAIN, torch.device("cpu"), V, lambda: CORPUS)
