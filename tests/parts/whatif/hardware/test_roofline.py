"""Predictions for accelerators that are not here: counts, limits, order, and the batch size of break-even."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spsbench.base.paths import mini_dir
from spsbench.base.records import Interval
from spsbench.parts.whatif.hardware.decoder import Decoder, read_decoder
from spsbench.parts.whatif.hardware.roofline import (
    Accelerator,
    Band,
    Corner,
    Figure,
    accelerators,
    fitting,
    speedups,
)

SHAPE = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "tie_word_embeddings"),
)


def decoder(kind: str, *shape: int | bool, **more: Any) -> Decoder:
    return Decoder.model_validate({"model_type": kind} | dict(zip(SHAPE, shape, strict=True)) | more)


LLAMA_8B = decoder("llama", 32, 4096, 14336, 32, 8, 128256, False)
LLAMA_1B = decoder("llama", 16, 2048, 8192, 32, 8, 128256, True)
MODELS = LLAMA_8B, LLAMA_1B
NAMES = st.sampled_from(sorted(accelerators()))
ONE = np.ones(1)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_1B, 1_235_814_400),
        (decoder("llama", 30, 576, 1536, 9, 3, 49152, True), 134_515_008),  # SmolLM2-135M
        (decoder("qwen2", 28, 3584, 18944, 28, 4, 152064, False), 7_615_616_512),  # Qwen2.5-7B
        (decoder("qwen3", 36, 4096, 12288, 32, 8, 151936, False, head_dim=128), 8_190_735_360),  # Qwen3-8B
        (decoder("mistral", 32, 4096, 14336, 32, 8, 32768, False), 7_248_023_552),  # v0.3
        (decoder("phi3", 32, 3072, 8192, 32, 32, 32064, False), 3_821_079_552),  # Phi-3-mini
    ],
)
def test_weights_are_as_many_as_published(model: Decoder, count: int) -> None:
    assert model.parameters == count
    assert LLAMA_8B.cache_bytes == 128 * 1024
    assert LLAMA_8B.read_bytes == LLAMA_8B.weight_bytes - 2 * (128256 * 4096 + 65 * 4096)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_the_embedded_pair_is_counted_as_its_files_have_it(part: str) -> None:
    folder = mini_dir() / part
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    held = sum(int(np.prod(each["shape"])) for name, each in header.items() if name != "__metadata__")
    assert read_decoder(folder, "--target").parameters == held


@given(NAMES, st.integers(1, 8), st.floats(0, 1))
def test_where_reading_is_all_a_draft_costs_what_it_reads(name: str, k: int, share: float) -> None:
    peak = accelerators()[name].peak
    corner = Corner(peak.bandwidth, 1e40, 0.0, 0.0, 2.0, 0.0)
    cost = (LLAMA_1B.read_bytes + 900 * LLAMA_1B.cache_bytes) / (
        LLAMA_8B.read_bytes + 900 * LLAMA_8B.cache_bytes
    )
    length = 1 + share * k
    assert length * corner.gain(MODELS, k, ONE, 900) == pytest.approx(length / (1 + k * cost))


@given(NAMES, st.integers(1, 8), st.integers(1, 4096))
def test_where_computing_is_all_speculation_never_pays(name: str, k: int, batch: int) -> None:
    corner = Corner(1e40, accelerators()[name].peak.flops, 0.0, 0.0, 2.0, 0.0)
    assert (k + 1) * corner.gain(MODELS, k, batch * ONE, 1024) < 1


@given(NAMES, st.integers(1, 8), st.integers(1, 256), st.integers(1, 8192), st.integers(0, 32))
def test_more_work_takes_longer(name: str, k: int, batch: int, context: int, place: int) -> None:
    corner = accelerators()[name].corners()[place]

    def forward(batch: int, tokens: int, context: int) -> float:
        return float(corner.forward_s(LLAMA_8B, batch * ONE, tokens, context)[0])

    least = forward(batch, k, context)
    assert least < min(
        forward(batch + 1, k, context), forward(batch, k + 1, context), forward(batch, k, context + 1)
    )
    assert least > max(LLAMA_8B.read_bytes / corner.bandwidth, batch * k * LLAMA_8B.flops(0) / corner.flops)


@given(NAMES, st.integers(1, 8), st.floats(0.1, 0.9), st.floats(0, 0.09))
def test_the_band_holds_the_estimate_and_grows_with_the_interval(
    name: str, k: int, share: float, half: float
) -> None:
    length = 1 + share * k
    batch = np.array([1.0, 16.0, 512.0])
    known, drawn, longer = (
        speedups(accelerators()[name], MODELS, {k: Interval(*each)}, batch, 512)[k]
        for each in [(length, None, None), (length, length - half, length + half), (length + 0.1, None, None)]
    )
    assert (known.low <= known.estimate).all()
    assert (known.estimate <= known.high).all()
    assert (drawn.low <= known.low).all()
    assert (drawn.high >= known.high).all()
    assert (longer.estimate > known.estimate).all()


def test_break_even_is_the_first_batch_size_below_one() -> None:
    machine, k, context = accelerators()["h100-sxm"], 6, 256
    batch = np.arange(1.0, 1025.0)
    found = speedups(machine, MODELS, {k: Interval(3.1, 2.9, 3.3)}, batch, context)[k].slower_from(batch)

    def gain(place: int, size: float) -> float:
        corner = machine.corners()[place]
        return float(corner.gain(MODELS, k, size * ONE, context)[0])

    ends = range(1, 33)
    by_hand: dict[str, Callable[[float], float]] = {
        "estimate": lambda size: 3.1 * gain(0, size),
        "low": lambda size: 2.9 * min(gain(place, size) for place in ends),
        "high": lambda size: 3.3 * max(gain(place, size) for place in ends),
    }
    for end, told in by_hand.items():
        size = found[end]
        assert size is not None
        assert size > 1
        assert told(size) < 1 <= min(told(each) for each in np.linspace(1, size - 1, 9).round())
    assert found["low"] < found["estimate"] < found["high"]  # type: ignore[operator]
    above = Band(batch + 1, batch + 1, batch + 1)
    assert set(above.slower_from(batch).values()) == {None}


def test_sequences_fit_as_long_as_memory_holds_them() -> None:
    machine, context = accelerators()["l4"], 1024
    most = fitting(machine, MODELS, context)
    weights = sum(each.weight_bytes for each in MODELS)
    cache = context * sum(each.cache_bytes for each in MODELS)
    assert weights + most * cache <= machine.peak.memory < weights + (most + 1) * cache
    assert fitting(machine, (LLAMA_8B, LLAMA_8B), context) == 0


@pytest.mark.parametrize("name", sorted(accelerators()))
def test_every_figure_says_where_it_was_published(name: str) -> None:
    machine = accelerators()[name]
    places = ("https://", "github.com/", "arXiv:")
    assert machine.peak.source.startswith("https://")
    for figure in (machine.bandwidth, machine.compute, machine.floor, machine.engine["host_ms"]):
        sources = [figure.source] if isinstance(figure.source, str) else figure.source
        assert any(place in source for source in sources for place in places), figure
    assert max(machine.bandwidth.high, machine.compute.high) <= 1


def test_what_is_borrowed_has_a_wider_band() -> None:
    own, lent = accelerators()["h100-sxm"], accelerators()["h200-sxm"]
    assert (lent.bandwidth.borrowed, own.bandwidth.borrowed) == ("h100-sxm", "")
    assert lent.bandwidth.low < own.bandwidth.low < own.bandwidth.high < lent.bandwidth.high
    assert lent.bandwidth.typical == own.bandwidth.typical


def test_a_table_that_is_wrong_is_refused() -> None:
    row = accelerators()["a40"].model_dump()
    for figure, change in (("compute", {"low": 0.9}), ("peak", {"source": ""}), ("floor", {"colour": 1})):
        with pytest.raises(ValidationError):
            Accelerator.model_validate(row | {figure: row[figure] | change})
    with pytest.raises(ValidationError, match="not in order"):
        Figure(low=2, typical=1, high=3, source="x")
