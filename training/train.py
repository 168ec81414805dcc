"""Train one model: Muon on the matrices, AdamW on the rest, bfloat16 where the device is fast at it.

``python -m training.train --corpus DIR --layers 8 --hidden 256 --seconds 300 --out DIR`` trains on data;
a draft learns from a target in ``training.distil``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from training.batches import Batch, Batches
from training.corpus import load_corpus
from training.model import Shape, build, load, save

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

MATRIX_RATE = 4e-3
VECTOR_RATE = 2e-3
WEIGHT_DECAY = 0.1
WARM_UP = 0.02
FLAT_UNTIL = 0.4
TIMED_UPDATES = (30, 130)
SAVE_EVERY_S = 30.0


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        shape: depth and widths.
        tokens: tokens of a batch, padding included.
        updates: number of updates; 0 takes as many as fit into ``seconds``.
        seconds: the time to fill when ``updates`` is 0.
        seed: of weights and order.
        rate_share: share of the full learning rates, below 1 to adjust a trained model.
    """

    shape: Shape
    tokens: int = 32_768
    updates: int = 0
    seconds: float = 300.0
    seed: int = 0
    rate_share: float = 1.0


@dataclass
class Progress:
    """What a training run did: the figures of the model card."""

    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    device: str = ""


def has_fast_bfloat16(device: str) -> bool:
    """Whether matrix products in bfloat16 pay: always on a GPU, on a CPU only with instructions for it."""
    return device.startswith("cuda") or bool(torch.cpu._is_avx512_bf16_supported())


def rate(fraction: float) -> float:
    """The learning rate's share at a fraction of the run: warm-up, flat, cosine to zero."""
    if fraction < WARM_UP:
        return fraction / WARM_UP
    if fraction < FLAT_UNTIL:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (fraction - FLAT_UNTIL) / (1 - FLAT_UNTIL))))


def train(
    recipe: Recipe, batches: Batches, out: Path, start: Path | None = None
) -> tuple[LlamaForCausalLM, Progress]:
    """Train a model as the recipe says, saving it to ``out`` now and then and at the end.

    ``start`` is a saved model to go on from; without it the weights are random.
    """
    torch.manual_seed(recipe.seed)
    attention = "sdpa" if batches.device.startswith("cuda") else "eager"
    model = build(recipe.shape, attention=attention)
    if start:
        model.load_state_dict(load(start, "cpu").state_dict())
    model = model.to(batches.device).train()
    steppers = optimizers(model, recipe.rate_share)
    progress, total = Progress(device=device_name(batches.device)), recipe.updates
    began = marked = saved = time.perf_counter()
    for number, batch in enumerate(batches):
        if number == TIMED_UPDATES[0]:
            _wait(batches.device)
            marked = time.perf_counter()
        if number == TIMED_UPDATES[1] and not total:
            _wait(batches.device)
            total = _updates_that_fit(recipe.seconds, began, marked)
        fraction = (number + 1) / total if total else WARM_UP * (number + 1) / TIMED_UPDATES[1]
        loss = _loss(model, batch)
        update(steppers, loss, rate(fraction))
        progress.updates, progress.tokens = number + 1, progress.tokens + batch.inputs.numel()
        if number % 100 == 0 or number + 1 == total:
            progress.loss = float(loss.detach())
            progress.seconds = time.perf_counter() - began
            print(out.name, json.dumps(asdict(progress)), f"of {total}", flush=True)
        if time.perf_counter() - saved > SAVE_EVERY_S:
            save(model, out)
            saved = time.perf_counter()
        if number + 1 == total:
            break
    save(model, out)
    _record(recipe, progress, out, start)
    return model.eval(), progress


def _record(recipe: Recipe, progress: Progress, out: Path, start: Path | None) -> None:
    """Write what was done to ``training.json``, with the record of the model it went on from."""
    record = asdict(recipe) | {"tokens_per_batch": recipe.tokens} | asdict(progress)
    if start:
        record["before"] = json.loads((start / "training.json").read_text())
    (out / "training.json").write_text(json.dumps(record) + "\n")


def device_name(device: str) -> str:
    """The device as the model card names it, e.g. ``NVIDIA H200`` or ``CPU, 2 thread(s)``."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} thread(s)"


def _updates_that_fit(seconds: float, began: float, marked: float) -> int:
    now = time.perf_counter()
    per_update = (now - marked) / (TIMED_UPDATES[1] - TIMED_UPDATES[0])
    return TIMED_UPDATES[1] + max(1, int((seconds - (now - began)) / per_update))


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def optimizers(model: LlamaForCausalLM, rate_share: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for embedding and norms, at a share of the full rates."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(
        matrices, lr=MATRIX_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(rest, lr=VECTOR_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    for optimizer in (muon, adam):
        optimizer.param_groups[0]["full_rate"] = optimizer.param_groups[0]["lr"] * rate_share
    return [muon, adam]


def update(steppers: list[torch.optim.Optimizer], loss: torch.Tensor, share: float) -> None:
    """One update from a loss, at a share of the optimizers' rates."""
    torch.autograd.backward(loss)
    step(steppers, share)


def step(steppers: list[torch.optim.Optimizer], share: float) -> None:
    """One update from the gradients that are there, at a share of the optimizers' rates."""
    for optimizer in steppers:
        group = optimizer.param_groups[0]
        group["lr"] = group["full_rate"] * share
        torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    device = str(batch.inputs.device)
    with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=has_fast_bfloat16(device)):
        logits = model(input_ids=batch.inputs, use_cache=False).logits
    per_token = F.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten(), reduction="none")
    return (per_token.view_as(batch.weights) * batch.weights).sum() / batch.weights.sum()


def main() -> None:
    """Command line of one training run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--start", type=Path, help="a saved model of this shape to go on from")
    parser.add_argument("--rate-share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    shape = Shape(a.layers, a.hidden, a.head_dim)
    recipe = Recipe(shape, a.tokens, a.updates, a.seconds, a.seed, a.rate_share)
    batches = Batches(load_corpus(a.corpus), a.tokens, a.seed, a.device)
    train(recipe, batches, a.out, a.start)


if __name__ == "__main__":
    main()
