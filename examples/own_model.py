"""Does speculation pay for a model and prompts of one's own, and with which K?

    python examples/own_model.py TARGET DRAFT prompts.jsonl --k 2,4,6

Models are hub ids, folders or GGUF files; prompts are a file with one record a line (docs/extending.md).
Without a model at hand: embedded:mini/target and embedded:mini/draft come with the package.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

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
    print(*run.verdict, sep="\n")
    print(f"Everything is in {run.directory}; spsbench report {run.directory} --html makes a page of it.")


if __name__ == "__main__":
    main()
