"""Make the encoder-decoder pair from a seed: data, tokenizer, target, drafts. ``make mini-t5`` calls it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from training.corpus import load_corpus, save_corpus
from training.mini_t5.corpus import build_corpus
from training.mini_t5.model import DRAFTS
from training.mini_t5.tasks import write_tasks
from training.mini_t5.tokenizer import train_tokenizer
from training.mini_t5.train import RECIPES, Recipe, train, train_in_parallel

MINI_T5 = Path(__file__).resolve().parent / "pair"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
DRAFTS_AT_ONCE = 2


def make_target(out: Path) -> None:
    """Train tokenizer and target into ``out / "target"``."""
    recipe = RECIPES["target"]
    train_tokenizer(recipe.seed).save_pretrained(out / "target")
    with tempfile.TemporaryDirectory() as folder:
        _save_corpus(out, recipe, Path(folder))
        train_in_parallel(recipe, Path(folder), out / "target")


def make_drafts(out: Path) -> None:
    """Train the drafts into ``out``, with the tokenizer of the target there, a process of one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        _save_corpus(out, RECIPES[DRAFTS[0]], Path(folder))
        with ProcessPoolExecutor(DRAFTS_AT_ONCE, mp_context=get_context("spawn")) as pool:
            for done in [pool.submit(_make_draft, name, Path(folder), out) for name in reversed(DRAFTS)]:
                done.result()


def _save_corpus(out: Path, recipe: Recipe, folder: Path) -> None:
    tokenizer = out / "target" / "tokenizer.json"
    save_corpus(build_corpus(tokenizer, recipe.examples, recipe.seed, recipe.summaries), folder)


def _make_draft(name: str, corpus: Path, out: Path) -> None:
    torch.set_num_threads(1)
    (out / name).mkdir(parents=True, exist_ok=True)
    for file in TOKENIZER_FILES:
        shutil.copyfile(out / "target" / file, out / name / file)
    train(RECIPES[name], load_corpus(corpus), out / name)


def main() -> None:
    """Command line: everything, or the drafts alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MINI_T5)
    parser.add_argument("--drafts-only", action="store_true", help="keep the target that --out holds")
    a = parser.parse_args()
    write_tasks(a.out / "data")
    if not a.drafts_only:
        make_target(a.out)
    make_drafts(a.out)


if __name__ == "__main__":
    main()
