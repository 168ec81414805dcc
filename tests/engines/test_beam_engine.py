"""The engine of beam search: what it answers, what its records mean, where outputs end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.table_tree import EOS, PROMPT, TableTree, near

from spsbench.base.records import BEAM_CLOSEST, BEAM_LOG_PROB, BeamParams, Request, SamplingParams
from spsbench.decode.clock import FakeClock
from spsbench.engines.local import BeamEngine
from spsbench.law.enumeration import random_rows

ROWS = random_rows(7, 1, sharpness=2.0)
DRAFT = near(ROWS, random_rows(7, 101), 0.25)


class Letters:
    """Token 0 is EOS and has no text; the others are a, b, c, ..."""

    eos_ids = frozenset({EOS})

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(96 + token) for token in ids if token != EOS)


def engine(k: int = 0) -> BeamEngine:
    draft = TableTree(DRAFT) if k else None
    return BeamEngine(TableTree(ROWS), draft, k, Letters(), torch.device("cpu"), FakeClock())


def request(**changes: Any) -> Request:
    beam = changes.pop("beam", BeamParams(3, 5))
    fields = {"max_new_tokens": 9, "stop": (), "seed": 0} | changes
    return Request(prompt_ids=PROMPT, sampling=SamplingParams(beam=beam), **fields)


def test_it_answers_with_the_best_hypothesis_and_keeps_all() -> None:
    found = engine().generate(request())
    best = found.hypotheses[0]
    assert found.tokens == list(best.tokens)
    assert found.finish_reason == best.reason
    assert found.text == Letters().decode(best.tokens)
    assert len(found.hypotheses) == 3
    expected = sum(math.log(ROWS((*PROMPT, *best.tokens[:i]))[token]) for i, token in enumerate(best.tokens))
    assert found.losslessness[BEAM_LOG_PROB] == pytest.approx(expected, abs=1e-5)
    assert found.losslessness[BEAM_CLOSEST] > 0
    assert found.trace is None


@pytest.mark.parametrize("k", [1, 3, 5])
def test_speculation_answers_the_same(k: int) -> None:
    plain, found = engine().generate(request()), engine(k).generate(request())
    assert (found.tokens, found.text, found.hypotheses) == (plain.tokens, plain.text, plain.hypotheses)
    assert found.losslessness == plain.losslessness


def test_records_count_steps_of_the_search() -> None:
    plain, found = engine().generate(request()), engine(4).generate(request())
    assert plain.loops is not None
    assert found.loops is not None
    steps = sum(loop.emitted for loop in plain.loops)
    assert sum(loop.emitted for loop in found.loops) == steps == len(plain.loops) >= len(plain.tokens)
    for loop in plain.loops:
        assert (loop.drafted, loop.accepted, loop.tested, loop.beta_sum, loop.emitted) == (0, 0, 0, 0.0, 1)
    assert 1 < len(found.loops) < len(plain.loops)
    for loop in found.loops:
        assert 1 <= loop.emitted <= loop.accepted + 1 <= loop.drafted + 1 <= 5
        assert loop.tested == min(loop.accepted + 1, loop.drafted)
        assert math.isnan(loop.beta_sum) == (loop.drafted > 0)
        assert loop.truncated == 0


def test_times_add_up_to_decoding() -> None:
    found = engine(3).generate(request())
    assert found.loops is not None
    for loop in found.loops:
        phases = (loop.draft_s, loop.verify_s, loop.sample_s, loop.other_s)
        assert sum(phase or 0.0 for phase in phases) == loop.loop_s
    assert found.prefill_s == 1.0  # a tick of the clock for each look at it
    assert found.decode_s == pytest.approx(sum(loop.loop_s for loop in found.loops), abs=2.0)


def test_a_stop_string_ends_a_hypothesis_as_eos_does() -> None:
    for k in (0, 3):
        found = engine(k).generate(request(stop=("b",)))
        assert found.hypotheses is not None
        for one in found.hypotheses:
            stopped = 2 in one.tokens
            assert one.reason == ("stop" if stopped else "eos" if one.tokens[-1] == EOS else "length")
            assert not stopped or one.tokens.index(2) == len(one.tokens) - 1
        assert {one.reason for one in found.hypotheses} & {"stop"}
        assert "b" not in found.text


def test_at_a_fixed_length_nothing_ends_before() -> None:
    for k in (0, 4):
        found = engine(k).generate(request(fixed_length=True, stop=("b",)))
        assert found.hypotheses is not None
        assert [len(one.tokens) for one in found.hypotheses] == [9, 9, 9]
        assert found.finish_reason == "length"


def test_a_request_may_ask_for_one_token() -> None:
    for k in (0, 4):
        found = engine(k).generate(request(max_new_tokens=1))
        assert len(found.tokens) == 1
        assert found.loops is not None
        assert [loop.emitted for loop in found.loops] == [1]


def test_the_next_request_begins_anew() -> None:
    same = engine(3)
    assert same.generate(request()).hypotheses == same.generate(request()).hypotheses
