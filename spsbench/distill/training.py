"""Train a student on a corpus: Muon for matrices, AdamW for the rest, in bfloat16 where that is fast.

While the rate is full the student learns the target's distribution; while it falls, to be accepted. The
state is saved as it goes, and a training that was stopped goes on from there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.distill.batches import Batch
from spsbench.distill.losses import taught
from spsbench.distill.teacher import Teacher, log_probs

MATRIX_RATE, VECTOR_RATE = 6e-3, 3e-3
WARM_UP = 0.02
FLAT_UNTIL = 0.55
SAVE_EVERY_S = 60.0
_TIMED_UPDATES = 20
_CHECKPOINT = "checkpoint.pt"


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        seconds: spent on updates.
    """

    planned: int
    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Training:
    """One student's training.

    Attributes:
        student: what is trained, see ``students``.
    """

    teacher: Teacher
    student: Any
    folder: Path
    progress: Progress
    dtype: torch.dtype = torch.float32
    rate_share: float = 1.0

    def __post_init__(self) -> None:
        self._steppers = optimizers(self.student, self.rate_share)
        self._head = self.teacher.head_rows(self.dtype)
        self._end: float | None = None
        self._restore()

    def end_by(self, moment: float) -> None:
        """Cut the plan, once a few updates were timed, to what fits until a moment of ``perf_counter``."""
        self._end = moment

    def run(
        self,
        batches: Callable[[int], Iterable[Batch]],
        evaluate: Callable[[], dict[str, Any]],
        evaluate_every: int,
        tell: Callable[[Progress, float], None],
    ) -> None:
        """Make the updates that are left."""
        saved = time.perf_counter()
        for batch in self._left(batches):
            began = time.perf_counter()
            loss = self._update(batch)
            done = self.progress
            done.updates, done.tokens = done.updates + 1, done.tokens + batch.learnt
            done.seconds += time.perf_counter() - began
            self._cut_plan()
            last = done.updates == done.planned
            if last or done.updates % evaluate_every == 0:
                done.curve.append({"updates": done.updates, "tokens": done.tokens, "loss": loss} | evaluate())
            tell(done, loss)
            if last or time.perf_counter() - saved > SAVE_EVERY_S:
                self._save()
                saved = time.perf_counter()

    def _cut_plan(self) -> None:
        done = self.progress
        if self._end is None or done.updates < _TIMED_UPDATES:
            return
        fitting = int((self._end - time.perf_counter()) / (done.seconds / done.updates))
        done.planned = min(done.planned, done.updates + max(0, fitting))
        self._end = None

    def _left(self, batches: Callable[[int], Iterable[Batch]]) -> Iterator[Batch]:
        epoch, skipped = 0, self.progress.updates
        while self.progress.updates < self.progress.planned:
            for batch in batches(epoch):
                if skipped:
                    skipped -= 1
                elif self.progress.updates < self.progress.planned:
                    yield batch
            epoch += 1

    def _update(self, batch: Batch) -> float:
        share = rate(self.progress.updates / self.progress.planned)
        falling = self.progress.updates >= FLAT_UNTIL * self.progress.planned
        losses: list[Tensor] = []
        wanted: dict[int, Tensor] = {}
        with torch.autocast(
            self.teacher.model.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16
        ):
            for depth in self.student.predict(batch.tokens, batch.features):
                if depth.ahead not in wanted:
                    wanted[depth.ahead] = batch.wanted(depth.ahead, self._head)
                states = batch.at(depth.states, depth.ahead)
                offered = log_probs(states, self._head, batch.temperature)
                losses.append(taught(offered, wanted[depth.ahead], falling=falling).mean())
        loss = torch.stack(losses).mean()
        torch.autograd.backward(loss)
        for stepper in self._steppers:
            group = stepper.param_groups[0]
            group["lr"] = group["full_rate"] * share
            nn.utils.clip_grad_norm_(group["params"], 1.0)
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _save(self) -> None:
        state = {
            "student": self.student.state_dict(),
            "steppers": [stepper.state_dict() for stepper in self._steppers],
            "progress": asdict(self.progress),
        }
        unfinished = self.folder / f"{_CHECKPOINT}.part"
        torch.save(state, unfinished)
        unfinished.replace(self.folder / _CHECKPOINT)

    def _restore(self) -> None:
        path = self.folder / _CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, map_location=self.teacher.model.device, weights_only=True)
        self.student.load_state_dict(state["student"])
        for stepper, saved in zip(self._steppers, state["steppers"], strict=True):
            stepper.load_state_dict(saved)
        self.progress = Progress(**state["progress"])


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 pay: always on a GPU, on a CPU only with instructions for it."""
    return device.type == "cuda" or bool(torch.cpu._is_avx512_bf16_supported())


def rate(fraction: float) -> float:
    """The learning rate's share at a fraction of the training: warm-up, flat, cosine to zero."""
    if fraction < WARM_UP:
        return (fraction + 1e-3) / WARM_UP
    if fraction < FLAT_UNTIL:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (fraction - FLAT_UNTIL) / (1 - FLAT_UNTIL)))


def optimizers(student: nn.Module, share: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for what else is trained, at a share of the full rates."""
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim == 2]
    rest = [parameter for parameter in trained if parameter.ndim != 2]
    muon = torch.optim.Muon(
        matrices, lr=MATRIX_RATE * share, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(rest, lr=VECTOR_RATE * share, betas=(0.9, 0.98), weight_decay=0.0)
    for stepper in (muon, adam):
        stepper.param_groups[0]["full_rate"] = stepper.param_groups[0]["lr"]
    return [muon, adam]
