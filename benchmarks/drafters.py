"""Every drafter on both embedded tasks, side by side in one run each: tokens per loop, speedup, leakage.

    python -m benchmarks.drafters [--prompts 20] [--k 2,4,8] [--out DIR] [DRAFTER...]

The embedded pair and its tasks are synthetic: the order of drafters says what each is good at on text of
that kind, not on yours. One thread; all arms of a task take turns, so that they share the machine's moods.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spsbench

_DRAFTERS = (
    "model",
    "lookup",
    "suffix",
    "unigram",
    "bigram",
    "ngram",
    "union",
    "quantised",
    "early-exit:layers=4",
)
_TASKS = ("xsum", "humaneval")


def main() -> None:
    """Run, and print one Markdown table a task."""
    given = _arguments()
    for task in _TASKS:
        run = spsbench.run(
            task=task,
            k=given.k,
            limit=given.prompts,
            drafter=",".join(given.drafters or _DRAFTERS),
            threads=1,
            score=False,
            out=given.out / task,
            quiet=False,
        )
        print(f"\n{run.summary['task_label']}, {given.prompts} prompts\n")
        print("\n".join(table(run.summary)), flush=True)


def table(summary: dict[str, Any]) -> Iterator[str]:
    """One row per drafter and K; the leakage bound is the arm's own, from an independent reading."""
    bounds = {arm["arm"]: arm["bound"] for arm in summary["losslessness"]["arms"]}
    yield "| drafter | K | tokens/loop | ms/token | speedup [95%] | leakage at most |"
    yield "|---|---|---|---|---|---|"
    for row in summary["rows"]:
        drafter = row["drafter"] or "none (ArS)"
        cells = (row["k"] or "", f"{row['tokens_per_loop']:.2f}", f"{row['ms_per_token']:.2f}")
        bound = bounds.get(row["arm"])
        yield (
            f"| {drafter} | {' | '.join(map(str, cells))} | {_speedup(row['speedup'])} | "
            f"{'-' if bound is None else f'{100 * bound:.1f}%'} |"
        )


def _speedup(found: dict[str, Any] | None) -> str:
    if found is None:
        return "1x"
    interval = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['ratio']:.2f}x{interval}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drafters", nargs="*")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--k", default="2,4,8")
    parser.add_argument("--out", type=Path, default=Path("results/drafters"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
