"""Two bets on faults of an engine around its sampler, which a single row does not show.

Both are likelihood ratios against the target, so they may be evaluated after every text; their sums add up
like those of ``spsbench.decode.evidence``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from torch import Tensor

from spsbench.decode.evidence import Sums

SHARE = 0.5
"""Of the alternative in the mixture with the target that is bet on."""


class Bets:
    """Bets on one engine's texts, in the order in which they were written.

    Args:
        stop_ids: tokens that end an output.
    """

    def __init__(self, stop_ids: Collection[int]) -> None:
        self._stop_ids = sorted(stop_ids)
        self._last: dict[tuple[int, ...], Sequence[int]] = {}

    def sums(self, prompt: tuple[int, ...], tokens: Sequence[int], q: Tensor) -> Sums:
        """Log e-values of one text.

        Args:
            prompt: token ids.
            tokens: what followed, n ids.
            q: [n, V] the target's warped rows.
        """
        own = q.gather(-1, q.new_tensor(tokens).long().unsqueeze(-1)).squeeze(-1).tolist()
        last, self._last[prompt] = self._last.get(prompt, ()), tokens
        return {
            "log_e_repeated": _repeated(last, tokens, own),
            "log_e_stop_left_out": self._stop_left_out(tokens, q, own),
        }

    def _stop_left_out(self, tokens: Sequence[int], q: Tensor, own: Sequence[float]) -> float:
        """That tokens which end an output are never drawn."""
        stops = q[:, self._stop_ids].double().sum(-1).tolist()
        total = 0.0
        for token, stop, probability in zip(tokens, stops, own, strict=True):
            if not 0 < stop < 1 or probability <= 0:
                continue
            ratio = 0.0 if token in self._stop_ids else 1 / (1 - stop)
            total += math.log(1 - SHARE + SHARE * ratio)
        return total


def _repeated(last: Sequence[int], tokens: Sequence[int], own: Sequence[float]) -> float:
    """That a text goes on as the last one after the same prompt did, as long as it has so far."""
    total = 0.0
    for before, token, probability in zip(last, tokens, own, strict=False):
        if probability <= 0:
            break
        total += math.log(1 - SHARE + (SHARE / probability if token == before else 0.0))
        if token != before:
            break
    return total
