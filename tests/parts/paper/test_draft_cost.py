"""c from generations whose times are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.base.records import Generation, Loop, Request, SamplingParams
from spsbench.parts.paper import alphas
from spsbench.parts.paper.alphas import draft_costs
from spsbench.parts.whatif.replay.texts import TargetText

TEXTS = [TargetText("a", 0, (1, 2), (3,)), TargetText("b", 0, (2,), (3,))]


class Timed:
    """An engine whose loops take what they are told."""

    name = "eager"

    def __init__(self, drafted: int, draft_s: float | None, verify_s: float | None, decode_s: float) -> None:
        self.asked: list[Request] = []
        self._loop = Loop(drafted, 0, 1, 0, 0.0, 0, draft_s, verify_s, 0.1, 0.1, 9.0)
        self._decode_s = decode_s

    def generate(self, request: Request) -> Generation:
        self.asked.append(request)
        return Generation([5] * 4, "", [self._loop] * 2, 0.0, self._decode_s, "length")


def costs(monkeypatch: pytest.MonkeyPatch, engines: dict[str, Timed]) -> dict[str, float]:
    monkeypatch.setattr(alphas, "_engines_by_draft", lambda *given: engines)
    monkeypatch.setattr(alphas, "teacher_force", lambda *given: None)
    model = SimpleNamespace(room_behind=lambda prompt: 64 - len(prompt))
    pairs: Any = {name: SimpleNamespace(target=model, draft=model) for name in engines if name}
    return draft_costs(TEXTS, pairs, SamplingParams(), 0, rounds=3)


def test_on_a_cpu_drafting_in_loops_is_held_against_a_target_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {
        "": Timed(0, 0.0, 0.5, 7.0),
        "small": Timed(4, 0.2, 0.9, 7.0),
        "large": Timed(4, 0.8, 0.9, 7.0),
    }
    found = costs(monkeypatch, engines)
    assert found == pytest.approx({"small": 0.05 / 0.5, "large": 0.2 / 0.5})
    assert all(len(engine.asked) == 4 for engine in engines.values())  # one of them not counted
    for turn in zip(*(engine.asked for engine in engines.values()), strict=True):
        assert len({request.prompt_ids for request in turn}) == 1


def test_where_phases_are_not_seen_whole_sequences_are_held_against_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = {"": Timed(0, None, None, 4.0), "small": Timed(0, None, None, 1.0)}
    assert costs(monkeypatch, engines) == pytest.approx({"small": 0.25})
