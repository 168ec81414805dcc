"""ArS and SpS with synthetic acceptance: real forwards and loops, with a random draw as the accept test.

It measures the speedup at a given acceptance without a pair that has it. The generated text is
meaningless, and every record says that acceptance is synthetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spsbench.base import Request, SamplingParams, Speedup
from spsbench.decode import Draft, Rows, Rule, SystemClock, Verdict, expected_acceptance, rows_of
from spsbench.engines import EagerEngine, Engine
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
    engines: dict[int, Engine],
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    tokens: int,
    rounds: int,
    seed: int = 0,
) -> list[Forced]:
    """Measure arms by their K, 0 among them, in turns: in each round one sequence of every arm."""

    def generated(k: int, number: int) -> tuple[float, int]:
        request = Request(tuple(prompt), tokens, (), sampling, seed=seed + 1 + number, fixed_length=True)
        made = engines[k].generate(request)
        return made.decode_s, len(made.loops or ())

    made = in_turns({k: partial(generated, k) for k in engines}, range(-1, rounds), seed)
    results = []
    for k, runs in made.items():
        total = float(len(runs) * tokens)
        seconds, loops = map(sum, zip(*runs, strict=True))
        gain = speedup_of([each for each, _ in made[0]], [each for each, _ in runs]) if k else None
        results.append(Forced(k, 1e3 * seconds / total, total / max(loops, 1), gain))
    return results


def speedup_of(plain: Sequence[float], speculating: Sequence[float]) -> Speedup | None:
    """Return the speedup from seconds for equally many tokens, paired by round."""
    tokens = np.ones(len(plain))
    return speedup_over_prompts(PairedTimes(np.array(plain), tokens, np.array(speculating), tokens))


def acceptance_of(arms: pd.DataFrame, loops: pd.DataFrame) -> SyntheticAcceptance | None:
    """Return the acceptance of a run's SpS arm with the largest K, by draft position; None without one."""
    seen = arms[(arms["method"] == "sps") & arms["arm"].isin(loops["arm"])]
    if seen.empty:
        return None
    arm = seen.sort_values("k", kind="stable").iloc[-1]
    acceptance = acceptance_by_name(loops[loops["arm"] == arm["arm"]], int(arm["k"]))
    shares = [] if acceptance is None else [p for p in acceptance["conditional_acceptance"] if p is not None]
    return SyntheticAcceptance(shares) if shares else None
