"""What a draft is worth on this machine, before any run: acceptance on held-out text, forwards timed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.bench.forwards import Forwards
from spsbench.distill.acceptance import HeldOut

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
    """The best K and what it gives, by kind of text.

    A drafted token is charged the target's forward times the draft's share of its weights: what a draft
    costs where reading weights is what a forward waits for. Sampling and Python are not charged, so that a
    run stays somewhat below.

    Args:
        weight_share: bytes that a draft forward reads over the target's.
    """
    from spsbench.models import MEDUSA

    found = []
    for text in measured:
        best = Forecast(text.kind, text.alpha, 0, 1.0, 1.0, weight_share)
        most = len(text.alphas) if kind == MEDUSA else max(KS)
        for k in (k for k in KS if k <= most):
            forwards = 1 if kind == MEDUSA else k
            cost = forwards * weight_share + target.median_s(k + 1) / target.median_s(1)
            tokens = text.tokens_per_loop(k)
            if tokens / cost > best.speedup:
                best = Forecast(text.kind, text.alpha, k, tokens, tokens / cost, weight_share)
        found.append(best)
    return found
