"""What `simulate` says of formulas, simulated loops and the law of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base import Interval, Message
from spsbench.report import interval

FORMULA_ALONE = "A prediction, not a measurement: acceptance is assumed independent, verifying K tokens free."
SYNTHETIC = "Synthetic: no model was run, and a loop takes c for each draft token and 1 for the target."
"""What is to be known of every figure here."""
SPEEDUP_CAPTION = (
    "Points: simulated loops with 95% intervals. Dashed: (1 - alpha^(K+1)) / (1 - alpha), which takes the "
    "tests of a loop as independent. Solid: exact for these tables."
)
FOLLOWS = "No sign that they do not follow the target."


class Figure1Caption(Message):
    tokens: int
    sentence = (
        "Left: time for {tokens} tokens, mean and standard deviation over simulated sequences. "
        "Middle: accepted tokens + 1 of a loop over K + 1, with 95% intervals. Right: 1 + K c. K = 0 is "
        "ArS. No model was run: a loop's time is c for each draft token and 1 for the target."
    )


def _speedup(drawn: Interval | None) -> str:
    return "1x, ArS" if drawn is None else interval(drawn, "x")


class BestWithoutFormula(Message):
    """``simulated`` is the speedup at the best K; None where that is ArS."""

    best_k: int | None
    simulated: Interval | None

    def __str__(self) -> str:
        drawn = _speedup(self.simulated)
        return (
            f"Best K: {self.best_k} simulated ({drawn}); tokens are judged together, which no formula covers."
        )


class BestK(Message):
    """By the formula and simulated; a speedup is None where ArS is fastest."""

    planned_k: int
    planned: float | None
    best_k: int | None
    simulated: Interval | None

    def __str__(self) -> str:
        theory = "1x, ArS" if self.planned is None else f"{self.planned:.2f}x"
        drawn = _speedup(self.simulated)
        return f"Best K: {self.planned_k} by the formula ({theory}), {self.best_k} simulated ({drawn})."


class LeviathansBound(Message):
    accepts: float
    cost: float
    minimum_gain: float | None

    def __str__(self) -> str:
        if self.accepts <= self.cost:
            bound = f"alpha {self.accepts:.3f} is not above c {self.cost:.3f}; no K gains."
        else:
            bound = f"the best K gains at least (1 + alpha) / (1 + c) = {self.minimum_gain:.2f}x."
        return f"Leviathan's bound: {bound}"


class FormulaFits(Message):
    """p-values of all K together."""

    formula: float
    exact: float | None

    def __str__(self) -> str:
        exact = "" if self.exact is None else f", the exact law with p = {self.exact:.2g}"
        return f"All K together: the formula fits with p = {self.formula:.2g}{exact}."


class LoopsEnumerated(Message):
    """``apart``: total variation from the target's law; 0 where it is that law."""

    k: int
    tokens_per_loop: float
    share_of_optimum: float
    apart: float

    def __str__(self) -> str:
        law = f"NOT the target's law, total variation {self.apart:.3g}" if self.apart else "the target's law"
        return (
            f"Every loop enumerated (K={self.k}): {self.tokens_per_loop:.3f} tokens per loop, "
            f"{self.share_of_optimum:.1%} of what the best lossless rule gains of the same drafts; {law}."
        )


class CellSeen(Message):
    context: int
    token: int
    seen: int
    expected: float
    sentence = "token {token} in context {context} {seen} times, {expected:.0f} expected"


class TokensTested(Message):
    """``worst`` is empty where the tokens follow the target; ``excuse`` says why they need not."""

    tokens: int
    g: float
    freedom: int
    p_value: float
    leakage: tuple[float, float, float] | None
    log10_e_value: float
    worst: Sequence[CellSeen] = ()
    excuse: str = ""

    def __str__(self) -> str:
        tested = f"G = {self.g:.0f} on {self.freedom} degrees of freedom, p = {self.p_value:.2g}"
        if self.leakage is not None:
            share, low, high = self.leakage
            tested += f"; leakage {share:.1%} [{low:.1%}, {high:.1%}]"
        outcome = FOLLOWS
        if self.worst:
            cells = ", ".join(map(str, self.worst))
            outcome = f"They do NOT follow the target{self.excuse and f' ({self.excuse})'}: {cells}."
        return f"{self.tokens:,} tokens: {tested}; e-value 10^{self.log10_e_value:.1f}. {outcome}"
