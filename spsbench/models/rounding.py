"""Matrices rounded to evenly spaced values by blocks of neighbours in a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spsbench.models.checkpoint import Floats

BLOCK = 32
"""Neighbours in a row that share a scale."""

_WIDEST_4 = 15


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [out, in]: an entry is (code - 2^(bits-1)) scale + offset of its block.

    Attributes:
        codes: [out, blocks, bytes]; of 4 bits two share a byte, the first in its lower half.
        scales: [out, blocks].
        offsets: [out, blocks]; None where every one is 0.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    offsets: Floats | None = None


def rounded_8(weight: Floats) -> Rounded:
    """To 255 values symmetric about 0, as ggml's Q8_0 has them: nothing of it is lost."""
    blocks = _blocks(weight)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(blocks / _divisor(scales)) + 128
    return Rounded(codes.astype(np.uint8), scales[..., 0])


def rounded_4(weight: Floats) -> Rounded:
    """To 16 values from a block's smallest to its largest, as Q4_1 has them: nothing of it is lost."""
    blocks = _blocks(weight)
    low = blocks.min(-1, keepdims=True)
    scales = (blocks.max(-1, keepdims=True) - low) / np.float32(_WIDEST_4)
    codes = np.rint((blocks - low) / _divisor(scales)).astype(np.uint8)
    packed = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return Rounded(packed, scales[..., 0], (low + 8 * scales)[..., 0])


def block_sums(width: int) -> Floats:
    """[width, blocks] the matrix that adds up a row's neighbours, which offsets are multiplied by."""
    columns = np.arange(-(-width // BLOCK))
    found: Floats = (np.arange(width)[:, None] // BLOCK == columns).astype(np.float32)
    return found


def _blocks(weight: Floats) -> Floats:
    """[out, blocks, BLOCK]; the last block is filled up with its own last entry."""
    width = weight.shape[1]
    padded = np.pad(weight, ((0, 0), (0, -width % BLOCK)), mode="edge")
    blocks: Floats = padded.reshape(len(weight), -1, BLOCK)
    return blocks


def _divisor(scales: Floats) -> Floats:
    found: Floats = np.where(scales > 0, scales, np.float32(1.0))
    return found
