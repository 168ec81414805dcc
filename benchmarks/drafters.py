"""Every drafter on both embedded tasks, side by side in one run each: tokens per loop, speedup, leakage.

    python -m benchmarks.drafters [--prompts 20] [--k 2,4,8] [--out DIR] [DRAFTER...]

The embedded pair and its tasks are synthetic: the order of drafters says what each is good at on text of
that kind, not on yours. One thread; all arms of a task take turns, so that they share the machine's moods.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import spsbench
from spsbench.report import wording
from spsbench.report.messages.losslessness import share
from spsbench.report.tables import Table, left, right
from spsbench.store.summary_types import Summary

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
        print("\n".join(table(run.summary).as_markdown()), flush=True)


def table(summary: Summary) -> Table:
    """One row per drafter and K; the leakage bound is the arm's own, from an independent reading."""
    judged = summary["losslessness"]
    bounds = {} if judged is None else {arm["arm"]: arm["bound"] for arm in judged["arms"]}
    columns = [left("drafter"), right("K"), right("tokens/loop"), right("ms/token")]
    columns += [left("speedup", note="95%"), right("leakage at most")]
    rows = [
        [
            row["drafter"] or "none (ArS)",
            str(row["k"] or ""),
            wording.number(row["tokens_per_loop"], 2),
            wording.milliseconds(row["ms_per_token"]),
            wording.row_speedup(row),
            share(bounds.get(row["arm"])),
        ]
        for row in summary["rows"]
    ]
    return Table(columns, rows)


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
