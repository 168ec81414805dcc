"""Beam search on tables: every hypothesis by enumeration, and speculation that changes none of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

import pytest
import torch
from support.table_tree import EOS, PROMPT, TableTree, ends_at, every_hypothesis, near, searched

from spsbench.base.records import BeamParams
from spsbench.decode import beam
from spsbench.decode.beam import Beam, BeamLoop, BeamSearch, Node, best_candidates
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.law.enumeration import RowFunction, random_rows

EARLY: tuple[object, ...] = (False, True, "never")


def params(
    width: int, draft_width: int | None = None, penalty: float = 1.0, early: object = False
) -> BeamParams:
    return BeamParams(width, draft_width or width, penalty, early)  # type: ignore[arg-type]


def ending(rows: RowFunction, share: float) -> RowFunction:
    """The same table with so much more of each row on EOS."""

    def row(context: tuple[int, ...]) -> Sequence[float]:
        own = [(1 - share) * value for value in rows(context)]
        own[EOS] += share
        return own

    return row


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_search_that_can_hold_everything_finds_everything(penalty: float) -> None:
    vocabulary, limit = 3, 4
    rows = random_rows(vocabulary, seed=5)
    expected = every_hypothesis(rows, limit, penalty)
    found, loops = searched(TableTree(rows), params(vocabulary**limit, penalty=penalty), limit)
    assert {one.tokens for one in found} == expected.keys()
    assert len(expected) == 1 + 2 + 4 + 24
    for one in found:
        assert one.score == pytest.approx(expected[one.tokens], abs=1e-5)
        assert one.log_prob == pytest.approx(one.score * len(one.tokens) ** penalty, abs=1e-5)
        assert one.reason == ("eos" if one.tokens[-1] == EOS else "length")
    assert all(a.score >= b.score for a, b in pairwise(found))
    assert [loop.steps for loop in loops] == [1] * limit


def test_one_beam_without_eos_is_greedy() -> None:
    rows = random_rows(6, seed=2)
    tokens: list[int] = []
    for _ in range(7):
        row = rows((*PROMPT, *tokens))
        tokens.append(max(range(6), key=row.__getitem__))
    (found,), _ = searched(TableTree(rows), params(1), 7, eos=None)
    assert found.tokens == tuple(tokens)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_speculation_finds_the_same_hypotheses_and_scores(width: int, share: float) -> None:
    steps = passes = drafted = accepted = 0
    for seed, k, wider, early in product(range(3), range(1, 6), (0, 2, width), EARLY):
        rows = ending(random_rows(7, seed, sharpness=2.0), share)
        asked = params(width, width + wider, (1.0, 0.0, 1.5)[seed], early)
        draft = TableTree(near(rows, random_rows(7, seed + 100), 0.25))
        plain, one_by_one = searched(TableTree(rows), asked, 9)
        target = TableTree(rows)
        found, loops = searched(target, asked, 9, draft, k)
        assert found == plain
        assert sum(loop.steps for loop in loops) == len(one_by_one)
        assert target.passes == len(loops)
        for loop in loops:
            assert 0 <= loop.accepted <= loop.drafted <= k
            assert loop.accepted <= loop.steps <= loop.accepted + 1
        steps, passes = steps + len(one_by_one), passes + len(loops)
        drafted, accepted = drafted + sum(x.drafted for x in loops), accepted + sum(x.accepted for x in loops)
    assert 0 < accepted < drafted  # neither never nor always
    assert passes < steps


def test_a_draft_that_is_the_target_is_always_right() -> None:
    rows = random_rows(8, seed=1)
    asked = params(3, 3, early=True)
    _, loops = searched(TableTree(rows), asked, 12, TableTree(rows), 3, eos=None)
    assert [(loop.steps, loop.drafted, loop.accepted) for loop in loops] == [(4, 3, 3)] * 3


def test_a_draft_does_not_search_beyond_the_length_limit() -> None:
    rows = random_rows(8, seed=1)
    found, loops = searched(TableTree(rows), params(2), 3, TableTree(rows), 5, eos=None)
    assert [(loop.steps, loop.drafted) for loop in loops] == [(3, 2)]
    assert [len(one.tokens) for one in found] == [3, 3]
    _, loops = searched(TableTree(rows), params(2), 1, TableTree(rows), 5)
    assert [(loop.steps, loop.drafted, loop.accepted) for loop in loops] == [(1, 0, 0)]


def test_without_the_containment_check_the_equality_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a walk that goes on with those beams alone that the draft has, too."""

    def reckless(search: BeamSearch, nodes: Sequence[Node], logits: torch.Tensor, depth: int) -> BeamLoop:
        place = {node: index for index, node in enumerate(nodes)}
        steps = 0
        while True:
            search.step(logits[[place[one.node] for one in search.beams]])
            steps += 1
            inside = [one for one in search.beams if one.node in place]
            if search.over or not inside:
                return BeamLoop(steps, min(depth, steps), steps - 1, len(nodes))
            search.beams = inside

    def differing() -> int:
        count = 0
        for seed in range(6):
            rows = random_rows(7, seed, sharpness=2.0)
            draft = TableTree(near(rows, random_rows(7, seed + 100), 0.25))
            plain, _ = searched(TableTree(rows), params(3), 9)
            count += searched(TableTree(rows), params(3), 9, draft, 4)[0] != plain
        return count

    assert differing() == 0
    monkeypatch.setattr(beam, "walk", reckless)
    assert differing() > 0


def test_equal_candidates_keep_the_order_of_beams_and_tokens() -> None:
    beams = [Beam(Node(0), 0.0), Beam(Node(1), 0.0)]
    found = best_candidates(beams, torch.zeros(2, 4), 5)
    assert [(one.parent.token, one.token) for one in found] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    uniform: RowFunction = lambda context: [0.25] * 4  # noqa: E731
    plain, _ = searched(TableTree(uniform), params(2, 4), 5, eos=None)
    again, _ = searched(TableTree(uniform), params(2, 4), 5, TableTree(random_rows(4, 3)), 3, eos=None)
    assert plain == again
    assert [one.tokens for one in plain] == [(0, 0, 0, 0, 0), (0, 0, 0, 0, 1)]


def test_the_least_gap_of_all_choices_is_kept() -> None:
    table = {(): [0.0, 0.5, 0.3, 0.2]}
    rows: RowFunction = lambda context: table.get(context[len(PROMPT) :], [0.0, 0.9, 0.06, 0.04])  # noqa: E731
    search = BeamSearch(Node(PROMPT[-1]), params(2), ends_at(9), 1, 9)
    target = TableTree(rows)
    target.begin(PROMPT)
    search.step(target.score([one.node for one in search.beams]))
    # The third is left out, ln(.3 / .2) after the second.
    assert search.closest == pytest.approx(0.405465, abs=1e-5)
    assert [one.node.token for one in search.beams] == [1, 2]


def ending_late(close: float) -> BeamSearch:
    """Two beams: .4 and .3 finish by EOS, then two more at the limit, worse, and this close to each other."""
    table: dict[tuple[int, ...], list[float]] = {
        (): [0.4, 0.35, 0.25],
        (1,): [0.3 / 0.35, 0.02 / 0.35],
        (2,): [0.0, 0.8, 0.2],
    }
    last = [0.0, 0.04 * math.exp(close), 0.04]

    def rows(context: tuple[int, ...]) -> Sequence[float]:
        row = table.get(context[len(PROMPT) :], last)
        row = [*row, *[0.0] * (3 - len(row))]
        return [*row, *[(1 - sum(row)) / 60] * 60]

    target = TableTree(rows)
    search = BeamSearch(Node(PROMPT[-1]), params(2), ends_at(3), 1, 3)
    target.begin(PROMPT)
    for _ in beam.beam_search(target, search, Stopwatch(FakeClock())):
        pass
    assert search.steps == 3
    assert [one.tokens for one in search.hypotheses] == [(1, 0), (0,)]
    return search


def test_hypotheses_that_are_left_out_together_are_no_choice() -> None:
    """Which of them is better changes nothing; the closest choice was to go on for ln(.2) / 2 > ln(.4)."""
    assert ending_late(1e-5).closest == pytest.approx(math.log(0.2) / 2 - math.log(0.4), abs=1e-6)


@pytest.mark.parametrize(("penalty", "early", "longest"), [(1.0, False, 3), (2.0, "never", 20)])
def test_gaps_of_scores_are_nats_of_the_log_probability(penalty: float, early: object, longest: int) -> None:
    """Whether a beam may still beat an output of 3 tokens: their scores' gap times the smaller divisor."""
    search = BeamSearch(Node(0), params(1, penalty=penalty, early=early), ends_at(20), 1, 20)
    search.steps, search.beams = 2, [Beam(Node(0).child(1).child(1), -1.0)]
    search.step(torch.tensor([[0.9, 0.1]]).log())
    (ended,) = search.hypotheses
    assert ended.log_prob == pytest.approx(-1.0 + math.log(0.9))
    gap = abs((-1.0 + math.log(0.1)) / longest**penalty - ended.score)
    assert search.closest == pytest.approx(min(gap * 3**penalty, math.log(9)), abs=1e-5)


def test_impossible_tokens_are_no_candidates() -> None:
    rows: RowFunction = lambda context: [0.0, 1.0, 0.0, 0.0]  # noqa: E731
    (found,), _ = searched(TableTree(rows), params(3), 4)
    assert found.tokens == (1, 1, 1, 1)
    assert found.log_prob == 0.0


def test_numbers_that_are_none_are_an_error() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        best_candidates([Beam(Node(0), 0.0)], torch.tensor([[0.0, float("nan")]]), 1)


def test_several_tokens_may_end_a_hypothesis() -> None:
    """So many candidates are taken that enough go on: three ends among four tokens leave one."""
    search = BeamSearch(Node(0), params(1), lambda parent, token: "eos" if token < 3 else None, 3, 9)
    search.step(torch.tensor([[3.0, 2.0, 1.0, 0.0]]))
    assert [one.node.token for one in search.beams] == [3]
    assert [one.tokens for one in search.hypotheses] == [(0,)]
