"""Acceptance curves: every K from one reading, intervals that hold at once, and what a mean leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from spsbench.base.arrays import Floats
from spsbench.law.text_loops import anchored
from spsbench.parts.whatif.curve import ReadText, by_category, curve, drawn_alike, scheduled
from spsbench.stats.bootstrap import pooled_ratio, simultaneous_ratios

KS = (1, 2, 3, 5, 8)


def copied(stands: Sequence[bool], prompt: str, category: str = "") -> ReadText:
    """A text whose drafts are point masses: each token of it is the draft's or is not."""
    return read(np.array(stands, np.float64), prompt, category)


def read(chances: Floats, prompt: str, category: str = "") -> ReadText:
    return ReadText(prompt, category, anchored(chances, max(KS)), np.full(len(chances), max(KS)))


def walked(stands: Sequence[bool], k: int) -> int:
    """Loops, by running them."""
    place = found = 0
    while place < len(stands):
        drafted = 0
        while drafted < k and place < len(stands) and stands[place]:
            place, drafted = place + 1, drafted + 1
        place, found = place + 1, found + 1
    return found


def texts(count: int = 12, seed: int = 0) -> list[list[bool]]:
    rng = np.random.default_rng(seed)
    return [(rng.random(rng.integers(20, 60)) < alpha).tolist() for alpha in rng.beta(4, 2, count)]


def test_one_reading_gives_every_k_as_loops_that_are_run() -> None:
    found = texts()
    shown = curve("copies", [copied(one, str(number)) for number, one in enumerate(found)], KS)
    tokens = sum(map(len, found))
    for point in shown.points:
        loops = sum(walked(one, point.k) for one in found)
        assert point.length.estimate == pytest.approx(tokens / loops, abs=1e-12)
        assert 1 + sum(point.rates) == pytest.approx(point.length.estimate, abs=1e-12)
    late = sum(walked([False, *one[:-1]], 8) for one in found)  # the control: read one token late
    assert shown.points[-1].length.estimate != pytest.approx(tokens / late, abs=1e-3)
    lengths = [point.length.estimate for point in shown.points]
    assert lengths == sorted(lengths)


def test_loops_that_are_drawn_alike_are_those_of_every_sequence_of_loops() -> None:
    shares, n = np.array([0.5, 0.2, 0.3]), 5
    by_hand = np.zeros(n + 1)
    for emitted in product((1, 2, 3), repeat=n):
        reached, chance = 0, 1.0
        for loop, each in enumerate(emitted, start=1):
            reached, chance = reached + each, chance * shares[each - 1]
            if reached >= n:
                by_hand[loop] += chance / 3 ** (n - loop)  # as often as the rest may go on
                break
    (found,) = drawn_alike(shares, [n])
    assert np.allclose(found[: n + 1], by_hand, atol=1e-12)
    assert not np.allclose(drawn_alike(scheduled(1.8, 2), [n])[0][: n + 1], by_hand, atol=0.05)


@pytest.mark.parametrize("length", [1.0, 1.3, 2.0, 3.999, 4.0])
def test_a_mean_alone_becomes_the_law_of_least_variance(length: float) -> None:
    law = scheduled(length, 3)
    assert law.sum() == pytest.approx(1.0)
    assert (law >= 0).all()
    assert 1 + law @ np.arange(4) == pytest.approx(length)
    assert np.count_nonzero(law > 1e-12) <= 2


def test_the_mean_alone_loses_the_tail_and_the_distribution_what_differs_between_texts() -> None:
    rng = np.random.default_rng(3)
    uneven = [rng.random(60) < (0.2 if number % 10 == 0 else 0.8) for number in range(60)]
    (point,) = curve("copies", [copied(one, str(n)) for n, one in enumerate(uneven)], [5]).points
    assert point.tail.by_mean[-1] < point.tail.by_rates[-1] < point.tail.true[-1]
    assert point.mean_variance < 0.3 < point.variance
    alike = [rng.random(60) < 0.7 for _ in range(60)]  # the control: all texts alike
    (point,) = curve("copies", [copied(one, str(n)) for n, one in enumerate(alike)], [5]).points
    assert point.tail.by_rates[-1] == pytest.approx(point.tail.true[-1], rel=0.1)


def test_autocorrelation_is_that_of_a_chain_and_none_where_tokens_are_independent() -> None:
    rng = np.random.default_rng(4)
    chain = [rng.random(4_000) < 0.6 for _ in range(2)]
    sticky = []
    for one in chain:
        state, here = [], True
        for drawn in one:
            here = here if rng.random() < 0.5 else bool(drawn)  # keeps its state every other time
            state.append(here)
        sticky.append(state)
    own, plain = (
        curve("copies", [copied(one, str(n)) for n, one in enumerate(each)], [1]).correlation
        for each in (sticky, chain)
    )
    assert own[1] == pytest.approx(0.5, abs=0.05)
    assert own[2] == pytest.approx(0.25, abs=0.05)
    assert abs(plain[1]) < 0.05


def test_categories_have_curves_of_their_own_and_few_prompts_no_interval() -> None:
    own = [copied(one, str(n), "code" if n < 9 else "chat") for n, one in enumerate(texts())]
    every, code, chat = by_category("copies", own, KS)
    assert (every.category, code.category, chat.category) == ("", "code", "chat")
    assert every.prompts == 12
    assert every.tokens == code.tokens + chat.tokens
    assert code.points[0].length.low is not None
    assert code.needed is not None
    assert chat.points[0].length.low is None
    assert chat.needed is None
    assert [each.category for each in by_category("copies", own[:9], KS)] == [""]


def test_a_prompt_that_holds_most_tokens_is_named() -> None:
    own = [copied(one, str(n)) for n, one in enumerate([*texts(8), [True, False] * 300])]
    assert curve("copies", own, [2]).heaviest > 0.5


@pytest.mark.thorough
def test_intervals_hold_at_once_and_those_of_each_k_alone_do_not() -> None:
    rng = np.random.default_rng(5)
    tokens = rng.integers(50, 200, 2_000).astype(np.float64)
    loops = tokens[:, None] / rng.normal(2.5, 0.4, (2_000, 8)).clip(
        1.2
    )  # eight that know nothing of each other
    truth, at_once, alone = tokens.sum() / loops.sum(0), 0, 0
    for _ in range(300):
        drawn = rng.integers(2_000, size=80)
        found = simultaneous_ratios(tokens[drawn], loops[drawn])
        each = [pooled_ratio(tokens[drawn], column) for column in loops[drawn].T]
        at_once += all(one.low <= true <= one.high for one, true in zip(found, truth, strict=True))  # type: ignore[operator]
        alone += all(one.low <= true <= one.high for one, true in zip(each, truth, strict=True))  # type: ignore[operator]
    assert at_once / 300 > 0.91
    assert alone / 300 < 0.80


def test_copies_of_one_prompt_have_no_interval() -> None:
    (found,) = simultaneous_ratios(np.full(10, 20.0), np.full((10, 1), 8.0))
    assert (found.estimate, found.low, found.high) == (2.5, None, None)
