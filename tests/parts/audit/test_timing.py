"""Whatever an engine leaves out of an arm's time, books twice or in another phase is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spsbench.base.records import Spec
from spsbench.decode import algorithms
from spsbench.decode.clock import Phase, Stopwatch
from spsbench.drafters.lookup import LookupDrafter
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import build_rule
from spsbench.parts.verify.controls import planted_everywhere
from spsbench.parts.verify.parts import booked_time, differences, timed
from spsbench.testing import Letters

LETTERS = Letters("abc")


def test_the_engine_books_every_second() -> None:
    found = booked_time(4, LETTERS)
    assert found.passed, found.found


@pytest.mark.parametrize("rule", ["modified-rejection", "sample-and-compare"])
def test_any_drafters_time_is_booked(rule: str) -> None:
    """A copy drafts fewer than K tokens, or none; its time is a draft's all the same."""
    accept = build_rule(Spec(rule))
    assert booked_time(4, LETTERS, lambda: LookupDrafter(2, 1), accept).passed
    with planted_everywhere("untimed-draft"):
        assert not booked_time(4, LETTERS, lambda: LookupDrafter(2, 1), accept).passed


def test_the_untimed_first_draft_is_seen() -> None:
    with planted_everywhere("untimed-draft"):
        found = booked_time(4, LETTERS)
        assert list(differences(timed(0, LETTERS), 0)) == []  # ArS has no draft
    assert not found.passed
    assert found.found.startswith("SpS, loop 0: draft_s 0 where 16")
    assert booked_time(4, LETTERS).passed


@pytest.mark.parametrize("loop", [0, 1, 3])
def test_any_loop_whose_draft_is_left_out_is_seen(loop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lap, drafts = Stopwatch.lap, [0]

    def wrong(self: Stopwatch, phase: Phase) -> None:
        drafts[0] += phase == "draft"
        if phase == "draft" and drafts[0] == loop + 1:
            self.skip()
        else:
            lap(self, phase)

    monkeypatch.setattr(Stopwatch, "lap", wrong)
    assert f"SpS, loop {loop}: draft_s" in booked_time(4, LETTERS).found


def _started_late(decode: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """The watch starts anew behind the first loop."""

    def loops(*args: Any) -> Iterator[Any]:
        for number, loop in enumerate(decode(*args)):
            if number == 0:
                (watch,) = (each for each in args if isinstance(each, Stopwatch))
                watch.start()
            yield loop

    return loops


@pytest.mark.parametrize("arm", ["ars", "sps"])
def test_a_watch_that_starts_late_is_seen(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, arm, _started_late(getattr(algorithms, arm)))
    assert not booked_time(4, LETTERS).passed


def test_a_forward_outside_of_the_loops_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draft forward too many at each prefill: it would be read for free."""
    prefill = ModelDrafter.begin

    def twice(self: ModelDrafter, tokens: Any) -> None:
        prefill(self, tokens)
        prefill(self, tokens)

    monkeypatch.setattr(ModelDrafter, "begin", twice)
    assert "prefill" in booked_time(4, LETTERS).found
