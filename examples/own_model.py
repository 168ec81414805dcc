"""Does speculation pay for a model and prompts of one's own, and with which K?

    python examples/own_model.py TARGET DRAFT prompts.jsonl --k 2,4,6

Models are hub ids, folders or GGUF files; prompts are a file with one record a line (docs/extending.md).
Without a model at hand: embedded:mini/target and embedded:mini/draft come with the package.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pandas as pd

import spsbench

COLUMNS = {
    "arm": "arm",
    "k": "K",
    "ms_per_token": "ms/token",
    "speedup.ratio": "speedup",
    "speedup.low": "from",
    "speedup.high": "to",
    "tokens_per_loop": "tokens/loop",
}


def measured(arguments: argparse.Namespace) -> spsbench.Run:
    """Every K beside ArS in one interleaved run; a run that is in the folder already is continued."""
    return spsbench.run(
        target=arguments.target,
        draft=arguments.draft,
        task=arguments.prompts,
        k=arguments.k,
        limit=arguments.limit,
        max_new_tokens=arguments.max_new_tokens,
        out=arguments.out,
        quiet=False,
    )


def verdict(rows: pd.DataFrame) -> str:
    """The fastest K, and whether its whole interval is above 1."""
    best = rows[rows["method"] == "sps"].sort_values("speedup.ratio").iloc[-1]
    ratio, low, high = (best[f"speedup.{name}"] for name in ("ratio", "low", "high"))
    if pd.isna(low):
        return f"K = {best['k']}: {ratio:.2f}x per token; too few prompts for an interval"
    text = f"K = {best['k']}: {ratio:.2f}x [{low:.2f}, {high:.2f}] per token"
    return text if low > 1 else f"{text}, so it is not shown to pay"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("prompts")
    parser.add_argument("--k", default="2,4,6")
    parser.add_argument("--limit", type=int, help="only so many prompts")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", help="folder of the run; a fresh one in results/ unless given")
    run = measured(parser.parse_args(given))
    print(run.rows[list(COLUMNS)].rename(columns=COLUMNS).round(3).to_string(index=False))
    print(verdict(run.rows))
    print(f"Everything is in {run.directory}; spsbench report {run.directory} --html makes a page of it.")


if __name__ == "__main__":
    main()
