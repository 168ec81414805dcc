"""How many of a student's tokens its target would accept on held-out text, and the speedup that gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spsbench.decode.sampling import warp
from spsbench.distill.batches import batches_of
from spsbench.distill.prompts import SAMPLINGS
from spsbench.distill.sampler import Sampled
from spsbench.distill.teacher import Teacher

_CHUNK = 256


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Acceptance on held-out text of one kind, under the law that the text was sampled by.

    Attributes:
        alphas: by depth the mean of sum min(p, q) (Chen et al. 2023, Theorem 1); a small model has one depth.
    """

    kind: str
    alphas: list[float]
    tokens: int

    @property
    def alpha(self) -> float:
        """Of the first drafted token."""
        return self.alphas[0]

    def tokens_per_loop(self, k: int) -> float:
        """Expected tokens of a loop of K drafted ones; the last depth stands for all that follow."""
        expected = kept = 1.0
        for depth in range(k):
            kept *= self.alphas[min(depth, len(self.alphas) - 1)]
            expected += kept
        return expected


@torch.inference_mode()
def held_out(
    teacher: Teacher, student: Any, texts: Mapping[str, Sequence[Sampled]], tokens: int, most: int
) -> list[HeldOut]:
    """Measure a student."""
    found = []
    for kind, sequences in sorted(texts.items()):
        sums: list[list[float]] = []
        count = 0
        for batch in batches_of({kind: sequences}, tokens, 0, teacher.model.device, torch.float32):
            for depth, predicted in enumerate(student.predict(batch.tokens, batch.features)):
                features = batch.at_target(predicted.ahead)
                states = batch.at(predicted.states, predicted.ahead)
                shares = _shares(teacher, features, states, kind)
                if len(sums) <= depth:
                    sums.append([])
                sums[depth] += shares
                count += len(shares) if depth == 0 else 0
            if count >= most:
                break
        found.append(HeldOut(kind, [sum(values) / len(values) for values in sums if values], count))
    return found


def _shares(teacher: Teacher, features: Tensor, states: Tensor, kind: str) -> list[float]:
    """Sum min(p, q) at n positions, from the target's features and the student's states [n, hidden]."""
    head = teacher.model.get_output_embeddings().weight.float()
    rows = teacher.head_rows(torch.float32)
    shares: list[float] = []
    for wanted, offered in _chunks(features.float(), states.float()):
        q = warp(wanted @ head.T, SAMPLINGS[kind])[:, teacher.vocabulary]
        p = warp(offered @ rows.T, SAMPLINGS[kind])
        shares += torch.minimum(p, q).sum(-1).tolist()
    return shares


def _chunks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    return zip(*(torch.split(tensor, _CHUNK) for tensor in tensors), strict=True)
