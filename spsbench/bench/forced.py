"""ArS and SpS with forced acceptance: real forwards, real loops, and coins in place of the test.

What a machine makes of an acceptance can so be measured without a pair that has it. The text means
nothing, and every record says that acceptance is synthetic.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spsbench.analysis.acceptance import acceptance
from spsbench.analysis.speedup import PairedTimes, speedup
from spsbench.core.modified_rejection import expected_acceptance
from spsbench.core.rejection import Draft, Verdict
from spsbench.core.rule import Rule
from spsbench.core.sampling import draw
from spsbench.engines.engine import Engine
from spsbench.records import Request, SamplingParams, Speedup

if TYPE_CHECKING:
    import pandas as pd


class Coins:
    """Accepts the i-th draft token with a given probability, whatever target and draft say.

    Args:
        probabilities: by draft position, that a token is accepted if those before it were; the last
            holds for all behind it.
    """

    def __init__(self, probabilities: Sequence[float]) -> None:
        self.probabilities = tuple(probabilities)

    def __call__(self, q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """In place of ``spsbench.core.rejection.accept_draft``; the token behind is the target's own."""
        k = draft.tokens.shape[0]
        heads = u[:k] < u.new_tensor([self.at(position) for position in range(k)])
        accepted = heads.to(torch.int64).cumprod(0).sum()
        row = q.index_select(0, accepted.unsqueeze(0))
        return Verdict(accepted, draw(row, u[k:]).squeeze(0))

    def rule(self) -> Rule:
        """As an engine takes it; what is expected stays that of modified rejection."""
        return Rule(self, expected_acceptance)

    def at(self, position: int) -> float:
        """Probability at a draft position, from 0."""
        return self.probabilities[min(position, len(self.probabilities) - 1)]

    def expected_tokens(self, k: int) -> float:
        """Tokens a loop emits on average."""
        kept = np.cumprod([self.at(position) for position in range(k)])
        return 1.0 + float(kept.sum())


class NoText:
    """Stands where a tokenizer would: tokens without text or end."""

    eos_ids: frozenset[int] = frozenset()

    def decode(self, ids: Sequence[int]) -> str:
        """Nothing."""
        return ""


@dataclass(frozen=True, slots=True)
class Forced:
    """What came of one arm.

    Attributes:
        k: lookahead; 0 is ArS.
        ms_per_token: decoding.
        tokens_per_loop: emitted, on average.
        speedup: over ArS, paired by round; None for ArS.
    """

    k: int
    ms_per_token: float
    tokens_per_loop: float
    speedup: Speedup | None


def measure_forced(
    engines: dict[int, Engine],
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    tokens: int,
    rounds: int,
    seed: int = 0,
) -> list[Forced]:
    """Take turns: in each round one sequence of every arm, in shuffled order.

    Args:
        engines: by K, 0 for ArS.
        prompt: token ids.
        sampling: of both models.
        tokens: length of each sequence.
        rounds: at least 2 for an interval.
        seed: of uniform numbers and order.
    """
    shuffler, order = random.Random(seed), list(engines)
    seconds: dict[int, list[float]] = {k: [] for k in engines}
    loops: dict[int, int] = dict.fromkeys(engines, 0)
    for number in range(-1, rounds):  # the first is thrown away
        shuffler.shuffle(order)
        for k in order:
            request = Request(tuple(prompt), tokens, (), sampling, seed=seed + 1 + number, fixed_length=True)
            generation = engines[k].generate(request)
            if number >= 0:
                seconds[k].append(generation.decode_s)
                loops[k] += len(generation.loops or ())
    return [_result(k, seconds, loops[k], tokens) for k in engines]


def _result(k: int, seconds: dict[int, list[float]], loops: int, tokens: int) -> Forced:
    own, length = np.array(seconds[k]), np.full(len(seconds[k]), float(tokens))
    found = speedup(PairedTimes(np.array(seconds[0]), length, own, length)) if k else None
    total = len(own) * tokens
    return Forced(k, 1e3 * float(own.sum()) / total, total / max(loops, 1), found)


def coins_of(samples: pd.DataFrame, loops: pd.DataFrame) -> Coins | None:
    """The acceptance of a run's SpS arm with the largest K, by draft position; None if it has none.

    Args:
        samples, loops: the run's tables.
    """
    arms = samples[samples["method"] == "sps"]
    if arms.empty or loops.empty:
        return None
    arm = arms.sort_values("k", kind="stable").iloc[-1]
    found = acceptance(loops[loops["arm"] == arm["arm"]], int(arm["k"]))
    shares = [] if found is None else [p for p in found["conditional_acceptance"] if p is not None]
    return Coins(shares) if shares else None
