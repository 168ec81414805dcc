"""What a run takes of a device is known before anything is loaded: said on a GPU, refused if too much."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commandline import SMALL, call

from spsbench.base.records import Arm, SamplingParams, Spec
from spsbench.engines.buffer import MOST_BYTES, PORTION_BYTES
from spsbench.models import memory
from spsbench.models.memory import Weights
from spsbench.runner import room
from spsbench.runner.room import Room, room_of

GIB = 1 << 30
NUCLEUS = SamplingParams(top_p=0.95)
ARS = Arm("ars", 0, "eager", "nucleus", NUCLEUS)
SPS = Arm("sps", 4, "eager", "nucleus", NUCLEUS)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Config(SimpleNamespace):
    is_encoder_decoder = False
    dtype = torch.bfloat16

    def get_text_config(self) -> Config:
        return self


def source_of(vocab_size: int) -> Any:
    def model(layers: int) -> Any:
        sizes = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128}
        sizes["intermediate_size"] = 12_288
        return SimpleNamespace(config=Config(num_hidden_layers=layers, **sizes), name=f"m{layers}")

    return SimpleNamespace(target=model(36), draft=model(28), vocab_size=vocab_size)


@pytest.fixture(autouse=True)
def on_a_larger_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has what is counted fit, whatever this machine has."""
    monkeypatch.setattr(room, "require_free", lambda *named: None)


def of(
    *arms: Arm,
    slots: int = 4096,
    tokens: int = 1024,
    device: torch.device = GPU,
    weights: Weights = Weights(16_000_000_000, 1_200_000_000),
    vocab_size: int = 151_936,
) -> Room:
    source = source_of(vocab_size)
    models: Any = SimpleNamespace(
        source=source, weights=weights, dtypes=("auto", "auto"), device=device, backend="torch"
    )
    return room_of(models, arms, slots, tokens)


ROW = 151_936 * 4
TARGET, DRAFT = (2 * layers * 8 * 128 * 2 for layers in (36, 28))


def test_weights_and_caches_are_those_of_the_models_that_the_arms_use() -> None:
    columns = 4608  # an eighth more than 4,096, as a cache grows
    alone, both = of(ARS), of(ARS, SPS)
    assert (alone.weights, both.weights) == (17_200_000_000,) * 2, "the draft is loaded for the proof"
    assert alone.caches == columns * TARGET
    assert both.caches == columns * (TARGET + DRAFT)
    lookup = Arm("sps", 4, "eager", "nucleus", NUCLEUS, drafter=Spec("lookup"))
    assert of(ARS, lookup).caches == alone.caches
    itself = of(ARS, SPS, weights=Weights(16_000_000_000, 0))
    assert (itself.weights, itself.caches) == (16_000_000_000, both.caches)


def test_every_row_of_a_batch_has_a_cache_and_so_has_a_fixed_shape() -> None:
    batch = Arm("sps", 4, "eager", "nucleus", NUCLEUS, batch=8)
    assert of(batch).caches == 8 * 4096 * (TARGET + DRAFT)
    assert of(Arm("sps", 4, "graphed", "nucleus", NUCLEUS)).caches == 4096 * (TARGET + DRAFT)
    assert of(batch).sequences == 8
    assert of(batch).forward == 4096 * (6 * 4096 + 3 * 12_288) * 2


def test_rows_are_bounded_whatever_the_length() -> None:
    assert of(SPS, tokens=100_000).rows == MOST_BYTES + 5 * PORTION_BYTES
    assert of(SPS, tokens=100_000, device=CPU).rows == 5 * PORTION_BYTES, "as long as a nucleus"
    assert of(SPS, tokens=8, vocab_size=258).rows < 1 << 20
    graphed = replace(SPS, engine="graphed")
    assert of(graphed, tokens=8).rows == MOST_BYTES + 6 * 8 * ROW, (
        "their place is there, and then they are read"
    )
    assert of(replace(graphed, batch=64), tokens=8).rows == 64 * 9 * ROW + 6 * 8 * ROW, "one loop at least"
    short = of(ARS, tokens=64, device=CPU)
    assert short.rows == 6 * 64 * ROW, "reading again takes more than the loops"


def test_the_line_names_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda device: 79 * GIB + GIB // 10)
    found = Room(int(16.4 * GIB), int(1.1 * GIB), int(0.5 * GIB), int(0.2 * GIB), 1, 4096)
    expected = "needs 18.2 GiB of 79.1 GiB free: "
    expected += "weights 16.4 GiB, caches 1.10 GiB, rows 512 MiB, forward 205 MiB"
    assert str(found.needed(CPU)) == expected
    tiny = Room(3 << 20, 26 << 10, 40 << 20, 1000, 1, 64)
    expected = "needs 43 MiB of 79.1 GiB free: weights 3.0 MiB, caches 26 KiB, rows 40 MiB, forward 1 KiB"
    assert str(tiny.needed(CPU)) == expected
    assert Room(None, 1, 1, 1, 1, 1).needed(CPU) is None, "weights that nobody knows"
    monkeypatch.setattr(room, "available_bytes", lambda device: None)
    assert found.needed(CPU) is None


def test_states_of_a_whole_block_are_counted_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "state_bytes_of", lambda config, dtype: 1 << 20)
    free = [1 << 50]
    monkeypatch.setattr(room, "available_bytes", lambda device: free[0])
    assert of(ARS).states == 3 << 20
    whole = of(SPS)
    assert whole.states == 2 * 3 + 2 * 4 << 20, "both models, before, now and next, and each of K tokens"
    assert str(whole.needed(GPU)).endswith(", states 14 MiB")
    free[0] = whole.total - 1
    assert of(SPS).states == 6 << 20, "then tokens are read again"


@pytest.mark.parametrize(
    ("more", "flag"), [(("--set", "warmup=false"), "--max-new-tokens"), (("--batch", "2"), "--batch")]
)
def test_a_run_that_does_not_fit_is_refused_before_anything_is_loaded(
    more: tuple[str, ...], flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(total: int, *named: Any) -> None:
        monkeypatch.setattr(memory, "available_bytes", lambda device: total - 1)
        memory.require_free(total, *named)

    monkeypatch.setattr(room, "require_free", short)
    monkeypatch.setattr(
        sys.modules["spsbench.runner.models"], "load_pair", lambda *given, **named: pytest.fail("loaded")
    )
    given = ("--limit", 2, "--no-score", "--k", "2", *more, "--out", tmp_path / "run")
    result = call("run", *SMALL, *given)
    assert result.code == 2
    assert result.err.count(f"error: {flag}: the models, the caches of") == 1
    assert "but cpu has" in result.err
    assert not (tmp_path / "run").exists()
