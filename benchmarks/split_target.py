"""What a loop costs where the target is split over processes, and where the draft should be.

    python -m benchmarks.split_target [--limit 8]

Runs the embedded pair over torch in one process, and split over two with the draft in the first or in each,
in three rounds of changing order. All must write the same tokens. No test: times are this machine's.
On GPUs the same command lines hold without --threads: one process a GPU, NCCL in place of gloo, no comm_ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

_SPLIT = "--tensor-parallel"
_WAYS = {
    "one process": ("--backend", "torch", "--threads", "1"),
    "two, draft in the first": (_SPLIT, "2"),
    "two, draft in each": (_SPLIT, "2:draft=replicated"),
}
_RUN = ("run", "xsum", "--dtype", "float32", "--max-new-tokens", "64", "--no-score", "--no-proof", "--quiet")
_PHASES = ("draft_ms", "verify_ms", "sample_ms", "other_ms", "comm_ms", "loop_ms")


def _summary(way: tuple[str, ...], limit: str, directory: Path) -> dict[str, Any]:
    """Of a run in processes of its own."""
    launcher = (
        ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m") if way[0] == _SPLIT else ()
    )
    command = [
        sys.executable,
        "-m",
        *launcher,
        "spsbench",
        *_RUN,
        *way,
        "--limit",
        limit,
        "--out",
        str(directory),
    ]
    subprocess.run(command, check=True, capture_output=True)
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", default="8")
    limit = parser.parse_args().limit
    times: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    hashes = set()
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            for place in range(len(_WAYS)):
                name = [*_WAYS][(turn + place) % len(_WAYS)]
                found = _summary(_WAYS[name], limit, Path(folder) / f"{turn}-{place}")
                hashes.add(found["token_sha256"])
                for row in found["rows"]:
                    seconds = [row["loop_time"].get(phase) or 0.0 for phase in _PHASES]
                    times[row["arm"], name].append(seconds)
    print(f"hashes of all tokens: {', '.join(sorted(hashes))}")
    print("median of three runs", *_PHASES, sep="  ")
    for (arm, name), rounds in sorted(times.items()):
        print(arm, name, *(f"{median(column):.2f}" for column in zip(*rounds, strict=True)), sep="  ")


if __name__ == "__main__":
    main()
