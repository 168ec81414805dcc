"""A batch against its sequences alone: same tokens, same loops, whatever else has a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from support.fixed_shapes import (
    CPU,
    GREEDY,
    LONGEST,
    NEW,
    PROMPTS,
    SAMPLED,
    SLOTS,
    TOP_K,
    Bytes,
    Log,
    check_same,
    eager,
    request,
)
from support.tiny_models import make_pair, over_onnx
from support.virtual_device import VirtualDevice

from spsbench.base.records import Generation, Request, SamplingParams, Spec
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.batch import BatchArS, BatchRow, BatchSpS, DecodingBatch, ModelBatchDrafter, RowDrafters
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rejection import Draft, accept_draft, accept_drafts
from spsbench.decode.rows import TensorRows
from spsbench.decode.sampling import draw
from spsbench.drafters.lookup import LookupDrafter
from spsbench.drafters.registry import build_rule
from spsbench.engines import local
from spsbench.engines.cuda_graph import Capture, StagedBatch, uncaptured
from spsbench.engines.local import BatchedEngine, EagerEngine
from spsbench.models.batched import StaticLM, batch_model
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM
from spsbench.runner.engines import answers

Pair = tuple[CausalLM, CausalLM]
BACKENDS: dict[str, Callable[[Any], CausalLM]] = {"torch": TorchLM, "onnxruntime": over_onnx}


@cache
def pair_over(backend: str) -> Pair:
    target, draft = make_pair("llama", 0.5, hidden_size=64)
    return BACKENDS[backend](target), BACKENDS[backend](draft)


def engine_of(batch: DecodingBatch, **given: Any) -> BatchedEngine:
    return BatchedEngine(batch, Bytes(), CPU, FakeClock(0.001), **given)


def hosted(pair: Pair, k: int, sampling: SamplingParams, size: int) -> BatchedEngine:
    target, draft = (batch_model(model, size, SLOTS, blocks=True) for model in pair)
    if not k:
        return engine_of(BatchArS(target, sampling))
    return engine_of(BatchSpS(target, sampling, ModelBatchDrafter(draft, sampling), k))


def staged(
    pair: Pair, k: int, sampling: SamplingParams, size: int, capture: Capture = uncaptured
) -> BatchedEngine:
    target, draft = (StaticLM(model, SLOTS, size) for model in pair if isinstance(model, TorchLM))
    return engine_of(StagedBatch(target, draft if k else None, k, sampling, capture))


def in_order(engine: BatchedEngine, requests: list[Request]) -> list[Generation]:
    found = dict(answers(engine, requests))
    return [one for place in range(len(requests)) if isinstance(one := found[place], Generation)]


def check_all(batch: BatchedEngine, alone: EagerEngine, sampling: SamplingParams) -> None:
    requests = asked(sampling)
    for one, each in zip(in_order(batch, requests), requests, strict=True):
        check_same(one, alone.generate(each))


def asked(sampling: SamplingParams) -> list[Request]:
    """More than rows, of all lengths; some end early by EOS, so that rows are refilled at different times."""
    lengths = [*PROMPTS, 9, 2, 9, LONGEST, 1]
    return [request(length, sampling, seed, max_new_tokens=NEW - seed) for seed, length in enumerate(lengths)]


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, TOP_K])
@pytest.mark.parametrize(
    "make", [partial(hosted, pair_over("onnxruntime")), partial(staged, pair_over("torch"))]
)
def test_every_row_is_what_it_is_alone(make: Any, sampling: SamplingParams, k: int) -> None:
    pair = make.args[0]
    alone = eager(pair, k)
    for one, request_ in zip(in_order(make(k, sampling, 4), asked(sampling)), asked(sampling), strict=True):
        check_same(one, alone.generate(request_))


def test_over_torch_on_a_cpu_too() -> None:
    pair = pair_over("torch")
    for one, request_ in zip(
        in_order(hosted(pair, 3, SAMPLED, 3), asked(SAMPLED)), asked(SAMPLED), strict=True
    ):
        check_same(one, eager(pair, 3).generate(request_))


def test_a_batch_of_other_neighbours_changes_no_token() -> None:
    engine = hosted(pair_over("onnxruntime"), 4, SAMPLED, 4)
    every = in_order(engine, asked(SAMPLED))
    for first in (1, 4):
        for one, other in zip(in_order(engine, asked(SAMPLED)[first:]), every[first:], strict=True):
            assert one.tokens == other.tokens


def test_a_drafter_of_each_row_and_another_rule() -> None:
    target, _ = pair_over("onnxruntime")
    rule, make = build_rule(Spec("sample-and-compare")), partial(LookupDrafter, 3, 1)
    batch = BatchSpS(batch_model(target, 4, SLOTS, blocks=True), SAMPLED, RowDrafters(make), 4, rule.accept)
    alone = EagerEngine(target, None, 4, Bytes(), CPU, FakeClock(0.001), rule, lambda sampling: make())
    check_all(engine_of(batch, rule=rule), alone, SAMPLED)
    assert any(loop.drafted for one in in_order(engine_of(batch), asked(SAMPLED)) for loop in one.loops or ())


def test_rows_that_looked_at_their_neighbours_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: tokens differ as soon as a row has another row's logits."""
    engine = hosted(pair_over("onnxruntime"), 4, SAMPLED, 4)
    expected = in_order(engine, asked(SAMPLED))
    target = engine._batch.target
    score = target.score
    monkeypatch.setattr(target, "score", lambda *given, **named: score(*given, **named).roll(1, 0))
    found = in_order(engine, asked(SAMPLED))
    assert [one.tokens for one in found] != [one.tokens for one in expected]


@pytest.mark.parametrize("k", [0, 3])
def test_seconds_are_shared_by_rows_and_latency_is_not(k: int) -> None:
    """Each look at the clock takes a tick, so that a loop takes as many as it has phases and ends."""
    engine = hosted(pair_over("onnxruntime"), k, GREEDY, 4)
    found = in_order(engine, [request(9, GREEDY, seed, fixed_length=True) for seed in range(4)])
    for one in found:
        assert one.loops is not None
        assert one.decode_s == pytest.approx(sum(loop.loop_s for loop in one.loops))
        assert one.latency_s is not None
    together = 4 * sum(loop.loop_s for loop in found[0].loops or ())
    last = found[3]
    assert last.latency_s == pytest.approx(4 * last.decode_s)
    assert found[0].latency_s == pytest.approx(together + sum(one.prefill_s for one in found[1:]))


class _Failing(BatchArS):
    """A batch whose n-th loop fails as a device does that has no memory left."""

    def __init__(self, *given: Any, at: int) -> None:
        super().__init__(*given)
        self.left = at

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        self.left -= 1
        if not self.left:
            raise MemoryError("no memory is left")
        return super().loop(watch)


def test_after_a_failure_what_was_done_stays_and_the_next_wave_begins_anew() -> None:
    target = batch_model(pair_over("onnxruntime")[0], 2, SLOTS, blocks=False)
    engine = engine_of(_Failing(target, GREEDY, at=4))
    requests = [request(9, GREEDY, n, max_new_tokens=3 * n + 2, fixed_length=True) for n in range(3)]
    found = dict(answers(engine, requests))
    assert isinstance(found[0], Generation)
    assert all(isinstance(found[place], MemoryError) for place in (1, 2))
    assert [len(one.tokens) for one in in_order(engine, requests)] == [2, 5, 8]


class _Refusing(BatchArS):
    """A batch whose models fail at the third prompt."""

    reads = 0

    def _read(self, number: int, row: BatchRow) -> None:
        self.reads += 1
        if self.reads == 3:
            raise RuntimeError("no room")
        super()._read(number, row)


def test_a_prompt_that_cannot_be_read_leaves_no_row_behind() -> None:
    engine = engine_of(_Refusing(batch_model(pair_over("onnxruntime")[0], 3, SLOTS, blocks=False), GREEDY))
    requests = [request(9, GREEDY, n, fixed_length=True) for n in range(3)]
    assert all(isinstance(answer, RuntimeError) for _, answer in answers(engine, requests))
    assert [len(one.tokens) for one in in_order(engine, requests[:1])] == [NEW]


def test_a_row_with_nan_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = batch_model(pair_over("onnxruntime")[0], 2, SLOTS, blocks=False)
    score = target.score

    def spoiled(*given: Any, **named: Any) -> torch.Tensor:
        logits = score(*given, **named)
        logits[1] = torch.nan
        return logits

    monkeypatch.setattr(target, "score", spoiled)
    requests = [request(9, SAMPLED, seed, fixed_length=True) for seed in range(2)]
    found = dict(answers(engine_of(BatchArS(target, SAMPLED)), requests))
    assert isinstance(found[0], Generation)
    assert isinstance(found[1], FloatingPointError)


@pytest.mark.thorough_but("0-sampling0")
@pytest.mark.parametrize("sampling", [GREEDY, TOP_K])
@pytest.mark.parametrize("k", [0, 4])
def test_a_stage_of_a_batch_does_the_same_whatever_the_texts_and_never_waits(
    sampling: SamplingParams, k: int
) -> None:
    logs: list[list[tuple[Any, ...]]] = []

    def logged(stage: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with Log() as log:
                stage()
            logs.append(log.seen)

        return run

    in_order(staged(pair_over("torch"), k, sampling, 3, logged), asked(sampling))
    stages = 3 if k else 1
    for number in range(stages):
        same = logs[number::stages]
        assert len(same) > 4
        assert all(log == same[0] for log in same)
        assert not any("_local_scalar_dense" in entry[0] for entry in same[0])


def test_drafts_are_judged_as_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    size, k, width = 64, 3, 7
    q, p = (
        torch.randn(size, rows, width, generator=generator, dtype=torch.float64).softmax(-1)
        for rows in (k + 1, k)
    )
    u = torch.rand(size, 2 * k + 1, generator=generator, dtype=torch.float64)
    tokens = draw(p, u[:, :k])
    found = accept_drafts(q, tokens, p, u[:, k:])
    for row in range(size):
        one = accept_draft(q[row], Draft(tokens[row], p[row]), u[row, k:])
        assert (int(one.accepted), int(one.token)) == (int(found.accepted[row]), int(found.token[row]))
    assert len(set(found.accepted.tolist())) == k + 1


class _OnDevice(DecodingBatch):
    """B rows on an asynchronous device, to which a forward is one shape and a draw is of the live rows."""

    def __init__(self, device: VirtualDevice, size: int) -> None:
        self.device, self.size, self.sampling, self.live = device, size, SAMPLED, {}

    def _read(self, number: int, row: BatchRow) -> None:
        self.device.launch(2e-3)

    def loop(self, watch: Stopwatch) -> dict[int, DecodedLoop]:
        self.device.compute(1e-5 * len(self.live))
        watch.lap("other")
        self.device.launch(4e-3)
        watch.lap("draft")
        self.device.launch(1e-2)
        watch.lap("verify")
        self.device.launch(5e-5 * len(self.live))
        self.device.wait()
        watch.lap("sample")
        q = TensorRows(torch.full((1, 4), 0.25))
        return {row: DecodedLoop([1], 0, q, None, torch.zeros(1)) for row in self.live}


@pytest.mark.parametrize(("make", "alike"), [(VirtualDevice.stopwatch, True), (Stopwatch, False)])
def test_the_last_rows_of_a_wave_cost_on_a_device_what_the_first_do(
    make: Callable[[VirtualDevice], Stopwatch], alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: by the host's clock alone the wait falls into what is shared by the live rows."""
    device = VirtualDevice()
    monkeypatch.setattr(local, "stopwatch_of", lambda _, clock: make(device))
    engine = BatchedEngine(_OnDevice(device, 4), Bytes(), CPU, device)
    lengths = [8, 8, 8, 48]
    requests = [request(9, SAMPLED, max_new_tokens=n, fixed_length=True) for n in lengths]
    first, *_, last = [one.decode_s / len(one.tokens) for one in in_order(engine, requests)]
    assert (last / first < 1.01) == alike
    if alike:
        assert first == pytest.approx((4e-3 + 1e-2) / 4 + 6e-5, rel=0.01)
        assert device.waits == 48  # one a loop, and none at the end: the device has done all
    else:
        assert last / first > 2
