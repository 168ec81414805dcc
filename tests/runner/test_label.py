"""What a run is called: figures of the embedded pair are synthetic, whatever the data."""

from __future__ import annotations

import json
from pathlib import Path

from spsbench.config.resolve import resolve
from spsbench.runner.plan import plan

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
