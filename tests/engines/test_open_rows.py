"""What graphs keep of open loops: the ring of their rows, and the numbers that the device takes by itself."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from support.device import CUDA, emulated
from support.fixed_shapes import CPU, PROMPTS, SAMPLED, SLOTS, Bytes, check_same, eager, request
from support.tiny_models import make_pair

from spsbench.base.records import Generation, SamplingParams
from spsbench.decode import sampling
from spsbench.decode.clock import FakeClock
from spsbench.engines import cuda_graph
from spsbench.engines.cuda_graph import Capture, GraphedEngine, Graphs, RowMemory, StagedBatch, uncaptured
from spsbench.engines.derivation import Derivation
from spsbench.engines.local import BatchedEngine
from spsbench.models.batched import StaticLM
from spsbench.models.torch_lm import TorchLM

Models = tuple[TorchLM, TorchLM]
SIZES_AND_KS = pytest.mark.parametrize(("size", "k"), [(1, 0), (1, 4), (3, 0), (3, 4)])


def pair_on(device: torch.device) -> Models:
    target, draft = make_pair("llama", 0.5)
    return TorchLM(target.to(device)), TorchLM(draft.to(device))


@cache
def models() -> Models:
    return pair_on(CPU)


def staged(
    pair: Models,
    k: int,
    size: int = 1,
    capture: Capture = uncaptured,
    memory: RowMemory | None = None,
    law: SamplingParams = SAMPLED,
) -> StagedBatch:
    target, draft = (StaticLM(model, SLOTS, size) for model in pair)
    return StagedBatch(target, draft if k else None, k, law, capture, memory=memory)


def check_against_eager(batch: StagedBatch, k: int, device: torch.device = CPU) -> None:
    """Sequences of all lengths, more than rows; their traces hold every number and its probability."""
    asked = [
        request(length, SAMPLED, seed, fixed_length=seed > 1) for seed, length in enumerate([*PROMPTS, 9])
    ]
    reference = eager(models(), k)
    found = dict(BatchedEngine(batch, Bytes(), device, FakeClock(0.001)).generate_all(asked))
    expected = [reference.generate(each) for each in asked]
    for place, one in enumerate(expected):
        answer = found[place]
        assert isinstance(answer, Generation)
        assert answer.trace
        check_same(answer, one)
    assert max(len(one.loops or ()) for one in expected) > 5


def two_places(monkeypatch: pytest.MonkeyPatch, size: int, k: int) -> None:
    """Room for the rows of two loops; the bytes at which a sequence is flushed stay far away."""
    loop_bytes = size * (2 * k + 1) * models()[0].vocab_size * 4
    monkeypatch.setattr(cuda_graph, "MOST_BYTES", 3 * loop_bytes - 1)


@SIZES_AND_KS
def test_rows_are_flushed_before_their_place_is_taken_again(
    size: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_places(monkeypatch, size, k)
    batch = staged(models(), k, size)
    assert batch.most_open == 2
    check_against_eager(batch, k)
    batch.most_open = math.inf  # the control: what was written over is found out
    with pytest.raises(AssertionError):
        check_against_eager(batch, k)


def test_one_sequence_is_flushed_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    two_places(monkeypatch, 1, 4)
    engine = GraphedEngine(staged(models(), 4), Bytes(), FakeClock(0.001))
    asked = request(9, SAMPLED, fixed_length=True)
    expected = eager(models(), 4).generate(asked)
    assert len(expected.loops or ()) > 4
    check_same(engine.generate(asked), expected)
    engine.most_open = math.inf
    with pytest.raises(AssertionError):
        check_same(engine.generate(asked), expected)


@SIZES_AND_KS
def test_the_device_takes_the_numbers_of_the_host_and_gets_more_in_time(
    size: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of 19 numbers at a time: two loops of 9 each, and some that belong to none."""
    monkeypatch.setattr(sampling, "_BLOCK", 19 if k else 2)
    monkeypatch.setattr(sampling, "_BLOCKS", 2)
    check_against_eager(staged(models(), k, size), k)


@pytest.mark.thorough
@SIZES_AND_KS
def test_as_graphs_on_a_device(size: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    two_places(monkeypatch, size, k)
    monkeypatch.setattr(sampling, "_BLOCK", 19 if k else 2)
    monkeypatch.setattr(sampling, "_BLOCKS", 2)
    with emulated():
        check_against_eager(staged(pair_on(CUDA), k, size, Graphs(CUDA)), k, CUDA)


def test_arms_that_take_turns_share_the_memory_and_leave_what_was_kept() -> None:
    """Of rows that support the whole vocabulary: those of a nucleus are copied anyway."""
    memory, law = RowMemory(), SamplingParams()
    engines = [
        GraphedEngine(
            staged(models(), k, memory=memory, law=law), Bytes(), FakeClock(0.001), derivation=Derivation(k=k)
        )
        for k in (4, 0)
    ]
    assert len({engine.batch._open_rows.data_ptr() for engine in engines}) == 1
    asked = request(9, law, fixed_length=True)
    first = engines[0].generate(asked)
    kept = [rows.dense().clone() for rows in first.kept_rows.target]
    for number, (engine, k) in enumerate(zip(engines, (4, 0), strict=True), start=1):
        asked = request(9, law, number, fixed_length=True)
        check_same(engine.generate(asked), eager(models(), k).generate(asked))
    for rows, before in zip(first.kept_rows.target, kept, strict=True):
        assert torch.equal(rows.dense(), before)
