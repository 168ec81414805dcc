"""Puts the float32 weights back into a model that OpenVINO saved in float16.

    PYTHON launch.py spsbench.peers.openvino_model FOLDER EXACT.npz

Runs in OpenVINO's environment. Its reader of GGUF takes no float32, and what it saves has every constant
in float16, the rotation's frequencies too. Each is replaced by the float32 array that it is the rounding of.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_XML = Path("openvino_model.xml")

Array = NDArray[Any]


def main(folder: Path, exact: Mapping[str, Array]) -> None:
    """Rewrite the model of a folder in place."""
    openvino: Any = importlib.import_module("openvino")
    known = {_key(array): array.astype(np.float32) for array in exact.values()}
    model = openvino.Core().read_model(folder / _XML)
    for convert in model.get_ordered_ops():
        rounded = _rounded(convert)
        if rounded is None:
            continue
        constant = openvino.opset13.constant(restored(rounded, known))
        for reader in convert.output(0).get_target_inputs():
            reader.replace_source_output(constant.output(0))
    part = Path("exact.xml")
    openvino.save_model(model, folder / part, compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        (folder / part.with_suffix(suffix)).replace(folder / _XML.with_suffix(suffix))


def restored(rounded: Array, known: Mapping[tuple[Any, ...], Array]) -> Array:
    """The array in float32, in the same shape. Single numbers (1, 2, masks) are what they were."""
    if rounded.size == 1:
        return rounded.astype(np.float32)
    if _key(rounded) not in known:
        raise ValueError(f"a constant of shape {rounded.shape} is none of the model's weights")
    return known[_key(rounded)].reshape(rounded.shape)


def _rounded(node: Any) -> Array | None:
    """The float16 constant that a node converts; None if it does anything else."""
    if node.get_type_name() != "Convert" or node.input_value(0).get_node().get_type_name() != "Constant":
        return None
    data: Array = node.input_value(0).get_node().data
    return data if data.dtype == np.float16 else None


def _key(array: Array) -> tuple[Any, ...]:
    """Shape without ones, and the content in float16."""
    return tuple(n for n in array.shape if n > 1), hash(array.astype(np.float16).tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), np.load(sys.argv[2]))
