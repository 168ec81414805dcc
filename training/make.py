"""Make the mini pair: its data from a seed and its draft from its target. ``make mini`` calls it.

With ``--target`` tokenizer and target are trained first. The target that ships was trained on a GPU in
two stages and does not come out of this (spsbench/mini/README.md).
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from training.batches import Batches
from training.corpus import build_corpus, save_corpus
from training.distil import Distillation, distil, taught
from training.model import TARGET
from training.tasks import write_tasks
from training.tokenizer import train_tokenizer
from training.train import Recipe, train

MINI = Path(__file__).resolve().parent.parent / "spsbench" / "mini"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SEED = 1


@dataclass(frozen=True)
class Schedule:
    """How much a target is trained: contexts, tokens of a batch, and updates or, if 0, seconds."""

    contexts: int
    tokens: int
    updates: int = 0
    seconds: float = 0.0


def schedule(device: str, minutes: float) -> Schedule:
    """The schedule of a device: on a GPU that of the first stage, on a CPU what fits the time."""
    if device.startswith("cuda"):
        return Schedule(240_000, 32_768, updates=906)
    return Schedule(round(600 * minutes), 4_096, seconds=50 * minutes)


def make_target(out: Path, device: str, minutes: float, seed: int) -> None:
    """Train tokenizer and target into ``out``."""
    plan = schedule(device, minutes)
    train_tokenizer(seed).save_pretrained(out / "target")
    corpus = build_corpus(out / "target" / "tokenizer.json", plan.contexts, seed)
    recipe = Recipe(TARGET, plan.tokens, plan.updates, plan.seconds, seed=seed)
    train(recipe, Batches(corpus, plan.tokens, seed, device), out / "target")


def make_draft(out: Path, recipe: Distillation) -> None:
    """Distil the draft from the target in ``out``, on one thread: its result depends on their number."""
    torch.set_num_threads(1)
    (out / "draft").mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(out / "target" / name, out / "draft" / name)
    distil(recipe, taught(out / "target"), out / "draft")


def main() -> None:
    """Command line: data and draft, or with ``--corpus`` the corpus alone for ``training.train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MINI)
    parser.add_argument("--target", action="store_true", help="train tokenizer and target first")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="the target's"
    )
    parser.add_argument("--minutes", type=float, default=90.0, help="for the target on a CPU")
    parser.add_argument("--seed", type=int, default=SEED, help="the target's")
    parser.add_argument("--corpus", type=int, help="only build this many contexts with --out's tokenizer")
    a = parser.parse_args()
    if a.corpus:
        save_corpus(build_corpus(a.out / "target" / "tokenizer.json", a.corpus, a.seed), a.out)
        return
    write_tasks(a.out / "data")
    if a.target:
        make_target(a.out, a.device, a.minutes, a.seed)
    elif not (a.out / "target").exists():
        shutil.copytree(MINI / "target", a.out / "target")
    make_draft(a.out, Distillation())


if __name__ == "__main__":
    main()
