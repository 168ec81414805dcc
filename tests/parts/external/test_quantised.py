"""Quantised weights: what is written is what is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file

from spsbench.base.errors import UsageError
from spsbench.parts.external.conversion import write_gguf
from spsbench.parts.external.quantised import block_type, kinds_of, q4_k, unpacked, write_float32
from spsbench.parts.external.registry import PeerKind

MODEL = Path(__file__).parents[3] / "spsbench/mini/draft"


def test_blocks_of_q4_k_are_near_what_they_store() -> None:
    """Every weight within a step and what 6 bits round of scale and minimum."""
    array = np.random.default_rng(0).normal(size=(3, 512)).astype(np.float32)
    array[0, :256] = 0
    array[1] = abs(array[1])
    packed = q4_k(array)
    assert packed.shape == (3, 2 * 144)
    found = dequantize(packed, GGMLQuantizationType.Q4_K)
    span = array.reshape(-1, 32).max(-1) - array.reshape(-1, 32).min(-1).clip(max=0)
    assert (abs(found - array).reshape(-1, 32).max(-1) <= span / 30 + span.max() / 40).all()
    assert not found[0, :256].any()


@pytest.mark.parametrize(("width", "kind"), [(256, "Q4_K"), (576, "Q5_0"), (48, "F32")])
def test_the_type_depends_on_the_width(width: int, kind: str) -> None:
    assert block_type("blk.0.ffn_up.weight", width, "q4_k") == kind


@pytest.mark.parametrize(("weights", "most"), [("float32", 0.0), ("q8_0", 0.01), ("q4_k", 0.06)])
def test_a_file_is_read_back(tmp_path: Path, weights: str, most: float) -> None:
    """All tensors, also the rows that GGUF reorders, within what the format rounds."""
    file = tmp_path / "model.gguf"
    write_gguf(MODEL, file, weights)
    write_float32(MODEL, file, tmp_path)
    assert kinds_of(file)
    found, before = (load_file(folder / "model.safetensors") for folder in (tmp_path, MODEL))
    for name, tensor in before.items():
        off = (found[name] - tensor.float()).abs().mean() / tensor.float().abs().mean()
        assert off <= most, name
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])


def test_four_bits_of_onnx() -> None:
    """The lower half of a byte comes first; zero is 8."""
    packed = np.array([[[0x19, 0x0F]]], dtype=np.uint8)
    assert unpacked(packed, np.array([[0.5]], dtype=np.float32), 4).tolist() == [[0.5, -3.5, 3.5, -4.0]]


def test_an_engine_that_takes_no_such_weights_says_so() -> None:
    kind = PeerKind("worker:here", lambda load, log, paused: pytest.fail("opened"))
    with pytest.raises(UsageError, match="not given q8_0"):
        kind.with_weights("q8_0", "--weights")
    assert kind.with_weights("float32", "--weights") is kind
