"""What a run is called: figures of the embedded pair are synthetic, whatever the data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.config.models import ONNXRUNTIME, TORCH
from spsbench.config.resolution import resolve
from spsbench.runner.models import about_weights
from spsbench.runner.planning import plan

ROW = {
    "task_id": "local/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}


def test_the_embedded_pair_on_other_data_says_what_is_synthetic(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(ROW) + "\n")
    flags = {"task": "humaneval", "device": "cpu", "score": False}
    told = {source: plan(resolve({**flags, "data": source})).info() for source in ("mini", str(data))}
    assert "mini (synthetic)" in told["mini"]["task_label"]
    assert told[str(data)]["task_label"].endswith("(synthetic pair)")
    assert told["mini"]["synthetic"]
    assert told[str(data)]["synthetic"]


@pytest.mark.parametrize(
    ("dtypes", "backend", "said"),
    [
        (("auto", "auto"), TORCH, "dequantised to float32"),
        (("float32", "float32"), ONNXRUNTIME, "dequantised to float32"),
        (("bfloat16", "bfloat16"), TORCH, "dequantised to bfloat16"),
        (("bfloat16+int8", "float32"), TORCH, "dequantised to bfloat16"),
        (("int8", "int8"), ONNXRUNTIME, "dequantised to float32"),
    ],
)
def test_dequantised_weights_are_named_in_the_dtype_that_computes(
    dtypes: tuple[str, str], backend: str, said: str
) -> None:
    model = SimpleNamespace(dequantised="Q4_1", location="file")
    pair: Any = SimpleNamespace(target=model, draft=model)
    assert about_weights(pair, dtypes, backend)[0] == f"weights Q4_1 {said}"
    apart: Any = SimpleNamespace(target=model, draft=SimpleNamespace(dequantised=None, location="other"))
    assert about_weights(apart, dtypes, backend)[0] == f"target Q4_1 {said}"
