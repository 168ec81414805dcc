"""The eager engine: both arms end alike, records add up, and what is cut is still counted."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import power_divergence

from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.decode.clock import FakeClock, Phase, Stopwatch
from spsbench.engines.local import EagerEngine
from spsbench.law.enumeration import TableModel, random_rows
from spsbench.testing import Letters

CPU = torch.device("cpu")
LETTERS = Letters("abc")
SIZE = 4


def table(seed: int, sharpness: float = 1.0) -> TableModel:
    return TableModel(random_rows(SIZE, seed, sharpness), SIZE)


def engine(k: int | None, draft_seed: int = 2) -> EagerEngine:
    draft = None if k is None else table(draft_seed)
    return EagerEngine(table(1), draft, k or 0, LETTERS, CPU, FakeClock(0.001))


def request(seed: int = 0, **changes: object) -> Request:
    settings: dict[str, object] = {
        "prompt_ids": (0, 1),
        "max_new_tokens": 6,
        "stop": ("ab",),
        "sampling": SamplingParams(temperature=0.9),
        "seed": seed,
        "trace": True,
    }
    return Request(**(settings | changes))  # type: ignore[arg-type]


def check_consistent(generation: Generation, limit: int) -> None:
    assert generation.loops is not None
    tokens = generation.tokens
    assert sum(loop.emitted for loop in generation.loops) == len(tokens)
    assert 1 <= len(tokens) <= limit
    for loop in generation.loops:
        assert 0 <= loop.accepted <= loop.tested <= loop.drafted
        assert loop.tested - loop.accepted in (0, 1)
        assert 0 <= loop.beta_sum <= loop.tested + 1e-9
        phases = (loop.draft_s, loop.verify_s, loop.sample_s, loop.other_s)
        assert sum(p for p in phases if p is not None) == pytest.approx(loop.loop_s)
    assert all(loop.emitted >= 1 for loop in generation.loops)
    assert all(loop.truncated == 0 for loop in generation.loops[:-1])
    emitted = [t.token_id for t in generation.trace or [] if t.fate != "rejected"]
    assert emitted == tokens
    if generation.finish_reason == "eos":
        assert tokens[-1] in LETTERS.eos_ids
    if generation.finish_reason == "length":
        assert len(tokens) == limit
    assert "ab" not in generation.text


@pytest.mark.parametrize("k", [None, 1, 2, 4, 7])
def test_records_are_consistent_whatever_ends_the_output(k: int | None) -> None:
    reasons = Counter()
    arm = engine(k)
    for seed in range(100):
        generation = arm.generate(request(seed))
        check_consistent(generation, 6)
        reasons[generation.finish_reason] += 1
    assert reasons.keys() == {"eos", "stop", "length"}


TICK_S = 2.0**-10  # sums of it are exact
LAPS = {
    None: {"draft_s": 0, "verify_s": 1, "sample_s": 1, "other_s": 2},
    3: {"draft_s": 1, "verify_s": 1, "sample_s": 1, "other_s": 2},
}
"""Laps of a loop by phase: ``other`` has one before the forwards and one behind the stop rule."""


def looks(k: int | None) -> list[str]:
    """What a clock that moves by a tick at each look tells otherwise than it should, over one output."""
    draft = None if k is None else table(2)
    arm = EagerEngine(table(1), draft, k or 0, LETTERS, CPU, FakeClock(TICK_S))
    generation = arm.generate(request(3, stop=(), fixed_length=True, max_new_tokens=9))
    assert generation.loops is not None
    assert len(generation.loops) >= 3
    wrong = [
        f"{phase} of loop {number}"
        for number, loop in enumerate(generation.loops)
        for phase, laps in LAPS[k].items()
        if getattr(loop, phase) != laps * TICK_S
    ]
    total = sum(loop.loop_s for loop in generation.loops)
    # Before the first lap lies the watch's start, behind the last one the end.
    if generation.decode_s != total + 2 * TICK_S:
        wrong.append("decode")
    if generation.prefill_s != TICK_S:
        wrong.append("prefill")
    return wrong


@pytest.mark.parametrize("k", [None, 3])
def test_every_lap_of_every_loop_is_booked(k: int | None) -> None:
    assert looks(k) == []


@pytest.mark.parametrize("way", ["not taken", "skipped", "taken twice"])
@pytest.mark.parametrize("number", range(15))
@pytest.mark.parametrize("k", [None, 3])
def test_a_single_wrong_lap_is_seen(
    k: int | None, number: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of the first loops' laps: left to the next phase, left out of all, or taken once more."""
    lap, taken = Stopwatch.lap, [0]

    def wrong(self: Stopwatch, phase: Phase) -> None:
        taken[0] += 1
        if taken[0] - 1 != number or way == "taken twice":
            lap(self, phase)
        if taken[0] - 1 == number and way == "skipped":
            self.skip()
        elif taken[0] - 1 == number and way == "taken twice":
            lap(self, phase)

    monkeypatch.setattr(Stopwatch, "lap", wrong)
    assert looks(k) != []


class Slow(TableModel):
    """A table whose forwards take a known time."""

    def __init__(self, clock: FakeClock, seconds: float, seed: int) -> None:
        super().__init__(random_rows(SIZE, seed), SIZE)
        self.clock, self.seconds = clock, seconds

    def score(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        self.clock.advance(self.seconds)
        return super().score(tokens, last)


@pytest.mark.parametrize("k", [None, 1, 4])
def test_the_phases_of_all_loops_are_the_decode_time(k: int | None) -> None:
    """A clock that only forwards move: nothing lies between the loops, to the last digit."""
    clock = FakeClock(0.0)
    draft = None if k is None else Slow(clock, 0.5, 2)
    arm = EagerEngine(Slow(clock, 8.0, 1), draft, k or 0, LETTERS, CPU, clock)
    for seed in range(5):
        generation = arm.generate(request(seed, stop=(), fixed_length=True, max_new_tokens=20))
        assert generation.loops is not None
        for loop in generation.loops:
            phases = (loop.draft_s, loop.verify_s, loop.sample_s, loop.other_s)
            assert phases == (0.5 * (k or 0), 8.0, 0.0, 0.0)
        assert generation.decode_s == sum(loop.loop_s for loop in generation.loops)
        assert generation.decode_s == len(generation.loops) * (8.0 + 0.5 * (k or 0))
        assert generation.prefill_s == 8.0 + (0.0 if k is None else 0.5)


@pytest.mark.parametrize("k", [1, 3])
def test_greedy_sps_is_greedy_ars(k: int) -> None:
    greedy = SamplingParams(greedy=True)
    for prompt in [(0,), (1, 2), (2, 0, 1)]:
        asked = request(prompt_ids=prompt, sampling=greedy)
        plain, speculative = engine(None).generate(asked), engine(k).generate(asked)
        assert plain.tokens == speculative.tokens
        assert plain.finish_reason == speculative.finish_reason
        assert plain.text == speculative.text


def test_fixed_length_ignores_eos_and_stops() -> None:
    for k in (None, 4):
        for seed in range(10):
            generation = engine(k).generate(request(seed, fixed_length=True, max_new_tokens=9))
            assert len(generation.tokens) == 9
            assert generation.finish_reason == "length"


def test_a_draft_behind_an_accepted_eos_is_no_trial() -> None:
    """With the draft equal to the target every token is accepted, so the cut is all that counts."""
    arm = EagerEngine(table(1), table(1), 4, LETTERS, CPU, FakeClock())
    inside = 0
    for seed in range(80):
        generation = arm.generate(request(seed, stop=()))
        last = generation.loops[-1]
        if generation.finish_reason == "eos" and last.emitted <= 4:
            inside += 1
            assert last.drafted == last.accepted == last.tested == last.emitted
            assert last.beta_sum == pytest.approx(last.tested)
        elif generation.finish_reason == "length":
            assert last.drafted == last.accepted == 4
    assert inside > 5


def test_the_same_seed_gives_the_same_output() -> None:
    assert engine(3).generate(request(5)).tokens == engine(3).generate(request(5)).tokens
    outputs = {tuple(engine(3).generate(request(seed)).tokens) for seed in range(20)}
    assert len(outputs) > 4


@pytest.mark.thorough_but("[2]")
@pytest.mark.parametrize("k", [None, 2])
def test_sampled_outputs_follow_the_targets_law(k: int | None) -> None:
    """G-test of the first two tokens over 1,200 draws; false alarm once in 1,000 seeds."""
    draws = 1200
    arm = engine(k)
    plain = {"sampling": SamplingParams(), "fixed_length": True, "max_new_tokens": 2, "trace": False}
    seen = Counter(tuple(arm.generate(request(seed, **plain)).tokens) for seed in range(draws))
    row = random_rows(SIZE, 1)
    first = row((0, 1))
    law = {(a, b): draws * first[a] * row((0, 1, a))[b] for a in range(SIZE) for b in range(SIZE)}
    rare = [pair for pair, expected in law.items() if expected < 5]
    observed = [seen[pair] for pair in law if pair not in rare] + [sum(seen[pair] for pair in rare)]
    expected = [law[pair] for pair in law if pair not in rare] + [sum(law[pair] for pair in rare)]
    assert sum(observed) == draws
    scale = draws / math.fsum(expected)
    result = power_divergence(observed, [e * scale for e in expected], lambda_="log-likelihood")
    assert result.pvalue > 1e-3


class Broken(TableModel):
    """Answers with NaN from some context length on."""

    def score(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        logits = super().score(tokens, last)
        return logits if self.length < 4 else logits.masked_fill(torch.ones_like(logits).bool(), math.nan)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("who", ["target", "draft", "ars"])
def test_logits_that_are_no_numbers_are_an_error(who: str, greedy: bool) -> None:
    broken, sound = Broken(random_rows(SIZE, 1), SIZE), table(2)
    target, draft = (sound, broken) if who == "draft" else (broken, None if who == "ars" else sound)
    failing = EagerEngine(target, draft, 2, LETTERS, CPU, FakeClock(0.001))
    asked = request(stop=(), fixed_length=True, sampling=SamplingParams(greedy=greedy))
    role = "draft" if who == "draft" else "target"
    with pytest.raises(FloatingPointError, match=f"the {role}'s logits are not finite"):
        failing.generate(asked)
