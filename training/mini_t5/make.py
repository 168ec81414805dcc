"""Make the encoder-decoder pair from a seed: data, tokenizer, target, drafts. ``make mini-t5`` calls it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from training.corpus import save_corpus
from training.mini_t5.corpus import build_corpus
from training.mini_t5.distil import RECIPES, make_drafts
from training.mini_t5.tasks import write_tasks
from training.mini_t5.tokenizer import train_tokenizer
from training.mini_t5.train import Recipe, train_in_parallel

MINI_T5 = Path(__file__).resolve().parent.parent.parent / "spsbench" / "mini_t5"


def make_target(out: Path, recipe: Recipe) -> None:
    """Train tokenizer and target into ``out``."""
    train_tokenizer(recipe.seed).save_pretrained(out)
    with tempfile.TemporaryDirectory() as folder:
        save_corpus(build_corpus(out / "tokenizer.json", recipe.examples, recipe.seed), Path(folder))
        train_in_parallel(recipe, Path(folder), out)


def main() -> None:
    """Command line: everything, or the drafts of the target that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MINI_T5)
    parser.add_argument("--drafts-only", action="store_true", help="keep the target that --out holds")
    a = parser.parse_args()
    write_tasks(a.out / "data")
    if not a.drafts_only:
        make_target(a.out / "target", Recipe())
    make_drafts(a.out / "target", RECIPES.values(), a.out)


if __name__ == "__main__":
    main()
