"""What timing asks of the parts that it times."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.rejection import Draft
from spsbench.parts.whatif.replay import steps
from spsbench.parts.whatif.replay.texts import TargetText


class Drafting:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: set[tuple[int, int]] = set()

    def begin(self, prompt: Sequence[int]) -> None: ...

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        self.asked.add((k, len(u)))
        return Draft(torch.zeros(0, dtype=torch.int64), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None: ...


class Target:
    length = 0

    def begin(self, ids: Sequence[int]) -> None: ...

    def score(self, tokens: Tensor, last: int) -> None: ...

    def rollback(self, length: int) -> None: ...

    def room_behind(self, prompt: Sequence[int]) -> int:
        return 64


def test_a_drafter_gets_as_many_numbers_as_it_drafts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of ONNX Runtime has memory for K numbers and no more."""
    monkeypatch.setattr(steps, "_verifying", lambda *given: (dict.fromkeys(given[3], 0.0), {}))
    drafter, target = Drafting(), Target()
    pair = SimpleNamespace(target=target, draft=target, device=torch.device("cpu"))
    reader: Any = SimpleNamespace(
        pair=pair, target=target, states=None, sampling=SamplingParams(), drafters={Spec("model"): drafter}
    )
    steps.time_round({"": reader}, [TargetText("a", 0, (1, 2), (3,) * 30)], (1, 8), seed=0)
    assert drafter.asked == {(1, 1), (8, 8)}


class _Rereading(Target):
    """Takes a tenth of a second of the clock for each token that it reads again."""

    rolled_back_by = "replay"

    def __init__(self) -> None:
        self.now = 0.0

    def begin(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids[-1:])

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self.now += 1.0
        logits = torch.full((last, 4), -1e9)
        logits[:, 3] = 0.0  # the text's token: all drafts are accepted
        return logits

    def rollback(self, length: int) -> None:
        self.now += 0.1


def test_what_a_loop_reads_again_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    target = _Rereading()
    monkeypatch.setattr(steps, "device_now", lambda device: target.now)
    monkeypatch.setattr(steps, "SystemClock", lambda: SimpleNamespace(now=lambda: target.now))
    pair = SimpleNamespace(target=target, draft=target, device=torch.device("cpu"))
    reader: Any = SimpleNamespace(
        pair=pair, target=target, states=None, sampling=SamplingParams(), drafters={Spec("model"): Drafting()}
    )
    timed = steps.time_round({"": reader}, [TargetText("a", 0, (1, 2), (3,) * 30)], (1, 2), seed=0)
    assert timed.verifying == pytest.approx([1.0, 1.1, 1.1])
    found = steps.StepTimes([timed], (1, 2)).of_chain([], np.array([[0.0, 0.0, 1.0]]), 2)
    assert found.seconds == pytest.approx([1.1])
    assert found.states_kept.seconds == pytest.approx([1.0])
