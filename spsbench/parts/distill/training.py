"""Train a student on a corpus: Muon for matrices, AdamW for the rest, in bfloat16 where that is fast.

While the rate is full the student learns the target's distribution; while it falls, to be accepted. The
state is saved as it goes, and a training that was stopped goes on from there.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.parts.distill.own_text import SAMPLINGS
from spsbench.parts.distill.sampler import Sampled
from spsbench.parts.distill.students import Depth, Teacher, log_probs

# Sequences whose lengths differ by less share batches, a different one in every epoch.
_SIMILAR = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one kind, padded at the end.

    Attributes:
        tokens: [b, n+1].
        features: [b, n, hidden] the target's.
        continued: [b, n+1] whether a token was drawn by the target.
        log_masses: [b, n+1] of each drawn token, see ``Sampled``.
    """

    tokens: Tensor
    features: Tensor
    continued: Tensor
    log_masses: Tensor
    temperature: float

    @property
    def learnt(self) -> int:
        """Number of drawn tokens."""
        return int(self.continued.sum())

    def at(self, depth: Depth) -> Tensor:
        """[m, hidden] of a depth's states, those that stand for a drawn token."""
        kept, drawn = self._predicted(depth)
        return depth.states[:, kept][drawn]

    def target_log_probs(self, depth: Depth, head: Tensor) -> Tensor:
        """[m, |vocabulary|] the target's log-probabilities where ``at`` has states.

        Args:
            head: [|vocabulary|, hidden] rows of the target's head.
        """
        logits = F.linear(self.at_target(depth).to(head.dtype), head).float()
        kept, drawn = self._predicted(depth)
        masses = self.log_masses[:, self._positions(depth)[kept] + depth.ahead][drawn]
        return logits / self.temperature - masses.unsqueeze(-1)

    def at_target(self, depth: Depth) -> Tensor:
        """[m, hidden] the target's features that the states of ``at`` predict."""
        kept, drawn = self._predicted(depth)
        return self.features[:, self._positions(depth)[kept] + depth.ahead - 1][drawn]

    def _positions(self, depth: Depth) -> Tensor:
        if depth.at is not None:
            return depth.at
        return torch.arange(depth.states.shape[1], device=depth.states.device)

    def _predicted(self, depth: Depth) -> tuple[Tensor, Tensor]:
        """([n] which positions predict inside the text, [b, those] whether it is a drawn token)."""
        predicted = self._positions(depth) + depth.ahead
        kept = predicted < self.tokens.shape[1]
        return kept, self.continued[:, predicted[kept]]


def batch_of(kind: str, sequences: Sequence[Sampled], device: torch.device, dtype: torch.dtype) -> Batch:
    longest = max(len(sequence.tokens) for sequence in sequences)
    # Few different shapes: kernels are kept by shape, with their own memory.
    longest = -(-(longest - 1) // _SIMILAR) * _SIMILAR + 1
    hidden = sequences[0].features.shape[1]
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    features = torch.zeros(len(sequences), longest - 1, hidden, dtype=dtype)
    continued = torch.zeros(len(sequences), longest, dtype=torch.bool)
    log_masses = torch.zeros(len(sequences), longest)
    for row, sequence in enumerate(sequences):
        count = len(sequence.tokens)
        tokens[row, :count] = sequence.tokens
        features[row, : count - 1] = sequence.features
        continued[row, sequence.start : count] = True
        log_masses[row, sequence.start : count] = sequence.log_masses
    return Batch(
        tokens.to(device),
        features.to(device),
        continued.to(device),
        log_masses.to(device),
        SAMPLINGS[kind].temperature,
    )


def batches_of(
    lessons: Mapping[str, Sequence[Sampled]], tokens: int, seed: int, device: torch.device, dtype: torch.dtype
) -> Iterator[Batch]:
    """Batches of up to so many tokens, padding included, in an order shuffled by seed."""
    shuffler = random.Random(seed)
    groups: list[tuple[str, list[Sampled]]] = []
    for kind, sequences in sorted(lessons.items()):
        mixed = shuffler.sample(list(sequences), len(sequences))
        mixed.sort(key=lambda sequence: len(sequence.tokens) // _SIMILAR)  # stable: mixed among similar ones
        for sequence in mixed:
            last = groups[-1][1] if groups and groups[-1][0] == kind else None
            if last is not None and max(len(s.tokens) for s in (*last, sequence)) * (len(last) + 1) <= tokens:
                last.append(sequence)
            else:
                groups.append((kind, [sequence]))
    shuffler.shuffle(groups)
    for kind, group in groups:
        yield batch_of(kind, group, device, dtype)


def cross_entropy(student: Tensor, target: Tensor) -> Tensor:
    """[n] cross-entropy with the target's probabilities of the student's tokens.

    Args:
        student: [n, m] the student's log-probabilities.
        target: [n, m] the target's log-probabilities; they add up to less than 1 where V is larger than m.
    """
    return -(target.exp() * student).sum(-1)


def rejected(student: Tensor, target: Tensor) -> Tensor:
    """[n] the chance that a drafted token is rejected, 1 - sum min(p, q) (Chen et al. 2023, Theorem 1)."""
    return 1 - torch.minimum(student.exp(), target.exp()).sum(-1)


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
        """Cut the plan to what fits until a moment of ``perf_counter``, once a few updates were timed."""
        self._end = moment

    def run(
        self,
        batches: Callable[[int], Iterable[Batch]],
        evaluate: Callable[[], dict[str, Any]],
        evaluate_every: int,
        tell: Callable[[Progress, float], None],
    ) -> None:
        """Make the remaining updates."""
        saved = time.perf_counter()
        for batch in self._remaining_batches(batches):
            began = time.perf_counter()
            loss = self._loss_of_update(batch)
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

    def _remaining_batches(self, batches: Callable[[int], Iterable[Batch]]) -> Iterator[Batch]:
        epoch, skipped = 0, self.progress.updates
        while self.progress.updates < self.progress.planned:
            for batch in batches(epoch):
                if skipped:
                    skipped -= 1
                elif self.progress.updates < self.progress.planned:
                    yield batch
            epoch += 1

    def _loss_of_update(self, batch: Batch) -> float:
        share = rate(self.progress.updates / self.progress.planned)
        falling = self.progress.updates >= FLAT_UNTIL * self.progress.planned
        losses: list[Tensor] = []
        weights = 0.0
        targets: dict[int, Tensor] = {}
        with torch.autocast(
            self.teacher.model.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16
        ):
            for depth in self.student.predict(batch.tokens, batch.features, batch.continued):
                states = batch.at(depth)
                if not len(states):
                    continue
                if depth.ahead not in targets:
                    targets[depth.ahead] = batch.target_log_probs(depth, self._head)
                offered = log_probs(states, self._head, batch.temperature)
                loss = cross_entropy(offered, targets[depth.ahead])
                if falling:
                    loss = rejected(offered, targets[depth.ahead]) + 0.1 * loss
                losses.append(depth.weight * loss.mean())
                weights += depth.weight
        loss = torch.stack(losses).sum() / weights
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
    """Of matrix products: on a GPU, and on a CPU with instructions for it."""
    return device.type == "cuda" or bool(torch.cpu._is_avx512_bf16_supported())


def rate(fraction: float) -> float:
    """The learning rate's share at a fraction of the training: warm-up, flat, cosine to zero."""
    if fraction < WARM_UP:
        return (fraction + 1e-3) / WARM_UP
    if fraction < FLAT_UNTIL:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (fraction - FLAT_UNTIL) / (1 - FLAT_UNTIL)))


def optimizers(student: nn.Module, share: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices and AdamW for all else that is trained, at a share of the full rates."""
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
