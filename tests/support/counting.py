"""Launches and waits of a loop on the emulated device, and bytes of the proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import transformers
from support.device import CUDA, Counts, Device

from spsbench.base.records import Arm, Generation, Prompt, Request
from spsbench.engines.buffer import MOST_BYTES, LoopBuffer
from spsbench.engines.derivation import KeptRows
from spsbench.engines.local import BatchedEngine
from spsbench.models.pair import Pair
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.bench.forced import NullDecoder
from spsbench.runner.engines import EngineFactory
from spsbench.runner.proof import read_again

PREFILL, LOOP, RECORD, BESIDE = "prefill", "loop", "record", "beside"
"""Steps: reading the prompt, the loops, records after their clock has stopped, the engine around them."""


@dataclass(frozen=True)
class Counted:
    """Answers of an engine, and what the device did for them by step.

    Attributes:
        loops: of the longest answer; those of a batch are made together.
    """

    generations: tuple[Generation, ...]
    counts: Counts

    @property
    def loops(self) -> int:
        return max(len(generation.loops or ()) for generation in self.generations)

    @property
    def launches(self) -> float:
        """A loop's, within its clock."""
        return self.counts.launched(LOOP) / self.loops

    def table(self) -> str:
        """Launches and waits a loop, by site, without records."""
        return self.counts.table(self.loops, without=(PREFILL, RECORD))


def counted(device: Device, engine: Any, *requests: Request) -> Counted:
    """Run one request on an engine of ours, or as many as a batched one has rows."""
    before, device.counts = device.counts, Counts()
    with ExitStack() as stack:

        def replace(owner: Any, name: str, step: str) -> None:
            labelled = _labelled(device, getattr(owner, name), step)
            stack.enter_context(mock.patch.object(owner, name, labelled))

        replace(LoopBuffer, "flush", RECORD)
        if isinstance(engine, BatchedEngine):
            replace(engine, "_fill_free_rows", PREFILL)
            replace(engine._batch, "loop", LOOP)
        else:
            replace(engine, "start", PREFILL)
            stack.enter_context(mock.patch.object(engine, "start", _with_loops(device, engine.start)))
        stack.enter_context(device.step(BESIDE))
        try:
            if isinstance(engine, BatchedEngine):
                assert len(requests) == engine.size, "else a loop is not that of a full batch"
                made = [generation for _, generation in engine.generate_all(requests)]
            else:
                made = [engine.generate(request) for request in requests]
            assert all(isinstance(generation, Generation) for generation in made), made
            return Counted(tuple(made), device.counts)
        finally:
            device.counts = before


def _labelled(device: Device, function: Callable[..., Any], step: str) -> Callable[..., Any]:
    def labelled(*args: Any, **named: Any) -> Any:
        with device.step(step):
            return function(*args, **named)

    return labelled


def _with_loops(device: Device, start: Callable[..., Any]) -> Callable[..., Any]:
    def starting(request: Request) -> Callable[..., Iterator[Any]]:
        loops = start(request)

        def running(watch: Any) -> Iterator[Any]:
            going = loops(watch)
            while True:
                with device.step(LOOP):
                    loop = next(going)
                yield loop

        return running

    return starting


def qwen3(layers: int, vocab_size: int, dtype: torch.dtype, seed: int = 0) -> TorchLM:
    """A random model of Qwen3's form and narrow: launches depend on layers and rows, not on widths."""
    config = transformers.Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return TorchLM(model.to(CUDA).eval(), vocab_size)


def engine_of(arm: Arm, slots: int, layers: tuple[int, int], vocab_size: int, dtype: torch.dtype) -> Any:
    """The engine that a run would take for an arm, over a pair of ``qwen3``; it must not have fallen back."""
    return engine_over(pair_of(layers, vocab_size, dtype), arm, slots)


def pair_of(layers: tuple[int, int], vocab_size: int, dtype: torch.dtype) -> Pair:
    """A pair of ``qwen3``, the target of the first number of layers."""
    target, draft = (qwen3(count, vocab_size, dtype, seed) for seed, count in enumerate(layers))
    return Pair(target, draft, NullDecoder(), CUDA, {"threads": 1})  # type: ignore[arg-type]


def engine_over(pair: Pair, arm: Arm, slots: int) -> Any:
    """The engine that a run would take for an arm; it must not have fallen back."""
    factory = EngineFactory(pair, slots)
    engine = factory.all([arm])[arm]
    assert not factory.fallbacks, factory.fallbacks
    return engine


@dataclass(frozen=True)
class Peaks:
    """Bytes of the device beside weights and caches: at most while loops became records, while the text was
    read again, and what was left afterwards."""

    generation: Generation
    records: int
    proof: int
    left: int


def peaks_of_proof(pair: Pair, arm: Arm, request: Request, times: int = 1) -> Peaks:
    """Answer one request with the engine that a run would take, and read the answer again, so many times
    after itself.

    It asks torch for the device's bytes, so that it is the same on a real device.
    """
    engine = engine_over(pair, arm, len(request.prompt_ids) + request.max_new_tokens + arm.k + 1)
    records = list[int]()
    real = LoopBuffer.flush

    def flush(buffer: LoopBuffer) -> None:
        held = _from_here(pair.device)
        real(buffer)
        records.append(torch.cuda.max_memory_allocated(pair.device) - held)

    with mock.patch.object(LoopBuffer, "flush", flush):
        generation = engine.generate(request)
    assert isinstance(generation, Generation), generation
    generation = _repeated(generation, times)
    held = _from_here(pair.device)
    read_again(arm, Prompt("0", "", request.prompt_ids, ""), generation, request.seed, pair)
    peak = torch.cuda.max_memory_allocated(pair.device) - held
    left = torch.cuda.memory_allocated(pair.device) - held
    return Peaks(generation, max(records), peak, left)


def _repeated(generation: Generation, times: int) -> Generation:
    """A text so many times after itself, with the rows that are kept of so many loops."""
    assert generation.loops is not None
    assert generation.proposed is not None
    assert generation.kept_rows is not None
    assert generation.kept_rows.every == 1, "all rows are there"
    kept = KeptRows(MOST_BYTES)
    for _ in range(times):
        for target, draft in zip(generation.kept_rows.target, generation.kept_rows.draft, strict=True):
            assert target is not None
            kept.keep(target, draft)
    texts = {"tokens": generation.tokens * times, "proposed": generation.proposed * times}
    return replace(generation, **texts, loops=generation.loops * times, kept_rows=kept)


def _from_here(device: torch.device) -> int:
    """Bytes that are held, of which the peak is taken from now on."""
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))
