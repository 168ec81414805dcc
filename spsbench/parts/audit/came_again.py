"""Requests that come again behind another one: A, B, A, where B begins as A does and ends otherwise.

An engine that keeps what it computed for a prompt may answer B, or A's second request, from a state that is
not its own. Asked greedily, one token shows it: the target's row behind the engine's own text says which
token is the most probable, and by how much. A stands in no other request, so that its first answer comes from
nothing that was kept and is the control: only where every first answer is right is a later one judged, and
only where these could not as well be drawn, by an engine that does not hear that it is to be greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from spsbench.base import Answer, Ask, SamplingParams
from spsbench.engines import own_entries
from spsbench.parts.audit.free_evidence import MOST, Numbers
from spsbench.parts.audit.messages import evidence as messages
from spsbench.parts.external.engine import sampling_of
from spsbench.parts.verify.effort import Finding, skipped

TEST: Final = "again"
"""The finding's name."""

TURNS: Final = 3
"""Requests of a round: A, B and A again."""

GREEDY: Final = SamplingParams(greedy=True)
"""How these requests are sampled, whatever the others are."""

_FINE = 0.05  # logits by which a token may lie below the best, in float32
_DRAWN = 1e-3  # chance of all right first answers at temperature 1, above which they show no greedy engine
_LONGEST = 128  # tokens of a prompt: several blocks of most caches
_LEAST = 4  # tokens of a prompt that has a beginning and an end
_SHARED = 3 / 4  # of A, with which B begins


def _shared(prompt: Sequence[int]) -> int:
    return max(1, int(_SHARED * len(prompt)))


def _other_end(once: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """A prompt's beginning with another one's end, or its beginning where a template ends both."""
    cut = _shared(once)
    left = len(once) - cut
    ends = (other[-left:], other[:left], once[cut:][::-1])
    return next(((*once[:cut], *end) for end in ends if end != once[cut:]), None)


def rounds(prompts: Sequence[Sequence[int]], ask: Ask, count: int, tokens: int = 16) -> list[Ask]:
    """Return up to ``count`` greedy requests, A, B, A of each of the prompts in turn.

    A lacks the first token of its prompt, so that nothing kept of whole prompts begins as it does.
    """
    greedy = sampling_of(GREEDY)
    most = min(tokens, ask.max_new_tokens)
    short = replace(ask, max_new_tokens=most, sampling=greedy, logprobs=False, seed=None)
    asks = list[Ask]()
    long = [tuple(each[1:][-_LONGEST:]) for each in prompts if len(each) > _LEAST]
    distinct = [*dict.fromkeys(long)]
    for number, once in enumerate(distinct[: count // TURNS]):
        between = _other_end(once, distinct[number - 1])
        if between is None:
            continue
        asks += [replace(short, prompt_ids=list(prompt)) for prompt in (once, between, once)]
    return asks


class CameAgain:
    """Takes the answers in their order and says whether a later one is wrong where the first was right.

    Args:
        exact: whether the engine computes in float32.
    """

    def __init__(self, *, exact: bool) -> None:
        self._slack = _FINE if exact else MOST
        self._known = set[tuple[int, ...]]()
        self._first, self._later = list[float](), list[float]()
        self._chance = 1.0  # that a draw at temperature 1 is the best token wherever nothing is kept

    def add(self, ask: Ask, answer: Answer, logits: Tensor) -> None:
        """Add an answer with the target's logits [n, V] behind each of its tokens."""
        if answer.retokenised or not answer.output_ids:
            return
        tokens = logits.new_tensor(answer.output_ids).long()
        below = float((logits.amax(-1) - own_entries(logits, tokens)).max())
        prompt = tuple(ask.prompt_ids)
        cut = _shared(prompt)
        known = any(prompt[:cut] == each[:cut] for each in self._known)
        (self._later if known else self._first).append(below)
        if not known:
            self._chance *= float(logits.log_softmax(-1).amax(-1).sum().exp())
        self._known.add(prompt)

    def finding(self) -> Finding:
        if not self._first or not self._later:
            return skipped(TEST, messages.NOTHING_REPEATED)
        if max(self._first) > self._slack:
            return skipped(TEST, messages.FIRST_WRONG)
        wrong = sum(below > self._slack for below in self._later)
        if wrong and self._chance > _DRAWN:
            return skipped(TEST, messages.FIRST_TOO_CERTAIN)
        repeats = messages.GreedyRepeats(len(self._later), wrong)
        numbers: Numbers = {"later": repeats.later, "wrong": wrong, "logits_below_best": max(self._later)}
        return Finding(TEST, not wrong, repeats, f"{self._slack:g} of a logit", numbers)
