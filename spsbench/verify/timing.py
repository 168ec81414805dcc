"""Is every second of decoding accounted for? Both arms under a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from spsbench.decode.clock import FakeClock
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.decode.rules import Rule
from spsbench.decode.stopping import TextDecoder
from spsbench.engines.local import EagerEngine
from spsbench.law.enumeration import TableModel, random_rows
from spsbench.records import Generation, Loop, Request, SamplingParams
from spsbench.verify.finding import Finding

# Powers of two: sums of them are exact, and identify which of them is missing.
TARGET_S, DRAFT_S, TICK_S = 64.0, 4.0, 2.0**-10
SIZE = 4
_TOKENS = 24


class Timed(TableModel):
    """A table whose forwards take a known time.

    Args:
        forward_s: seconds of a forward.
    """

    def __init__(self, clock: FakeClock, forward_s: float, seed: int) -> None:
        super().__init__(random_rows(SIZE, seed), SIZE)
        self._clock, self._forward_s = clock, forward_s

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self._clock.advance(self._forward_s)
        return super().score(tokens, last)


class TimedDrafter:
    """A drafter that takes as long as a draft model would: a forward to begin, and K to draft."""

    def __init__(self, drafter: Drafter, clock: FakeClock) -> None:
        self._drafter, self._clock = drafter, clock

    def begin(self, prompt: Sequence[int]) -> None:
        self._clock.advance(DRAFT_S)
        self._drafter.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        self._clock.advance(k * DRAFT_S)
        return self._drafter.draft(tokens, k, u)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        self._drafter.observe(tokens, accepted)


def booked_time(
    k: int, decoder: TextDecoder, make: Callable[[], Drafter] | None = None, rule: Rule | None = None
) -> Finding:
    """Compare what the engine booked in ArS and SpS with what passed, phase by phase and loop by loop."""
    wrong: list[str] = []
    loops = 0
    for lookahead in (0, k):
        generation = timed(lookahead, decoder, make, rule)
        loops += len(generation.loops or [])
        wrong += [f"{'SpS' if lookahead else 'ArS'}, {text}" for text in differences(generation, lookahead)]
    return Finding(
        "clock",
        not wrong,
        wrong[0] if wrong else f"every second of {loops} loops is booked, each in its phase",
        "a lap, a forward or a draft left out of an arm's time, booked twice or in another phase; on tables",
        {"loops": loops, "differences": len(wrong)},
    )


def timed(
    k: int, decoder: TextDecoder, make: Callable[[], Drafter] | None = None, rule: Rule | None = None
) -> Generation:
    """An output of the eager engine on tables, under the clock; ArS if ``k`` is 0."""
    clock, cpu = FakeClock(TICK_S), torch.device("cpu")
    target, draft = Timed(clock, TARGET_S, seed=1), Timed(clock, DRAFT_S, seed=2) if k else None
    own = (lambda sampling: TimedDrafter(make(), clock)) if k and make else None
    engine = EagerEngine(target, draft, k, decoder, cpu, clock, rule, own)
    return engine.generate(Request((0, 1), _TOKENS, (), SamplingParams(), seed=0, fixed_length=True))


def differences(generation: Generation, k: int) -> Iterator[str]:
    """What is booked otherwise than it passed, in words; nothing if all is right.

    A look at the clock takes a tick. A loop has four laps, or five with a draft: ``other`` before and
    after, and one for each phase between. Around the loops lie two looks more.
    """
    loops = generation.loops or []
    for number, loop in enumerate(loops):
        for phase, seconds in _expected(k).items():
            if getattr(loop, phase) != seconds:
                yield f"loop {number}: {phase} {getattr(loop, phase):g} where {seconds:g} passed"
    yield from _of_sums(generation, loops, k)


def _expected(k: int) -> dict[str, float]:
    """Seconds of a loop by phase."""
    phases = {
        "draft_s": k * DRAFT_S + TICK_S if k else 0.0,
        "verify_s": TARGET_S + TICK_S,
        "sample_s": TICK_S,
        "other_s": 2 * TICK_S,
    }
    return phases | {"loop_s": sum(phases.values())}


def _of_sums(generation: Generation, loops: list[Loop], k: int) -> Iterator[str]:
    passed = sum(loop.loop_s for loop in loops) + 2 * TICK_S
    if generation.decode_s != passed:
        yield f"decoding {generation.decode_s:g} where the loops and its edges are {passed:g}"
    read = TARGET_S + (DRAFT_S if k else 0.0) + TICK_S
    if generation.prefill_s != read:
        yield f"prefill {generation.prefill_s:g} where {read:g} passed"
