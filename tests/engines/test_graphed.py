"""Fixed shapes against the eager engine: the very stages that are graphs on CUDA, run as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
from support.tiny_models import config_of, make, make_pair

from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.decode.algorithms import DecodedLoop, Loops
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.engines.cuda_graph import Capture, GraphedEngine, StagedBatch, uncaptured
from spsbench.engines.local import BatchedEngine
from spsbench.models.batched import FixedLayer, NotStatic, StaticLM, require_same_answers
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM


@cache
def models(architecture: str, late: float = 0.5) -> tuple[CausalLM, CausalLM]:
    target, draft = make_pair(architecture, late)
    return TorchLM(target), TorchLM(draft)


def graphed(
    pair: tuple[CausalLM, CausalLM],
    k: int,
    sampling: SamplingParams,
    slots: int = SLOTS,
    capture: Capture = uncaptured,
) -> GraphedEngine:
    target, draft = (StaticLM(model, slots) for model in pair if isinstance(model, TorchLM))
    batch = StagedBatch(target, draft if k else None, k, sampling, capture)
    return GraphedEngine(batch, Bytes(), FakeClock(0.001))


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize(
    ("architecture", "sampling", "k"),
    [
        *(("llama", sampling, k) for sampling in (GREEDY, SAMPLED, TOP_K) for k in (0, 1, 4)),
        *((name, sampling, 4) for sampling in (GREEDY, SAMPLED) for name in ("qwen2", "gpt2", "gpt_neox")),
    ],
)
def test_tokens_are_the_eager_engines(architecture: str, sampling: SamplingParams, k: int) -> None:
    pair = models(architecture)
    reference, fixed = eager(pair, k), graphed(pair, k, sampling)
    for seed, length in enumerate([*PROMPTS, 2]):  # one engine, prompts of all lengths
        asked = request(length, sampling, seed, fixed_length=seed > 1)
        check_same(fixed.generate(asked), reference.generate(asked))


def test_full_acceptance_and_full_rejection() -> None:
    target, _ = models("llama")
    twin = (target, TorchLM(target.model))
    found = graphed(twin, 4, GREEDY).generate(request(9, GREEDY, fixed_length=True))
    assert all(loop.accepted == loop.drafted == 4 for loop in found.loops[:-1])
    check_same(found, eager(twin, 4).generate(request(9, GREEDY, fixed_length=True)))

    stranger = TorchLM(make(config_of("llama"), seed=5))
    found = graphed((target, stranger), 4, GREEDY).generate(request(9, GREEDY, fixed_length=True))
    assert found.loops is not None
    assert sum(loop.accepted for loop in found.loops) <= 2
    check_same(found, eager((target, stranger), 4).generate(request(9, GREEDY, fixed_length=True)))


def test_eos_inside_a_block() -> None:
    pair = models("llama")
    reference, fixed = eager(pair, 4), graphed(pair, 4, SAMPLED)
    inside = 0
    for seed in range(30):
        asked = request(9, SAMPLED, seed)
        found = fixed.generate(asked)
        check_same(found, reference.generate(asked))
        inside += found.finish_reason == "eos" and found.loops[-1].truncated > 0
    assert inside


@pytest.mark.parametrize("new", [1, 2, 5, 6])
def test_the_last_slot_is_used_and_no_more(new: int) -> None:
    pair, k = models("llama"), 4
    asked = request(9, SAMPLED, max_new_tokens=new, fixed_length=True)
    fixed = graphed(pair, k, SAMPLED, slots=9 + new + k)
    check_same(fixed.generate(asked), eager(pair, k).generate(asked))
    tight = graphed(pair, k, SAMPLED, slots=9 + k - 1)
    with pytest.raises((RuntimeError, IndexError)):
        tight.generate(asked)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_what_is_forgotten_changes_nothing(sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = models("llama")
    asked = request(9, sampling, fixed_length=True)
    fixed = graphed(pair, 4, sampling)
    expected = fixed.generate(asked)
    batch = fixed.batch
    assert batch.draft is not None
    start, poisoned = fixed.start, []

    def then_poison(first: Callable[[int], int], value: float) -> Any:
        def poisoning(request: Request) -> Loops:
            loops = start(request)
            return lambda watch: (poison(decoded) for decoded in loops(watch))

        def poison(decoded: DecodedLoop) -> DecodedLoop:
            length = int(batch.lengths)
            for model, kept in ((batch.target, length - 1), (batch.draft, length - 2)):
                for layer in model.layers:
                    layer.keys[:, :, first(kept) :] = layer.values[:, :, first(kept) :] = value
            poisoned.append(length)
            return decoded

        return poisoning

    monkeypatch.setattr(fixed, "start", then_poison(lambda kept: kept, 1e4))
    check_same(fixed.generate(asked), expected)
    assert len(poisoned) > 3
    # The control: a slot that is still needed does change the output.
    monkeypatch.setattr(fixed, "start", then_poison(lambda kept: kept - 1, 1e4))
    assert fixed.generate(asked).tokens != expected.tokens


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("sampling", [GREEDY, TOP_K])
def test_a_stage_does_the_same_whatever_the_text_and_never_waits(sampling: SamplingParams, k: int) -> None:
    logs: list[list[tuple[Any, ...]]] = []

    def logged(stage: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with Log() as log:
                stage()
            logs.append(log.seen)

        return run

    arm = graphed(models("llama"), k, sampling, capture=logged)
    stages = 3 if k else 1
    for length in (9, LONGEST):
        arm.generate(request(length, sampling, fixed_length=True))
    for number in range(stages):
        same = logs[number::stages]
        assert len(same) > 4
        assert all(log == same[0] for log in same)
        assert not any("_local_scalar_dense" in entry[0] for entry in same[0])


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("k", [0, 1, 4, 7])
def test_lengths_that_cross_the_captured_spans_change_no_token(
    sampling: SamplingParams, size: int, k: int
) -> None:
    """Stages of spans 8, 16, 32, 64 and all slots, a batch's rows in different ones at a time."""
    pair, slots = models("llama"), LONGEST + NEW + k
    reference, spans = eager(pair, k), set[int]()
    target, draft = (
        StaticLM(model, slots, size, least_span=8) for model in pair if isinstance(model, TorchLM)
    )
    batch = StagedBatch(target, draft if k else None, k, sampling, uncaptured)
    assert target.spans == (8, 16, 32, 64) + (slots,) * (slots > 64)
    forward = target._forward

    def seen(*given: Any) -> Any:
        spans.add(given[3])
        return forward(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, "_forward", seen)
        requests = [request(length, sampling, length, fixed_length=True) for length in (*PROMPTS, 9)]
        engine = BatchedEngine(batch, Bytes(), CPU, FakeClock(0.001))
        for place, answer in engine.generate_all(requests):
            assert isinstance(answer, Generation)
            check_same(answer, reference.generate(requests[place]))
    assert {16, 32, 64} <= spans


def test_attention_reads_the_filled_slots_and_a_span_too_short_would_be_found() -> None:
    pair, read = models("llama"), list[int]()
    target, draft = (StaticLM(model, SLOTS, least_span=8) for model in pair if isinstance(model, TorchLM))
    engine = GraphedEngine(StagedBatch(target, draft, 4, SAMPLED, uncaptured), Bytes(), FakeClock(0.001))
    asked = request(9, SAMPLED, fixed_length=True)
    update = FixedLayer.update

    def noted(layer: FixedLayer, *given: Any, **named: Any) -> Any:
        keys, values = update(layer, *given, **named)
        read.append(keys.shape[2])
        assert keys.data_ptr() == layer.keys.data_ptr()
        return keys, values

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FixedLayer, "update", noted)
        found = engine.generate(asked)
    assert set(read) == {8, 16, 32, 64}
    assert read == sorted(read)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, "span_of", lambda length: 8)
        assert engine.generate(asked).tokens != found.tokens


@pytest.mark.parametrize("k", [0, 4])
def test_a_loop_waits_once(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever brings numbers to the host is counted; what is copied up is a prompt, before the loops."""
    arm, reads = graphed(models("llama"), k, SAMPLED), list[str]()
    loops = arm.start(request(9, SAMPLED))(Stopwatch(FakeClock()))
    for name in ("tolist", "item", "__int__", "__bool__", "__float__", "__index__", "numpy", "cpu"):
        usual = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda own, *given, usual=usual, name=name: reads.append(name) or usual(own, *given),
        )
    monkeypatch.setattr(torch, "tensor", lambda *given, **named: pytest.fail("a copy to the device"))
    with torch.inference_mode():
        for _ in range(5):
            next(loops)
    assert reads == ["tolist"] * 5


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gpt_neox", "phi", "olmo2"])
def test_answers_are_compared_before_anything_is_measured(architecture: str) -> None:
    target, _ = models(architecture)
    assert isinstance(target, TorchLM)
    require_same_answers(target, StaticLM(target, SLOTS), SLOTS)


def test_a_wrong_mask_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = models("llama")
    assert isinstance(target, TorchLM)
    static = StaticLM(target, SLOTS)
    model = static._model

    def too_far(**given: Any) -> Any:
        return model(**given | {"attention_mask": given["attention_mask"].roll(1, -1)})

    monkeypatch.setattr(static, "_model", too_far)
    with pytest.raises(NotStatic, match="differ"):
        require_same_answers(target, static, SLOTS)


@pytest.mark.parametrize("architecture", ["mistral", "gemma3", "gpt-neo"])
def test_windows_are_refused(architecture: str) -> None:
    with pytest.raises(NotStatic):
        StaticLM(TorchLM(make(config_of(architecture))), SLOTS)
