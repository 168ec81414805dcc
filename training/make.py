"""Make the mini pair from seed: data, tokenizer, target, draft. ``make mini`` calls it.

On a GPU the schedule is the one that the shipped weights were trained with; on a CPU a shorter one
fits into ``--minutes`` (90 by default).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from training.batches import Batches
from training.corpus import Corpus, build_corpus, save_corpus
from training.model import DRAFT, TARGET
from training.tasks import write_tasks
from training.tokenizer import train_tokenizer
from training.train import Recipe, train

MINI = Path(__file__).resolve().parent.parent / "spsbench" / "mini"
SEED = 1


@dataclass(frozen=True)
class Schedule:
    """How much is trained: contexts in the corpus, tokens of a batch, and updates or, if 0, seconds."""

    contexts: int
    tokens: int
    target_updates: int = 0
    draft_updates: int = 0
    target_s: float = 0.0
    draft_s: float = 0.0


def schedule(device: str, minutes: float) -> Schedule:
    """The schedule of a device: on a GPU what the shipped weights had, on a CPU what fits the time.

    Of a CPU's time about a tenth each goes to the corpus and the draft.
    """
    if device.startswith("cuda"):
        return Schedule(240_000, 32_768, target_updates=906, draft_updates=480)
    seconds = minutes * 60
    return Schedule(round(600 * minutes), 4_096, target_s=0.72 * seconds, draft_s=0.1 * seconds)


def write_tokenizer(out: Path, seed: int) -> Path:
    """Train the tokenizer, save it beside both models and return its file."""
    tokenizer = train_tokenizer(seed)
    for name in ("target", "draft"):
        tokenizer.save_pretrained(out / name)
    return out / "target" / "tokenizer.json"


def make(out: Path, device: str, minutes: float, seed: int) -> None:
    """Write everything that ships into ``out``."""
    plan = schedule(device, minutes)
    write_tasks(out / "data")
    corpus: Corpus = build_corpus(write_tokenizer(out, seed), plan.contexts, seed)
    batches = Batches(corpus, plan.tokens, seed, device)
    recipe = Recipe(TARGET, plan.tokens, plan.target_updates, plan.target_s, seed=seed)
    train(recipe, batches, out / "target")
    recipe = Recipe(DRAFT, plan.tokens, plan.draft_updates, plan.draft_s, seed=seed)
    train(recipe, batches, out / "draft")


def main() -> None:
    """Command line: everything, or with ``--corpus`` the corpus alone for ``training.train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=MINI)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--corpus", type=int, help="only build this many contexts with the tokenizer in --out"
    )
    a = parser.parse_args()
    device = ("cuda" if torch.cuda.is_available() else "cpu") if a.device == "auto" else a.device
    if a.corpus:
        save_corpus(build_corpus(a.out / "target" / "tokenizer.json", a.corpus, a.seed), a.out)
    else:
        make(a.out, device, a.minutes, a.seed)


if __name__ == "__main__":
    main()
