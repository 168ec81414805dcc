"""Rows are let go of before they fill the memory, and nobody can tell but the clock, which stood."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.decode.clock import FakeClock
from spsbench.decode.rows import Rows
from spsbench.engines import buffer, local
from spsbench.engines.buffer import LoopBuffer
from spsbench.engines.local import EagerEngine
from spsbench.law.enumeration import TableModel, random_rows
from spsbench.testing import Letters

SIZE = 4
ROW_BYTES = SIZE * 8
TICK_S = 0.001


def generate(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, k: int
) -> tuple[Generation, FakeClock, list[int]]:
    """A sequence of 40 tokens; settling takes 1,000 s; (generation, clock, loops settled each time)."""
    clock, settled = FakeClock(TICK_S), []

    class Slow(LoopBuffer):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, most_bytes=most_bytes)

        def flush(self) -> None:
            clock.advance(1000.0)
            before = len(self.records)
            super().flush()
            settled.append(len(self.records) - before)

    monkeypatch.setattr(local, "LoopBuffer", Slow)
    target, draft = (TableModel(random_rows(SIZE, seed), SIZE) for seed in (1, 2))
    engine = EagerEngine(target, draft if k else None, k, Letters("abc"), torch.device("cpu"), clock)
    request = Request((0, 1), 40, (), SamplingParams(), seed=7, fixed_length=True, trace=True)
    return engine.generate(request), clock, settled


@pytest.mark.parametrize("k", [0, 3])
def test_settling_midway_changes_nothing_that_is_recorded(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    whole, _, once = generate(monkeypatch, 1 << 30, k)
    bounded, clock, often = generate(monkeypatch, 10 * ROW_BYTES, k)
    assert len(once) == 1 < 3 < len(often)
    assert whole.loops is not None
    assert bounded.loops is not None
    assert sum(often) == len(bounded.loops)
    assert (bounded.tokens, bounded.text, bounded.trace) == (whole.tokens, whole.text, whole.trace)
    counts = [
        [(loop.drafted, loop.accepted, loop.emitted, loop.beta_sum) for loop in generation.loops or []]
        for generation in (whole, bounded)
    ]
    assert counts[0] == counts[1]
    assert clock.now() > 3000


@pytest.mark.parametrize("k", [0, 3])
def test_the_clock_stands_while_rows_are_settled(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    generation, _, often = generate(monkeypatch, 10 * ROW_BYTES, k)
    assert len(often) > 3
    assert generation.loops is not None
    for loop in generation.loops:
        phases = (loop.draft_s, loop.verify_s, loop.sample_s, loop.other_s)
        assert sum(phase or 0.0 for phase in phases) == pytest.approx(loop.loop_s)
    total = sum(loop.loop_s for loop in generation.loops)
    assert total <= generation.decode_s + 1e-9
    assert generation.decode_s <= total + 3 * TICK_S


def test_settled_rows_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    rows: list[weakref.ref[Rows]] = []

    class Watching(LoopBuffer):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, most_bytes=10 * ROW_BYTES)

        def add(self, loop: Any) -> None:
            rows.append(weakref.ref(loop.decoded.target_rows))
            super().add(loop)
            alive.append(sum(row() is not None for row in rows))

    monkeypatch.setattr(local, "LoopBuffer", Watching)
    target = TableModel(random_rows(SIZE, 1), SIZE)
    engine = EagerEngine(target, None, 0, Letters("abc"), torch.device("cpu"), FakeClock())
    engine.generate(Request((0, 1), 60, (), SamplingParams(), seed=7, fixed_length=True))
    assert len(alive) == 60
    assert max(alive) <= 12


def test_rows_that_take_little_are_made_into_tensors_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    size, portions = 2000, []
    weigh = buffer.own_evidence

    def noted(loops: Any, *rest: Any) -> Any:
        portions.append(len(loops))
        return weigh(loops, *rest)

    def row(context: tuple[int, ...]) -> list[float]:
        likely = context[-1] % 7
        return [0.3 if likely <= token < likely + 3 else 0.1 / size for token in range(size)]

    class Small(LoopBuffer):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, most_bytes=3 * size * 8)

    monkeypatch.setattr(buffer, "own_evidence", noted)
    monkeypatch.setattr(local, "LoopBuffer", Small)
    target = TableModel(row, size)
    engine = EagerEngine(target, None, 0, Letters("abc"), torch.device("cpu"), FakeClock())
    request = Request((0, 1), 20, (), SamplingParams(top_p=0.8), seed=7, fixed_length=True, trace=True)
    generation = engine.generate(request)
    assert portions == [4, 4, 4, 4, 4]
    assert len(generation.loops or ()) == 20
    assert [token.token_id for token in generation.trace or ()] == generation.tokens
    assert [token.position for token in generation.trace or ()] == list(range(20))
