"""Planted faults: samplers that are wrong on purpose, so that every test is shown to fail.

A wrong warper bends the sampler and the law that it is held against alike; a wrong stream or clock
bends what is measured. So these are planted for the whole of a test, not for the sampler alone.

Most are as fast as the real one or faster, and several have shipped in well-known code. A served engine can
be given faults around its sampler, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from spsbench.base import SamplingParams
from spsbench.decode import (
    Draft,
    LanguageModel,
    Phase,
    Stopwatch,
    UniformStream,
    Verdict,
    Weights,
    algorithms,
    draw,
    rejection,
    rows,
    warp,
)
from spsbench.decode import sampling as law
from spsbench.drafters import ModelDrafter
from spsbench.models import CausalLM
from spsbench.parts.verify import draft_faults
from spsbench.parts.verify.effort import FAULTS
from spsbench.runner import turns as schedule

Swap = tuple[Any, str, Any]

# Under other names than in their modules: what is planted replaces those.
_right_warp = law.warp
_right_seed = schedule.derive_seed
_right_numbers = UniformStream.__call__


def _nucleus_at_one(logits: Tensor, params: SamplingParams) -> Tensor:
    """Chooses the nucleus by the probabilities at temperature 1."""
    if params.greedy:
        return _right_warp(logits, params)
    inside = _right_warp(logits, replace(params, temperature=1.0)) > 0
    probs = _right_warp(logits, replace(params, top_p=1.0)) * inside
    return probs / probs.sum(-1, keepdim=True)


def _nucleus_before_top_k(logits: Tensor, params: SamplingParams) -> Tensor:
    """Cuts the nucleus from all tokens, and top-k from what is left."""
    if params.greedy:
        return _right_warp(logits, params)
    outside = _right_warp(logits, replace(params, top_k=0)) == 0
    return _right_warp(logits.masked_fill(outside, float("-inf")), replace(params, top_p=1.0))


def _repeated_block(self: UniformStream, n: int) -> Tensor:
    """Draws every block again from the seed."""
    if self._used + n > len(self._block):
        self._generator.manual_seed(self._generator.initial_seed())
    return _right_numbers(self, n)


def _one_seed(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
    """Gives all arms of a prompt the same seed."""
    return _right_seed(root_seed, example_id, sample_index, "" if purpose != "order" else purpose)


def _untimed_draft() -> Iterator[Swap]:
    """Leaves the draft of each sequence's first loop out of the time."""
    start = Stopwatch.start
    lap = Stopwatch.lap
    first = [True]

    def started(self: Stopwatch) -> None:
        first[0] = True
        start(self)

    def lapped(self: Stopwatch, phase: Phase) -> None:
        if phase == "draft" and first[0]:
            first[0] = False
            self.skip()
        else:
            lap(self, phase)

    yield Stopwatch, "start", started
    yield Stopwatch, "lap", lapped


def _wherever_warp_is_named(wrong: Callable[[Tensor, SamplingParams], Tensor]) -> Iterator[Swap]:
    """A swap for each spsbench module that imported the warper by name, and one for the loops' own."""
    yield rows, "warped", lambda logits, params: rows.TensorRows(wrong(logits, params))
    for name, module in list(sys.modules.items()):
        if name.startswith("spsbench.") and vars(module).get("warp") is _right_warp:
            yield module, "warp", wrong


SHARED: dict[str, Callable[[], Iterable[Swap]]] = {
    "nucleus-at-one": lambda: _wherever_warp_is_named(_nucleus_at_one),
    "nucleus-before-top-k": lambda: _wherever_warp_is_named(_nucleus_before_top_k),
    "repeated-block": lambda: [(UniformStream, "__call__", _repeated_block)],
    "one-seed": lambda: [(schedule, "derive_seed", _one_seed)],
    "untimed-draft": _untimed_draft,
}
"""Name of each fault and what it replaces."""


_verify, _ratio = rejection.accept_draft, rejection.acceptance_probability
_draft = ModelDrafter.draft
_LENIENCE = 0.9


def _inverted_ratio(q: rejection.Weights, p: rejection.Weights) -> rejection.Weights:
    """Accepts with min(1, p/q)."""
    return _ratio(p, q)


def _lecture_test(q: rejection.Weights, p: rejection.Weights) -> rejection.Weights:
    """A lecture's code: reject where q > p and r > 1 - p/q; everything else is accepted."""
    return 1 - (q > p) * _ratio(p, q)


def _lenient(q: rejection.Weights, p: rejection.Weights) -> rejection.Weights:
    """Leviathan's lenience: the draft's probability is scaled down before it is compared."""
    return _ratio(q, _LENIENCE * p)


def _no_residual(q: Tensor, p: Tensor) -> Tensor:
    """Corrects from the target itself in place of (q - p)+."""
    return q


def _bonus_from_draft(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draws the token after full acceptance from the draft's last row."""
    verdict = _verify(q, draft, u)
    if int(verdict.accepted) < len(draft.tokens):
        return verdict
    return Verdict(verdict.accepted, draw(draft.rows(q.shape[-1], q.dtype)[-1], u[-1]))


def _row_off_by_one(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Tests each draft token against the row before its own."""
    return _verify(q.roll(1, 0), draft, u)


def _residual_row(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Corrects from the row after the rejected one."""
    verdict = _verify(q, draft, u)
    n = int(verdict.accepted)
    if n == len(draft.tokens):
        return verdict
    p = draft.rows(q.shape[-1], q.dtype)[n]
    return Verdict(verdict.accepted, draw(rejection.residual(q[n + 1], p), u[-1]))


def _one_uniform(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Tests every draft token with the first one's number."""
    return _verify(q, draft, torch.cat([u[:1].expand(len(draft.tokens)), u[-1:]]))


def _reused(q: Tensor, draft: Draft, u: Tensor, noise: Tensor) -> Verdict:
    """Judges by ``u``, and replaces a rejected token with the number of its place in ``noise``."""
    n = int(_verify(q, draft, u).accepted)
    last = u[-1:] if n == len(draft.tokens) else noise[n : n + 1]
    return _verify(q, draft, torch.cat([u[:-1], last]))


def _test_noise_replaces(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draws the replacement with the number that the rejected token's test had."""
    return _reused(q, draft, u, u)


def _draft_noise(*, tests: bool, replaces: bool) -> Callable[[LanguageModel], Iterable[Swap]]:
    """The numbers that drew the draft serve again for its tests, for the replacement, or for both."""

    def swaps(target: LanguageModel) -> Iterable[Swap]:
        drawn = [torch.empty(0)]

        def drafted(self: ModelDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
            drawn[0] = u
            return _draft(self, tokens, k, u)

        def accepted(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
            numbers = drawn[0][: len(draft.tokens)].to(u)
            tested = torch.cat([numbers, u[-1:]]) if tests else u
            return _reused(q, draft, tested, numbers) if replaces else _verify(q, draft, tested)

        return (ModelDrafter, "draft", drafted), (algorithms, "accept_draft", accepted)

    return swaps


def _unscaled_residual(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draws from the residual as if it added up to 1; what is beyond its mass falls to the last token."""
    verdict = _verify(q, draft, u)
    n = int(verdict.accepted)
    if n == len(draft.tokens):
        return verdict
    weights = rejection.residual(q[n], draft.rows(q.shape[-1], q.dtype)[n])
    token = torch.searchsorted(weights.cumsum(-1), u[-1:], right=True).squeeze(0)
    return Verdict(verdict.accepted, token.clamp(max=int(weights.nonzero().max())))


def _raw_draft(self: ModelDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
    """Draws from the draft's raw probabilities, but passes the warped ones to the acceptance test."""
    pending = torch.tensor(tokens[self.model.length :], device=u.device)
    picks, own_rows = [], []
    for i in range(k):
        logits = self.model.score(pending, last=1).float()
        pending = law.draw(logits.softmax(-1), u[i : i + 1])
        picks.append(pending)
        # A raw token outside the warped support would divide by zero: give it a little.
        own_rows.append(warp(logits, self.sampling).clamp(min=1e-9))
    return Draft(torch.cat(picks), torch.cat(own_rows))


def _constant(self: UniformStream, n: int) -> Tensor:
    """Every uniform number is the same."""
    return torch.full((n,), 0.4, device=self.device)


def _stale(rollback: Callable[[int], None]) -> Callable[[int], None]:
    """Keeps rejected tokens in the target's cache: forgets only when a new sequence begins."""
    return lambda length: rollback(0) if length == 0 else None


def _shifted(score: Callable[[Tensor, int], Tensor], tokens: Tensor, last: int) -> Tensor:
    """Reads a block of drafted tokens as if it began one position later, after its first token twice."""
    if 1 < len(tokens) == last:
        score(tokens[:1], 1)
    return score(tokens, last)


CONTROLS: dict[str, Swap | Callable[[LanguageModel], Iterable[Swap]]] = {
    "inverted-ratio": (rejection, "acceptance_probability", _inverted_ratio),
    "lecture-test": (rejection, "acceptance_probability", _lecture_test),
    "constant-uniform": (UniformStream, "__call__", _constant),
    "no-residual": (rejection, "residual", _no_residual),
    "raw-draft": (ModelDrafter, "draft", _raw_draft),
    "bonus-from-draft": (algorithms, "accept_draft", _bonus_from_draft),
    "row-off-by-one": (algorithms, "accept_draft", _row_off_by_one),
    "residual-row": (algorithms, "accept_draft", _residual_row),
    "one-uniform": (algorithms, "accept_draft", _one_uniform),
    "unscaled-residual": (algorithms, "accept_draft", _unscaled_residual),
    "stale-cache": lambda target: [(target, "rollback", _stale(target.rollback))],
    "wrong-position": lambda target: (
        [(target, "score", partial(_shifted, target.score))] if isinstance(target, CausalLM) else []
    ),
    "lenience": (rejection, "acceptance_probability", _lenient),
    "draft-noise-replaces": _draft_noise(tests=False, replaces=True),
    "draft-noise-tests": _draft_noise(tests=True, replaces=False),
    "test-noise-replaces": (algorithms, "accept_draft", _test_noise_replaces),
    "one-noise": _draft_noise(tests=True, replaces=True),
    **{name: (ModelDrafter, "draft", draft) for name, draft in draft_faults.FAULTS.items()},
}
"""Name of each wrong sampler and what it replaces, given the target model that is sampled."""


@contextmanager
def planted(name: str | None, target: LanguageModel) -> Iterator[None]:
    """Run with a wrong sampler in place; None, or a fault outside of the sampler, plants nothing."""
    fault = None if name is None or name in SHARED else CONTROLS[name]
    with _swapped([] if fault is None else fault(target) if callable(fault) else [fault]):
        yield


@contextmanager
def planted_everywhere(name: str | None) -> Iterator[None]:
    """Run whole tests with a fault in the code that they share with the sampler."""
    with _swapped(SHARED[name]() if name in SHARED else ()):
        yield


@contextmanager
def _swapped(swaps: Iterable[Swap]) -> Iterator[None]:
    with ExitStack() as stack:
        for place, attribute, wrong in list(swaps):
            stack.enter_context(patch.object(place, attribute, wrong))
        yield


# --- an engine around its sampler ---

_verifier, _right_residual = algorithms.TargetVerifier, rejection.residual


def _at_temperature_1(target: Any, sampling: SamplingParams, *rest: Any) -> Any:
    """Verifies with the target's rows at temperature 1, while the draft keeps what was asked for."""
    return _verifier(target, replace(sampling, temperature=1.0), *rest)


def _half_residual(q: Weights, p: Weights) -> Weights:
    """Subtracts in float16."""
    if isinstance(q, np.ndarray):
        return _right_residual(q.astype(np.float16), p.astype(np.float16)).astype(q.dtype)
    return _right_residual(q.half(), p.half()).to(q.dtype)


def _deaf(target: CausalLM, stop_ids: frozenset[int]) -> Callable[[Tensor, int], Tensor]:
    """Scores as the target does, without the tokens that end an output."""
    score = target.score
    return lambda tokens, last: score(tokens, last).index_fill(
        -1, tokens.new_tensor(sorted(stop_ids)), float("-inf")
    )


_AROUND: dict[str, Callable[[CausalLM, frozenset[int]], Swap]] = {
    "verification-at-temperature-1": lambda target, stop_ids: (
        algorithms,
        "TargetVerifier",
        _at_temperature_1,
    ),
    "float16-residual": lambda target, stop_ids: (rejection, "residual", _half_residual),
    "swallowed-stop": lambda target, stop_ids: (target, "score", _deaf(target, stop_ids)),
}
_OF_REQUESTS = ("leaked-prompt", "reused-seed")
"""These change requests: see ``served``."""

ENGINE_FAULTS = (*FAULTS, *_AROUND, *_OF_REQUESTS)
"""Everything that a served engine can be given."""


@contextmanager
def faulty(name: str | None, target: CausalLM, stop_ids: frozenset[int]) -> Iterator[None]:
    """Run an engine with a fault in place, or with a way to draft that only looks like one."""
    if name in draft_faults.RIGHT:
        with _swapped([(ModelDrafter, "draft", draft_faults.RIGHT[name])]):
            yield
    elif name in _AROUND:
        with _swapped([_AROUND[name](target, stop_ids)]):
            yield
    elif name in _OF_REQUESTS:
        yield
    else:
        with planted(name, target), planted_everywhere(name):
            yield
