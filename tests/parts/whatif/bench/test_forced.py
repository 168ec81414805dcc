"""Synthetic acceptance: random draws decide what is accepted, the loops are the real ones."""

from __future__ import annotations

import pytest
import torch

from spsbench.base.records import SamplingParams
from spsbench.decode.clock import FakeClock
from spsbench.decode.rejection import Draft
from spsbench.engines.local import EagerEngine, Engine
from spsbench.law.enumeration import TableModel, random_rows
from spsbench.law.theory import expected_tokens
from spsbench.parts.whatif.bench.forced import SyntheticAcceptance, measure_forced
from spsbench.testing import Letters

CPU = torch.device("cpu")


def engine(k: int, alpha: float) -> Engine:
    target, draft = (TableModel(random_rows(4, seed, 5.0), 4) for seed in (1, 2))
    rule = SyntheticAcceptance([alpha]).rule() if k else None
    return EagerEngine(target, draft if k else None, k, Letters("abc"), CPU, FakeClock(0.001), rule)


def test_a_token_is_accepted_if_its_uniform_number_is_below_alpha() -> None:
    q, draft = torch.eye(4).roll(1, 0), Draft(torch.tensor([0, 1, 2]), torch.eye(4)[:3])
    acceptance = SyntheticAcceptance([0.5])
    for u, accepted in (([0.4, 0.4, 0.4], 3), ([0.4, 0.6, 0.1], 1), ([0.6, 0.1, 0.1], 0)):
        verdict = acceptance(q, draft, torch.tensor([*u, 0.5]))
        assert int(verdict.accepted) == accepted
        assert int(verdict.token) == int(q[accepted].argmax())  # the target's row after it


def test_positions_have_their_own_probabilities_and_the_last_one_continues() -> None:
    acceptance = SyntheticAcceptance([0.9, 0.5])
    assert [acceptance.at(i) for i in range(4)] == [0.9, 0.5, 0.5, 0.5]
    assert acceptance.tokens_per_loop(3) == pytest.approx(1 + 0.9 + 0.45 + 0.225)
    assert SyntheticAcceptance([0.8]).tokens_per_loop(4) == pytest.approx(expected_tokens(0.8, 4))


@pytest.mark.thorough_but("0.6")
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_tokens_per_loop_follow_alpha_whatever_the_models_say(alpha: float) -> None:
    engines = {(1, k): engine(k, alpha) for k in (0, 1, 4)}
    found = [*measure_forced(engines, (0, 1), SamplingParams(), tokens=200, rounds=4).values()]
    assert [arm.k for arm in found] == [0, 1, 4]
    assert found[0].speedup is None
    assert found[0].tokens_per_loop == 1
    for arm in found[1:]:
        assert arm.tokens_per_loop == pytest.approx(expected_tokens(alpha, arm.k), rel=0.08)
        assert arm.speedup.ratio == pytest.approx(found[0].ms_per_token / arm.ms_per_token)


def test_rounds_that_others_disturbed_count_neither_as_tokens_nor_as_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spsbench.parts.whatif.bench.turns.least_disturbed", lambda lost: [0, 2])
    plain, sure = measure_forced(
        {(1, k): engine(k, 1.0) for k in (0, 1)}, (0, 1), SamplingParams(), tokens=200, rounds=4
    ).values()
    assert plain.tokens_per_loop == 1
    assert sure.tokens_per_loop == pytest.approx(2, rel=0.01)
