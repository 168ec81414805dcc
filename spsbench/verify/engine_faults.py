"""Planted faults of an engine around its sampler; those of the sampler itself are in ``controls``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from torch import Tensor

from spsbench.decode import algorithms, rejection
from spsbench.decode.rejection import Weights
from spsbench.models.causal_lm import CausalLM
from spsbench.peers.protocol import Ask
from spsbench.verify.controls import NAMES, planted, planted_everywhere

_sps, _residual = algorithms.sps, rejection.residual


def _at_temperature_1(*given: object) -> object:
    """Verifies with the target's rows at temperature 1, while the draft keeps what was asked for."""
    target, drafter, prompt, k, sampling, *rest = given
    plain = replace(sampling, temperature=1.0)  # type: ignore[type-var]
    return _sps(target, drafter, prompt, k, plain, *rest)  # type: ignore[arg-type]


def _half_residual(q: Weights, p: Weights) -> Weights:
    """Subtracts in float16."""
    if isinstance(q, np.ndarray):
        return _residual(q.astype(np.float16), p.astype(np.float16)).astype(q.dtype)
    return _residual(q.half(), p.half()).to(q.dtype)


def _deaf(
    score: Callable[[Tensor, int], Tensor], stop_ids: frozenset[int]
) -> Callable[[Tensor, int], Tensor]:
    """The target's logits without the tokens that end an output."""
    return lambda tokens, last: score(tokens, last).index_fill(-1, _index(tokens, stop_ids), float("-inf"))


def _index(like: Tensor, ids: frozenset[int]) -> Tensor:
    return like.new_tensor(sorted(ids))


class Requests:
    """What comes between a request and the sampler: nothing, or a fault that outlives a request."""

    def __init__(self, fault: str | None) -> None:
        self._fault = fault
        self._last: list[int] = []

    def __call__(self, ask: Ask) -> Ask:
        """The request as the sampler sees it."""
        if self._fault == "leaked-prompt":
            leaked, self._last = self._last[-len(ask.prompt_ids) // 2 :], ask.prompt_ids
            return replace(ask, prompt_ids=[*leaked, *ask.prompt_ids[len(leaked) :]])
        return replace(ask, seed=0) if self._fault == "reused-seed" else ask


AROUND = (
    "verification-at-temperature-1",
    "float16-residual",
    "swallowed-stop",
    "leaked-prompt",
    "reused-seed",
)
"""Faults of this file, by name."""

FAULTS = (*NAMES, *AROUND)
"""Everything that a served engine can be given."""


@contextmanager
def faulty(name: str | None, target: CausalLM, stop_ids: frozenset[int]) -> Iterator[None]:
    """Run an engine with a fault in place."""
    swaps = {
        "verification-at-temperature-1": (algorithms, "sps", _at_temperature_1),
        "float16-residual": (rejection, "residual", _half_residual),
        "swallowed-stop": (target, "score", _deaf(target.score, stop_ids)),
    }
    with ExitStack() as stack:
        if name in NAMES:
            stack.enter_context(planted(name, target))
            stack.enter_context(planted_everywhere(name))
        elif name in swaps:
            stack.enter_context(patch.object(*swaps[name]))
        yield
