"""Distil a draft from the target's distributions on one thread.

``python -m training.mini_t5.distil --target DIR --out DIR`` takes the recipes that ship.
While the rate is full the draft learns the target's whole distribution; while it falls, to be accepted.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from transformers import T5ForConditionalGeneration

from training.batches import row_groups
from training.distil import rejected
from training.mini_t5.corpus import build_corpus
from training.mini_t5.lessons import Lessons, teach
from training.mini_t5.model import SHAPES, build, load, save
from training.mini_t5.train import answer_logits, optimizers, step
from training.train import Progress, device_name

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
EXAMPLES, SEED = 20_000, 2
"""Size and seed of the corpus that the target is asked about."""
WORKERS = 2
WARM_UP_UPDATES = 100
REPORT_EVERY = 100


@dataclass(frozen=True)
class Distillation:
    """How a draft is distilled.

    Attributes:
        name: of the draft and its shape.
        flat: updates at the full rate, on cross-entropy with the target.
        falling: updates after them, the rate a cosine to zero, on the rejected share.
        tokens: of a batch, encoder's and decoder's.
        rate_share: of the rates that the target is trained with.
        seed: of weights and order.
    """

    name: str
    flat: int = 1_200
    falling: int = 600
    tokens: int = 2_048
    rate_share: float = 1.5
    seed: int = 2

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self.flat + self.falling

    def rate(self, number: int) -> float:
        """The learning rate's share in update ``number``, from 0."""
        if number < self.flat:
            return min(1.0, (number + 1) / WARM_UP_UPDATES)
        return 0.5 * (1 + math.cos(math.pi * (number + 1 - self.flat) / self.falling))


RECIPES = {name: Distillation(name) for name in SHAPES if name != "target"}


def distil(recipe: Distillation, lessons: Lessons, out: Path) -> T5ForConditionalGeneration:
    """Train a draft on the lessons and save it to ``out``."""
    torch.manual_seed(recipe.seed)
    model = build(SHAPES[recipe.name]).train()
    steppers = optimizers(model, recipe.rate_share)
    progress, began = Progress(device=device_name("cpu")), time.perf_counter()
    lengths = lessons.batches.corpus.lengths
    groups = row_groups(lengths, recipe.tokens, np.random.default_rng(recipe.seed))
    for number, rows in enumerate(islice(groups, recipe.updates)):
        batch, tokens, logs = lessons.lesson(rows)
        offered = answer_logits(model, batch).log_softmax(-1).gather(1, tokens)
        loss = loss_of(offered, logs.softmax(-1), last_part=number >= recipe.flat)
        torch.autograd.backward(loss)
        step(steppers, recipe.rate(number))
        progress.updates, progress.tokens = number + 1, progress.tokens + batch.tokens
        if number % REPORT_EVERY == 0 or number + 1 == recipe.updates:
            progress.loss, progress.seconds = float(loss.detach()), time.perf_counter() - began
            print(out.name, json.dumps(asdict(progress)), f"of {recipe.updates}", flush=True)
    save(model, out)
    (out / "training.json").write_text(json.dumps(asdict(recipe) | asdict(progress)) + "\n")
    return model.eval()


def loss_of(offered: torch.Tensor, wanted: torch.Tensor, *, last_part: bool) -> torch.Tensor:
    """Cross-entropy with the target; in the last part the rejected share and a tenth of it.

    ``offered`` holds the draft's log-probabilities of the target's tokens, ``wanted`` the target's
    probabilities, likeliest first, both [answers, KEPT].
    """
    entropy = -(wanted * offered).sum(-1).mean()
    return rejected(offered, wanted).mean() + 0.1 * entropy if last_part else entropy


def make_drafts(target: Path, recipes: Iterable[Distillation], out: Path) -> None:
    """Distil drafts from a saved target into ``out``, a process of one thread each, two at a time.

    All of them learn from one corpus, which the target is asked about once.
    """
    torch.set_num_threads(1)
    corpus = build_corpus(target / "tokenizer.json", EXAMPLES, SEED)
    lessons = teach(corpus, load(target))
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_make_draft, target, recipe, lessons, out) for recipe in recipes]:
            done.result()


def _make_draft(target: Path, recipe: Distillation, lessons: Lessons, out: Path) -> None:
    torch.set_num_threads(1)
    folder = out / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(target / name, folder / name)
    distil(recipe, lessons, folder)


def main() -> None:
    """Command line: some of the drafts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--names", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    make_drafts(a.target, [RECIPES[name] for name in a.names], a.out)


if __name__ == "__main__":
    main()
