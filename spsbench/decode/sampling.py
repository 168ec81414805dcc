"""From logits to the distribution that is sampled, and by uniform numbers from a distribution to a token.

``warp`` is the definition, for target and draft in every arm, so that the two distributions that modified
rejection sampling compares are the two that tokens are drawn from. ``rows.warped`` is the same law to the
bit, faster on a CPU. Generic in dtype: float32 in runs (half precision is widened), float64 in exact tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from spsbench.base.records import Processing, SamplingParams


def warp(logits: Tensor, params: SamplingParams) -> Tensor:
    """Turn logits into the probabilities that sampling uses.

    Temperature, then top-k, then nucleus, as the paper allows before its rejection scheme ("we can
    modify the probabilities accordingly"). Greedy is the one-hot row of the largest logit. Tokens
    that tie at the edge of top-k or of the nucleus are all kept, so that the law does not depend on
    the order of the vocabulary.

    Args:
        logits: [n, V], any floating dtype.
        params: temperature, top_k, top_p, greedy.

    Returns:
        [n, V] probabilities; each row sums to 1; at least float32. NaN where the logits hold one.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if params.greedy:
        best = logits.max(-1, keepdim=True)
        # 1, or NaN where the logit is none, so that a broken model is detected.
        return torch.zeros_like(logits).scatter_(-1, best.indices, best.values - best.values + 1.0)
    if params.process is not None:
        return _in_order(logits, params, params.process)
    if params.temperature != 1.0:
        logits = logits / params.temperature
    largest = None
    if 0 < params.top_k < logits.shape[-1]:
        kth, largest = logits.topk(params.top_k, dim=-1)
        logits = logits.masked_fill(logits < kth[:, -1:], float("-inf"))
    probs = logits.softmax(-1)
    return _nucleus(probs, params.top_p, largest) if params.top_p < 1.0 else probs


ORDERS = {
    "transformers": ("temperature", "top_k", "top_p", "min_p", "typical_p"),
    "vllm": ("temperature", "min_p", "top_k", "top_p", "typical_p"),
    "llama-cpp": ("top_k", "typical_p", "top_p", "min_p", "temperature"),
}
"""The order of temperature and cuts by convention; vLLM has no typical-p. Sources: ``docs/processors.md``."""


def _in_order(logits: Tensor, params: SamplingParams, process: Processing) -> Tensor:
    """Temperature and cuts in the order of a convention; each cut is of the distribution before it."""
    for step in ORDERS[process.convention]:
        if step == "temperature":
            logits = logits / params.temperature
            continue
        if step == "top_k" and 0 < params.top_k < logits.shape[-1]:
            inside = logits >= logits.topk(params.top_k, dim=-1).values[:, -1:]
        elif step == "top_p" and params.top_p < 1.0:
            inside = _nucleus(logits.softmax(-1), params.top_p) > 0
        elif step == "min_p" and process.min_p > 0:
            probs = logits.softmax(-1)
            inside = probs >= process.min_p * probs.max(-1, keepdim=True).values
        elif step == "typical_p" and process.typical_p < 1.0:
            inside = _typical(logits.log_softmax(-1), process.typical_p)
        else:
            continue
        # A broken row stays one: none of its tokens is cut off.
        logits = logits.masked_fill(~inside & ~logits.isnan(), float("-inf"))
    return logits.softmax(-1)


def _typical(logs: Tensor, mass: float) -> Tensor:
    """[n, V] whether a token is in the smallest set of that mass whose surprise is closest to the entropy."""
    entropy = torch.special.entr(logs.exp()).sum(-1, keepdim=True)
    away = (-logs - entropy).abs()
    rising, order = away.sort(-1)
    reached = logs.exp().gather(-1, order).cumsum(-1, dtype=torch.float64)
    last = (reached < mass).sum(-1, keepdim=True).clamp_(max=logs.shape[-1] - 1)
    inside: Tensor = away <= rising.gather(-1, last)
    return inside


def _nucleus(probs: Tensor, top_p: float, largest: Tensor | None = None) -> Tensor:
    """Keep the smallest set of most probable tokens whose mass reaches ``top_p``; renormalise.

    Args:
        probs: [n, V] probabilities.
        top_p: the mass that is wanted.
        largest: [n, k] the most probable tokens, falling, where no other one has a probability but those
            that tie with the last.
    """
    if _sorts(probs):
        edge, mass = edge_by_sorting(probs, top_p)
    elif largest is None:
        edge, mass = edge_by_digits(probs, top_p)
    else:
        edge, mass = edge_of_largest(probs, largest, top_p)
    kept: Tensor = torch.where(probs >= edge, probs, 0.0) / mass.to(probs.dtype)
    return kept


def _sorts(probs: Tensor) -> bool:
    """Whether a nucleus is found by sorting: on a CPU, and in float64, which has more digits."""
    return probs.is_cpu or probs.dtype != torch.float32


Edge = tuple[Tensor, Tensor]
"""[n, 1] the least probability in each row's nucleus, and [n, 1] in float64 the nucleus's mass."""


def edge_by_sorting(probs: Tensor, top_p: float) -> Edge:
    """The definition: falling probabilities, their sums in float64, and the first that reaches ``top_p``."""
    falling = probs.sort(-1, descending=True).values
    mass = falling.cumsum(-1, dtype=torch.float64)
    # The token that crosses top_p belongs to the nucleus; rounding may leave even all below it.
    edge = falling.gather(-1, _crossing(mass, top_p).clamp_(max=probs.shape[-1] - 1))
    return edge, mass.gather(-1, ((probs >= edge).sum(-1, keepdim=True) - 1).clamp_(min=0))


def edge_of_largest(probs: Tensor, largest: Tensor, top_p: float) -> Edge:
    """The same from the most probable tokens [n, k], and those that tie with the last of them."""
    k, falling = largest.shape[-1], probs.gather(-1, largest)
    mass = falling.cumsum(-1, dtype=torch.float64)
    edge = falling.gather(-1, _crossing(mass, top_p).clamp(max=k - 1))
    count = (probs >= edge).sum(-1, keepdim=True)
    return edge, mass.gather(-1, (count - 1).clamp(0, k - 1)) + (count - k).clamp_(min=0) * edge.double()


# A probability in float32 has two digits of 15 bits, since 1.0 is below 2 ** 30 as an integer.
_DIGIT_BITS = 15
_DIGITS = 1 << _DIGIT_BITS
_ONE = 0x3F800000
# So many rows at a time: at V = 152,000 one takes 5 MB beside itself.
_MOST_ROWS = 16


def edge_by_digits(probs: Tensor, top_p: float) -> Edge:
    """The same in float32 without a sort, by two passes over the digits of the numbers' bits.

    Numbers that are not negative are ordered as their bits are. The first pass finds by the mass of each
    higher digit the one that the edge has, the second the lower digit. Numbers that share the higher digit
    share their exponent: their sum in float64 is exact in any order, so that the order in which a device
    adds changes nothing. The work is the same for all rows, as a captured graph needs.
    """
    if len(probs) > _MOST_ROWS:
        edges, masses = zip(
            *(edge_by_digits(part, top_p) for part in torch.split(probs, _MOST_ROWS)), strict=True
        )
        return torch.cat(edges), torch.cat(masses)
    # From 1.0 down, so that sums over digits are those of falling probabilities; NaN has bits outside.
    below = _ONE - probs.view(torch.int32).clamp(0, _ONE)
    wide, wanted = probs.double(), probs.new_full((len(probs), 1), top_p, dtype=torch.float64)
    high = below >> _DIGIT_BITS
    reached = _mass_before(high, wide)
    digit = (torch.searchsorted(reached, wanted) - 1).clamp(0, _DIGITS - 1)
    wide.masked_fill_(high != digit, 0.0)
    reached = _mass_before(below & (_DIGITS - 1), wide) + reached.gather(-1, digit)
    last = (torch.searchsorted(reached, wanted) - 1).clamp(0, _DIGITS - 1)
    # The least of all is 0, where rounding leaves even all of them below top_p.
    edge = (_ONE - (digit << _DIGIT_BITS | last)).clamp(min=0).int().view(torch.float32)
    return edge, reached.gather(-1, last + 1)


def _mass_before(digits: Tensor, mass: Tensor) -> Tensor:
    """[n, D + 1] the mass of the digits below i in place i, for digits [n, V] below D = 2 ** 15."""
    bins = mass.new_zeros(len(mass), _DIGITS + 1)
    bins.narrow(-1, 1, _DIGITS).scatter_add_(-1, digits.long(), mass)
    return bins.cumsum(-1)


def _crossing(mass: Tensor, top_p: float) -> Tensor:
    """[n, 1] the first place of rising sums [n, m] that reaches ``top_p``; m if none does."""
    return torch.searchsorted(mass, mass.new_full((len(mass), 1), top_p))


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Draw one token a row by the inverse of the cumulative distribution.

    Args:
        probs: [..., V], non-negative, not necessarily normalised, at least one entry above 0.
        u: [...], uniform in [0, 1).

    Returns:
        [...] int64 token ids; a token of probability 0 is never drawn. Of a row with NaN some token,
        so that a later reader of the rows can see what happened.
    """
    cumulative = probs.cumsum(-1)
    last = probs.shape[-1] - 1
    # Never total itself, past which no token lies: u is at most 1 minus half the spacing below 1, which
    # takes more than half a spacing off any product, so that it rounds to a number below total.
    point = u.unsqueeze(-1) * cumulative.narrow(-1, last, 1)
    return torch.searchsorted(cumulative, point, right=True).squeeze(-1).clamp_(max=last)


_BLOCK = 1024
# So many blocks go to an accelerator at once: a copy makes the host wait, and takes its time at any size.
_BLOCKS = 16


class Uniforms(Protocol):
    """A stream of uniform numbers in [0, 1).

    Attributes:
        device: where its numbers are, and so the models.
    """

    device: torch.device

    def __call__(self, n: int, /) -> Tensor:
        """The next n numbers, [n]."""
        ...


class UniformStream:
    """Hands out uniform numbers in [0, 1) from blocks drawn on the CPU.

    A block is drawn and moved to the device at once, so that a loop pays for a slice only and the
    numbers do not depend on the device. An accelerator gets several at a time, the first before the first
    loop; of these at most 1,024 numbers are taken at once.

    Args:
        seed: of this sequence.
        device: where the models are.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.device = device
        self._is_host = device.type == "cpu"
        self._ahead: deque[Tensor] = deque()
        self._block = torch.empty(0)
        self._used = 0
        if not self._is_host:
            self._draw_ahead()

    def __call__(self, n: int) -> Tensor:
        """The next n numbers, [n] float32."""
        first = self._used
        if first + n > len(self._block):
            self._block, first = self._next(n), 0
        self._used = first + n
        return self._block.narrow(0, first, n)

    @staticmethod
    def loops_ahead(n: int) -> int:
        """Of how many loops ``ahead`` has the numbers, n each."""
        return _BLOCKS * (_BLOCK // n)

    def ahead(self, n: int) -> Tensor:
        """[loops_ahead(n), n] what as many calls would give, for a device that takes a loop's row by itself.

        Calls and ``ahead`` do not mix.
        """
        assert n <= _BLOCK, f"{n} numbers a loop"
        if not self._ahead:
            self._draw_ahead()
        used = _BLOCK // n * n  # a loop's numbers are of one block
        blocks = torch.stack([block.narrow(0, 0, used) for block in self._ahead])
        self._ahead.clear()
        return blocks.view(-1, n)

    def _next(self, n: int) -> Tensor:
        """A block of at least n numbers."""
        if self._is_host:
            return torch.rand(max(n, _BLOCK), generator=self._generator)
        assert n <= _BLOCK, f"{n} numbers a loop"
        if not self._ahead:
            self._draw_ahead()
        return self._ahead.popleft()

    def _draw_ahead(self) -> None:
        blocks = [torch.rand(_BLOCK, generator=self._generator) for _ in range(_BLOCKS)]
        self._ahead.extend(torch.stack(blocks).to(self.device).unbind(0))


class ScriptedUniforms:
    """Hands out given numbers, for proofs and tests.

    Args:
        loops: the numbers of each loop, in order; it must ask for just as many.
    """

    device = torch.device("cpu")

    def __init__(self, loops: Iterable[Tensor]) -> None:
        self._loops = iter(loops)

    def __call__(self, n: int) -> Tensor:
        """The next loop's numbers, [n]."""
        numbers = next(self._loops)
        assert len(numbers) == n
        return numbers
