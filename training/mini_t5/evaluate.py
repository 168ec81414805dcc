"""Measure the encoder-decoder pair against its gates, print the table and write the model card.

``python -m training.mini_t5.evaluate`` runs the stored weights on their task data; minutes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from training.gates import Gate, table
from training.mini_t5.answers import WORKERS, all_answers
from training.mini_t5.gates import all_gates
from training.mini_t5.make import MINI_T5
from training.mini_t5.model import SHAPES
from training.mini_t5.train import RECIPES

HEAD = (
    "| model | encoder + decoder x width | parameters | updates | tokens | seconds | machine |\n"
    "|---|---|---|---|---|---|---|"
)


def card(gates: list[Gate], pair: Path) -> str:
    """The model card: what the pair is, how it was trained and what it measures."""
    template = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")
    rows = "\n".join([HEAD, *(_training_row(pair, name) for name in SHAPES)])
    return template.format(
        training=rows,
        gates=table(gates),
        device=f"CPU, {WORKERS} processes of one thread",
        stop=RECIPES["target"].stop,
    )


def _training_row(pair: Path, name: str) -> str:
    record, shape = json.loads((pair / name / "training.json").read_text()), SHAPES[name]
    parameters = (pair / name / "model.safetensors").stat().st_size // 2
    spent = f"{record['tokens'] / 1e6:.1f}M | {record['seconds']:.0f} | {record['device']}"
    size = f"{shape.encoder} + {shape.decoder} x {shape.width} | {parameters / 1e6:.2f}M"
    return f"| {name} | {size} | {record['updates']:,} | {spent} |"


def main() -> None:
    """Command line: exit 4 if a gate fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, default=MINI_T5)
    parser.add_argument("--limit", type=int, help="only the first examples of each task, and no card")
    a = parser.parse_args()
    gates = all_gates(all_answers(a.pair, a.limit), a.pair)
    print(table(gates))
    if not a.limit:
        (a.pair / "README.md").write_text(card(gates, a.pair), encoding="utf-8")
    sys.exit(4 if any(gate.passed is False for gate in gates) else 0)


if __name__ == "__main__":
    main()
