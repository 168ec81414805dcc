"""ArS and SpS with synthetic acceptance: real forwards and loops, with a random draw as the accept test.

It measures the speedup at a given acceptance without a pair that has it. The generated text is
meaningless, and every record says that acceptance is synthetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spsbench.base import Generation, Request, SamplingParams, Speedup
from spsbench.decode import Draft, Rows, Rule, SystemClock, Verdict, expected_acceptance, rows_of
from spsbench.engines import BatchedEngine, EagerEngine, Engine
from spsbench.models import CausalLM
from spsbench.parts.whatif.bench.turns import in_turns
from spsbench.stats import PairedTimes, acceptance_by_name, by_place, speedup_over_prompts

if TYPE_CHECKING:
    import pandas as pd


class SyntheticAcceptance:
    """Accepts the i-th draft token with a given probability, whatever target and draft say.

    Args:
        probabilities: by draft position, that a token is accepted if all before it were; the last one
            holds for all further positions.
    """

    def __init__(self, probabilities: Sequence[float]) -> None:
        self.probabilities = tuple(probabilities)
        self._held = torch.empty(0)

    takes_rows = True

    def __call__(self, q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
        """Accept as planned, in place of ``decode.rejection.accept_draft``.

        The final token follows the target's row.
        """
        k = draft.tokens.shape[0]
        heads = u[:k] < self._chances(k, u)
        accepted = heads.to(torch.int64).cumprod(0).sum()
        return Verdict(accepted, rows_of(q).pick(accepted).draw(u[k:]).squeeze(0))

    def _chances(self, k: int, u: Tensor) -> Tensor:
        """[k] acceptance probabilities on the numbers' device; copied once, not in every loop."""
        if (self._held.device, self._held.dtype) != (u.device, u.dtype) or len(self._held) < k:
            self._held = u.new_tensor([self.at(position) for position in range(k)])
        return self._held[:k]

    def rule(self) -> Rule:
        """The rule as an engine takes it; the expected acceptance stays that of modified rejection."""
        return Rule(self, expected_acceptance)

    def at(self, position: int) -> float:
        """Acceptance probability at a draft position, from 0."""
        return self.probabilities[min(position, len(self.probabilities) - 1)]

    def tokens_per_loop(self, k: int) -> float:
        """Mean number of tokens that a loop emits."""
        return by_place(self.probabilities)(k)


class NullDecoder:
    """Replaces a tokenizer: no token has text or ends an output."""

    eos_ids: frozenset[int] = frozenset()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the empty string."""
        return ""


def forced_engine(
    target: CausalLM, draft: CausalLM | None, k: int, acceptance: SyntheticAcceptance | None
) -> EagerEngine:
    """Build SpS with synthetic acceptance, or ArS without a draft; its tokens have no text."""
    rule = None if acceptance is None else acceptance.rule()
    return EagerEngine(target, draft, k, NullDecoder(), target.device, SystemClock(), rule)


@dataclass(frozen=True, slots=True)
class Forced:
    """Measured times of one arm; the speedup is over ArS."""

    k: int
    ms_per_token: float
    tokens_per_loop: float
    speedup: Speedup | None


def measure_forced(
    engines: Mapping[tuple[int, int], Engine | BatchedEngine],
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    tokens: int,
    rounds: int,
    seed: int = 0,
) -> dict[tuple[int, int], Forced]:
    """Measure arms by batch size and K, 0 among them, in turns: in each round a batch of every arm."""

    def generated(size: int, k: int, number: int) -> tuple[float, int]:
        seeds = [seed + size * (1 + number) + row for row in range(size)]
        requests = [
            Request(tuple(prompt), tokens, (), sampling, seed=each, fixed_length=True) for each in seeds
        ]
        answers = [*_answers(engines[size, k], requests)]
        return sum(made.decode_s for made in answers), sum(len(made.loops or ()) for made in answers)

    made = in_turns({arm: partial(generated, *arm) for arm in engines}, range(-1, rounds), seed)
    results = {}
    for (size, k), runs in made.items():
        seconds, loops = np.array(runs).T
        plain, ones = np.array(made[size, 0])[:, 0], np.ones(len(runs))
        gain = speedup_over_prompts(PairedTimes(plain, ones, seconds, ones)) if k else None
        total = float(len(runs) * size * tokens)
        ms = 1e3 * float(seconds.sum()) / total
        results[size, k] = Forced(k, ms, total / max(float(loops.sum()), 1.0), gain)
    return results


def _answers(engine: Engine | BatchedEngine, requests: Sequence[Request]) -> Iterator[Generation]:
    if not isinstance(engine, BatchedEngine):
        yield from map(engine.generate, requests)
        return
    for _, answer in engine.generate_all(requests):
        if isinstance(answer, FloatingPointError):
            raise answer
        yield answer


def acceptance_of(arms: pd.DataFrame, loops: pd.DataFrame) -> SyntheticAcceptance | None:
    """Return the acceptance of a run's SpS arm with the largest K, by draft position; None without one."""
    seen = arms[(arms["method"] == "sps") & arms["arm"].isin(loops["arm"])]
    if seen.empty:
        return None
    arm = seen.sort_values("k", kind="stable").iloc[-1]
    acceptance = acceptance_by_name(loops[loops["arm"] == arm["arm"]], int(arm["k"]))
    shares = [] if acceptance is None else [p for p in acceptance["conditional_acceptance"] if p is not None]
    return SyntheticAcceptance(shares) if shares else None
