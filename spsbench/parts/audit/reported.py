"""Bets on reported drafts: whether what was drawn decided that a draft stands.

Be h what stands before a loop, p the draft's row there and D whether the loop reports a draft. An engine is
right under any law of D that reads h, rows and numbers of its own; then d, the first drafted token, follows p
also given D. One that withdraws drafts which stayed short reads the row after d: with s(d) the probability
that a draft beginning with d stands, a reported one follows

    p(d) s(d) / Z,    Z = sum of p(d) s(d),

whose ratio to p(d), s(d) / Z, has mean 1 under p. As Z depends on nothing that is drawn later, the product of
``1 - share + share * ratio`` over loops is a martingale for every right engine, and the mean over thresholds
and cuts is one (Ville 1939: 1,000 is reached with odds of 1 in 1,000). Where the draft's row is cut to its
best tokens, s is 0 beyond the cut: the mean is then 1 if d comes from the cut row, and less if from p.

A draft that needs three tokens needs two as well: s is that of the second token's row, which takes one
forward of the draft for each first token.

A reported draft of such an engine says log(1 / Z) nats. What does not show it:

* The number of drafted tokens alone: its law is free in a right engine, a ratio of it has no mean.
* The text given D, which follows the target in a right engine: it says a tenth of what d does
  (``benchmarks/reported_drafts.py`` at commit d3b7459b), and no engine reports lengths of drafts without
  their tokens.
* Totals of a request: they depend on later loops, which depend on the token that is bet on.

The text alone, at chosen contexts, needs no report: see ``contexts``. A drawn token that is left out itself
is in ``bet_table``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spsbench.base import Floats
from spsbench.parts.audit.contexts import Forks, Standing
from spsbench.parts.audit.messages.faults import FIRST_DRAFTED, WithdrawnAfterDraw
from spsbench.parts.external.engine import add_up

_SHARE = 0.9
_SURE = 0.95  # of the draft's best token, beyond which a draft's first token says next to nothing
_GRANTED = 0.1  # least ratio that a draft counts with against an alternative: rounding may move a threshold
_LOOPS = 2  # of a text are bet on: what may follow takes forwards
_KEPT = 4096  # places whose laws are kept: few contexts come again and again


class ReportedDrafts:
    """One e-process over the first drafted tokens of loops, in the order in which they came."""

    def __init__(self, forks: Forks) -> None:
        self._forks, self._fits = forks, True
        self._stakes = np.zeros(len(forks.laws))
        self._logs = np.zeros(len(forks.laws))
        self._known: dict[tuple[int, ...], Standing] = {}
        self.drafts = 0  # that were bet on

    def add(
        self,
        prompt: tuple[int, ...],
        tokens: Sequence[int],
        p: Floats,
        accepted: Sequence[int],
        drafted: Sequence[Sequence[int]],
        free: int,
    ) -> None:
        """Add a text with the draft's rows [n, V] and its loops, which come after ``free`` tokens.

        Texts are left out from the first on whose counts do not add up: which token was drafted where is not
        known there.
        """
        self._fits = self._fits and add_up([*accepted], len(tokens) - free)
        place, bets = free, 0
        for count, ids in zip(accepted, drafted, strict=True):
            if not self._fits or place >= len(tokens) or bets == _LOOPS:
                return
            # What is bet on is chosen by what stands before the draft, and not by the draft.
            if ids and min(self._forks.thresholds) <= p[place].max() <= _SURE:
                standing = self._standing((*prompt, *tokens[:place]), p[place])
                ratios = standing.ratios(ids[0], float(p[place][ids[0]]))
                self._stakes += np.log1p(_SHARE * (ratios - 1))
                self._logs += np.log(np.maximum(ratios, _GRANTED))
                self.drafts, bets = self.drafts + 1, bets + 1
            place += count + 1

    def _standing(self, ids: tuple[int, ...], p: Floats) -> Standing:
        standing = self._known.get(ids) or self._forks.standing(ids, p)
        if len(self._known) < _KEPT:
            self._known[ids] = standing
        return standing

    @property
    def log_e(self) -> float:
        """Log of the e-value after all texts so far."""
        return float(np.logaddexp.reduce(self._stakes)) - math.log(len(self._stakes))

    def by_threshold(self) -> dict[float, float]:
        """By threshold the log of how probable these drafts are where those that stayed short are withdrawn,
        relative to a right engine; of what they may be drawn from the most probable.

        Of an engine that does withdraw them it is below log 1/20 at its threshold with odds of 1 in 20.
        """
        thresholds = self._forks.thresholds
        logs = self._logs.reshape(-1, len(thresholds)).max(0)
        return dict(zip(thresholds, logs.tolist(), strict=True))

    def leading(self) -> tuple[str, str]:
        """Where the e-value comes from, and what is wrong there."""
        how, at = self._forks.laws[int(self._stakes.argmax())]
        return FIRST_DRAFTED, str(WithdrawnAfterDraw(how, at))
