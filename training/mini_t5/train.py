"""Train target and drafts on data: Muon on the matrices, AdamW on embedding, position biases and norms."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import T5ForConditionalGeneration

from training.corpus import Corpus, load_corpus
from training.mini_t5.batches import Batch, Batches
from training.mini_t5.examples import SUMMARY_SHARE
from training.mini_t5.model import SHAPES, Shape, build, save
from training.train import WEIGHT_DECAY, Progress, device_name, has_fast_bfloat16, rate, step

MATRIX_RATE = 4e-3
VECTOR_RATE = 4e-3
REPORT_EVERY, SAVE_EVERY = 20, 200
DRAFT_UPDATES = {"draft-small": 3_600, "draft-base": 2_800, "draft-large": 2_800}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained on data.

    Attributes:
        shape: depth and widths.
        examples, summaries: size of the corpus, and the share of summaries in it.
        tokens: of a worker's batch, encoder's and decoder's.
        updates: their number in the schedule of the rates.
        stop: the update after which the model is taken, at the latest the last one.
        workers: processes that share an update, each with a batch of its own.
        seed: of corpus, weights and order.
    """

    shape: Shape
    examples: int = 200_000
    summaries: float = SUMMARY_SHARE
    tokens: int = 2_048
    updates: int = 4_500
    stop: int = 3_400
    workers: int = 2
    seed: int = 1


RECIPES = {"target": Recipe(SHAPES["target"])} | {
    name: Recipe(SHAPES[name], 80_000, summaries=0.1, updates=updates, stop=updates, workers=1, seed=2)
    for name, updates in DRAFT_UPDATES.items()
}
"""By the name of the folder that ships. The drafts see fewer summaries, which they learn sooner."""


def train(recipe: Recipe, corpus: Corpus, out: Path, rank: int = 0) -> T5ForConditionalGeneration:
    """Train a model as one of ``recipe.workers`` processes; rank 0 saves it now and then and at the end."""
    torch.manual_seed(recipe.seed)
    model = build(recipe.shape).train()
    steppers = optimizers(model)
    progress, began = Progress(device=device_name("cpu")), time.perf_counter()
    batches = Batches(corpus).share(recipe.tokens, recipe.seed, rank, recipe.workers)
    for number, batch in enumerate(islice(batches, recipe.stop)):
        loss = cross_entropy(model, batch)
        torch.autograd.backward(loss)
        average_gradients(model, recipe.workers)
        step(steppers, rate((number + 1) / recipe.updates))
        progress.updates, progress.tokens = number + 1, progress.tokens + recipe.workers * batch.tokens
        if rank == 0 and (number % REPORT_EVERY == 0 or number + 1 == recipe.stop):
            progress.loss, progress.seconds = float(loss.detach()), time.perf_counter() - began
            print(out.name, json.dumps(asdict(progress)), f"of {recipe.stop}", flush=True)
        if rank == 0 and (number + 1) % SAVE_EVERY == 0:
            save(model, out)
    if rank == 0:
        save(model, out)
        (out / "training.json").write_text(json.dumps(asdict(recipe) | asdict(progress)) + "\n")
    return model.eval()


def train_in_parallel(recipe: Recipe, corpus: Path, out: Path) -> None:
    """Train in ``recipe.workers`` processes of one thread each, on the corpus saved in a folder.

    Threads inside of operators wait for each other at each of them, which costs more than half of the speed
    on a machine that does something else besides; processes wait once per update.
    """
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(
            _worker, (recipe, corpus, out, f"file://{meeting}/store"), nprocs=recipe.workers
        )


def _worker(rank: int, recipe: Recipe, corpus: Path, out: Path, meeting: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=recipe.workers)
    train(recipe, load_corpus(corpus), out, rank)
    torch.distributed.destroy_process_group()


def average_gradients(model: T5ForConditionalGeneration, workers: int) -> None:
    """Give every worker the mean of all workers' gradients."""
    if workers == 1:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(flat)
    flat /= workers
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def optimizers(model: T5ForConditionalGeneration, share: float = 1.0) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest, at a share of the rates."""
    named = dict(model.named_parameters())
    vectors = {name for name, p in named.items() if p.ndim != 2 or "shared" in name or "bias" in name}
    muon = torch.optim.Muon(
        [p for name, p in named.items() if name not in vectors],
        lr=MATRIX_RATE,
        weight_decay=WEIGHT_DECAY,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(
        [named[name] for name in sorted(vectors)], lr=VECTOR_RATE, betas=(0.9, 0.98), weight_decay=0.0
    )
    for optimizer in (muon, adam):
        optimizer.param_groups[0]["full_rate"] = optimizer.param_groups[0]["lr"] * share
    return [muon, adam]


def answer_logits(model: T5ForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """Logits behind every decoder input that is none of the padding, float32 [answers, V]."""
    with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16("cpu")):
        logits = model(
            input_ids=batch.sources,
            attention_mask=batch.mask,
            decoder_input_ids=batch.inputs,
            use_cache=False,
        ).logits
    return logits[batch.inside].float()


def cross_entropy(model: T5ForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """The mean loss of the answers' tokens."""
    return F.cross_entropy(answer_logits(model, batch), batch.labels[batch.inside])
