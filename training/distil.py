"""Distil a draft from the target's distributions on one thread of a CPU.

``python -m training.distil --target DIR --out DIR`` takes the recipe that ships; results/reference/drafts.md
has what else was tried. While the rate is full the draft learns the target's whole distribution and is shown
where to look (``training.guidance``); while the rate falls, it learns to be accepted.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from training.batches import row_groups
from training.corpus import build_corpus
from training.guidance import guidance
from training.lessons import Lesson, Lessons, joined, teach
from training.model import DRAFT, Shape, build, load, save
from training.train import Progress, device_name, has_fast_bfloat16, optimizers, update

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SHARDS = ((1, 8_000), (2, 16_000))
"""Seed and number of contexts of each part of the corpus."""
NUCLEUS = 0.9
"""What is left of the target's distribution for the chance of acceptance: between the tasks' .8 and .95."""
WARM_UP_UPDATES = 200
PROMPT_SHARE = 0.3
GUIDANCE = 0.2
SAVE_EVERY = 400


@dataclass(frozen=True)
class Distillation:
    """How a draft is distilled.

    Attributes:
        shape: depth and widths.
        tokens_per_batch: padding included; small batches learn to copy after fewer tokens.
        flat: updates at the full rate, on cross-entropy with the target.
        falling: updates behind them, the rate a cosine to zero, on the rejected share.
        rate_share: of the rates that the target is trained with.
        seed: of weights and order.
    """

    shape: Shape = DRAFT
    tokens_per_batch: int = 2_048
    flat: int = 700
    falling: int = 400
    rate_share: float = 1.5
    seed: int = 0

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self.flat + self.falling

    def rate(self, number: int) -> float:
        """The learning rate's share in update ``number``, from 0."""
        if number < self.flat:
            return min(1.0, (number + 1) / WARM_UP_UPDATES)
        return 0.5 * (1 + math.cos(math.pi * (number + 1 - self.flat) / self.falling))


def distil(recipe: Distillation, lessons: Lessons, out: Path) -> LlamaForCausalLM:
    """Train a draft on the lessons; it is saved to ``out`` now and then and at the end."""
    torch.manual_seed(recipe.seed)
    model = build(recipe.shape, attention="eager").train()
    steppers = optimizers(model, recipe.rate_share)
    progress, began = Progress(device=device_name("cpu")), time.perf_counter()
    generator = np.random.default_rng(recipe.seed)
    groups = row_groups(lessons.corpus.lengths, recipe.tokens_per_batch, generator)
    for number, rows in enumerate(islice(groups, recipe.updates)):
        lesson = lessons.lesson(rows, PROMPT_SHARE, generator)
        loss = loss_of(model, lesson, last_part=number >= recipe.flat)
        update(steppers, loss, recipe.rate(number))
        progress.updates, progress.tokens = number + 1, progress.tokens + lesson.ids.numel()
        if (number + 1) % SAVE_EVERY == 0 or number + 1 == recipe.updates:
            progress.loss, progress.seconds = float(loss.detach()), time.perf_counter() - began
            print(out.name, json.dumps(asdict(progress)), f"of {recipe.updates}", flush=True)
            save(model, out)
    (out / "training.json").write_text(json.dumps(asdict(recipe) | asdict(progress)) + "\n")
    return model.eval()


def loss_of(model: LlamaForCausalLM, lesson: Lesson, *, last_part: bool) -> torch.Tensor:
    """The mean over answers and chosen prompt tokens, with guidance in the first part of the training.

    In the last part what counts is the rejected share, with a tenth of the first part's losses beside it.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16("cpu")):
        found = model.model(input_ids=lesson.ids[:, :-1], use_cache=False, output_attentions=not last_part)
        states = found.last_hidden_state
        answers, prompts = model.lm_head(states[lesson.answers]), model.lm_head(states[lesson.prompts])
    offered = answers.float().log_softmax(-1).gather(1, lesson.tokens)
    wanted = lesson.logs.softmax(-1)
    per_answer = -(wanted * offered).sum(-1)
    next_tokens = lesson.ids[:, 1:][lesson.prompts]
    of_prompts = F.cross_entropy(prompts.float(), next_tokens, reduction="sum")
    if last_part:
        per_answer = rejected(offered, wanted) + 0.1 * per_answer
        of_prompts = 0.1 * of_prompts
    loss = (per_answer.sum() + of_prompts) / (len(per_answer) + len(next_tokens))
    if last_part:
        return loss
    return loss + GUIDANCE * guidance(found.attentions, lesson.ids, lesson.answers)


def rejected(offered: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The chance of a draft's token being rejected, 1 - sum min(nucleus of the target, draft), [n].

    ``offered`` holds the draft's log-probabilities of the target's tokens, ``wanted`` the target's
    probabilities, likeliest first, both [n, KEPT].
    """
    before = wanted.cumsum(-1) - wanted
    nucleus = torch.where(before < NUCLEUS, wanted, torch.zeros(()))
    nucleus = nucleus / nucleus.sum(-1, keepdim=True)
    return 1 - torch.minimum(nucleus, offered.exp()).sum(-1)


def taught(target: Path, shards: tuple[tuple[int, int], ...] = SHARDS) -> Lessons:
    """The lessons that a saved target gives on the corpus of the shards."""
    model = load(target, "cpu").bfloat16()
    model.set_attn_implementation("sdpa")
    corpora = (build_corpus(target / "tokenizer.json", contexts, seed) for seed, contexts in shards)
    return joined([teach(corpus, model) for corpus in corpora])


def main() -> None:
    """Command line: a draft of any shape and schedule."""
    default = Distillation()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=default.shape.layers)
    parser.add_argument("--hidden", type=int, default=default.shape.hidden)
    parser.add_argument("--head-dim", type=int, default=default.shape.head_dim)
    parser.add_argument("--flat", type=int, default=default.flat)
    parser.add_argument("--falling", type=int, default=default.falling)
    parser.add_argument("--seed", type=int, default=default.seed)
    a = parser.parse_args()
    shape = Shape(a.layers, a.hidden, a.head_dim)
    torch.set_num_threads(1)
    distil(Distillation(shape, flat=a.flat, falling=a.falling, seed=a.seed), taught(a.target), a.out)


if __name__ == "__main__":
    main()
