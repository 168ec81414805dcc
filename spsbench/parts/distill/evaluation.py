"""What a draft is worth before any run: acceptance on held-out text, and the speedup that gives here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spsbench.decode import warped
from spsbench.parts.distill.own_text import SAMPLINGS
from spsbench.parts.distill.sampler import Sampled
from spsbench.parts.distill.students import Teacher
from spsbench.parts.distill.training import batches_of
from spsbench.parts.whatif.bench.forwards import Forwards
from spsbench.stats import WhatIf, by_place

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


@torch.inference_mode()
def held_out(
    teacher: Teacher, student: Any, texts: Mapping[str, Sequence[Sampled]], tokens: int, most: int
) -> list[HeldOut]:
    """Measure a student's acceptance on held-out texts."""
    evaluations = []
    for kind, sequences in sorted(texts.items()):
        sums: list[list[float]] = []
        count = 0
        for batch in batches_of({kind: sequences}, tokens, 0, teacher.model.device, torch.float32):
            predictions = student.predict(batch.tokens, batch.features, batch.continued)
            for depth, predicted in enumerate(predictions):
                features, states = batch.at_target(predicted), batch.at(predicted)
                shares = _accepted_shares(teacher, features, states, kind)
                if len(sums) <= depth:
                    sums.append([])
                sums[depth] += shares
                count += len(shares) if depth == 0 else 0
            if count >= most:
                break
        evaluations.append(HeldOut(kind, [sum(values) / len(values) for values in sums if values], count))
    return evaluations


def _accepted_shares(teacher: Teacher, features: Tensor, states: Tensor, kind: str) -> list[float]:
    """sum min(p, q) at n positions from the target's features and the student's states [n, hidden]."""
    head = teacher.model.get_output_embeddings().weight.float()
    rows = teacher.head_rows(torch.float32)
    shares: list[float] = []
    parts = (torch.split(each.float(), _CHUNK) for each in (features, states))
    for of_target, of_student in zip(*parts, strict=True):
        q = warped(of_target @ head.T, SAMPLINGS[kind]).dense()[:, teacher.vocabulary]
        p = warped(of_student @ rows.T, SAMPLINGS[kind]).dense()
        shares += torch.minimum(p, q).sum(-1).tolist()
    return shares


KS = tuple(range(1, 9))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one kind of text."""

    kind: str
    alpha: float
    k: int
    tokens_per_loop: float
    speedup: float
    cost: float


def forecasts(
    measured: Sequence[HeldOut], target: Forwards, weight_share: float, kind: str
) -> list[Forecast]:
    """The best K and its gain, by kind of text.

    A drafted token is charged the target's forward times the draft's share of its weights: what a draft
    costs where reading weights is what a forward waits for. Sampling and Python are not charged, so that a
    run stays somewhat below.

    Args:
        weight_share: bytes that a draft forward reads over the target's.
    """
    from spsbench.models import DFLASH, MEDUSA

    is_parallel = kind in (MEDUSA, DFLASH)

    def cost(k: int) -> float:
        return (1 if is_parallel else k) * weight_share + target.median_s(k + 1) / target.median_s(1)

    best_of_kinds = []
    for text in measured:
        most = len(text.alphas) if is_parallel else max(KS)
        loop = WhatIf(by_place(text.alphas), cost)
        k = loop.best_k(k for k in KS if k <= most)
        worth = Forecast(text.kind, text.alphas[0], k, loop.tokens(k), loop.speedup(k), weight_share)
        best_of_kinds.append(worth)
    return best_of_kinds
