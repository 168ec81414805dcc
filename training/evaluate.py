"""Measure the mini pair against its gates, print the table and write the model card.

``python -m training.evaluate`` runs the pair on its task data (minutes on a CPU); with ``--answers``
it takes what an earlier run of ``training.answers`` wrote. Speed is measured by the benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from training.gates import Gate, all_gates, table
from training.make import MINI


def measured_answers(pair: Path) -> list[dict[str, Any]]:
    """Answers of the pair to all of its task data, by ``training.answers`` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.json"
        command = [sys.executable, "-m", "training.answers", "--target", pair / "target"]
        command += ["--drafts", pair / "draft", "--tokenizer", pair / "target"]
        command += ["--data", pair / "data", "--out", out]
        subprocess.run([str(part) for part in command], check=True)
        return json.loads(out.read_text())  # type: ignore[no-any-return]


def card(gates: list[Gate], pair: Path, devices: str) -> str:
    """The model card: what the pair is, how it was trained and what it measures, on which devices."""
    training = [row for name in ("target", "draft") for row in _training_rows(pair, name)]
    head = (
        "| model | shape | updates x tokens a batch | tokens | seconds | machine |\n|---|---|---|---|---|---|"
    )
    template = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")
    return template.format(training="\n".join([head, *training]), gates=table(gates), devices=devices)


def _training_rows(pair: Path, name: str) -> list[str]:
    """One row for each stage of a model's training, the first stage first."""
    rows: list[str] = []
    record = json.loads((pair / name / "training.json").read_text())
    while record:
        shape = f"{record['shape']['layers']} x {record['shape']['hidden']}"
        amount = f"{record['updates']:,} x {record['tokens_per_batch']:,}"
        spent = f"{record['tokens'] / 1e6:.1f}M | {record['seconds']:.0f} | {record['device']}"
        rows.insert(0, f"| {name} | {shape} | {amount} | {spent} |")
        record = record.get("before")
    return rows


def main() -> None:
    """Command line: exit 4 if a gate fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, default=MINI)
    parser.add_argument("--answers", type=Path)
    a = parser.parse_args()
    answers = json.loads(a.answers.read_text()) if a.answers else measured_answers(a.pair)
    gates = all_gates(answers, a.pair)
    print(table(gates))
    devices = "; ".join(dict.fromkeys(f"{answer['job']} on {answer['device']}" for answer in answers))
    (a.pair / "README.md").write_text(card(gates, a.pair, devices), encoding="utf-8")
    sys.exit(4 if any(gate.passed is False for gate in gates) else 0)


if __name__ == "__main__":
    main()
