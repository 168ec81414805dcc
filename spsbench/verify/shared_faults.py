"""Faults in code that the sampler shares with the tests and with every arm.

A wrong warper bends the sampler and the law that it is held against alike; a wrong stream or clock
bends what is measured. So these are planted for the whole of a test, not for the sampler alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from spsbench.decode import sampling as law
from spsbench.decode.clock import Phase, Stopwatch
from spsbench.decode.uniforms import UniformStream
from spsbench.records import SamplingParams
from spsbench.runner import schedule

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
    """Draws every block from the seed anew."""
    if self._used + n > len(self._block):
        self._generator.manual_seed(self._generator.initial_seed())
    return _right_numbers(self, n)


def _one_seed(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
    """Gives all arms of a prompt the same seed."""
    return _right_seed(root_seed, example_id, sample_index, "" if purpose != "order" else purpose)


def _untimed_draft() -> Iterator[Swap]:
    """Leaves the draft of each sequence's first loop out of the time."""
    start, lap, first = Stopwatch.start, Stopwatch.lap, [True]

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
    """One swap for each module of ours that imported the warper by name."""
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
