"""From logits to the distribution that is sampled, and by uniform numbers from a distribution to a token.

``warp`` is the definition, for target and draft in every arm, so that the two distributions that modified
rejection sampling compares are the two that tokens are drawn from. ``rows.warped`` is the same law to the
bit, faster on a CPU. Generic in dtype: float32 in runs (half precision is widened), float64 in exact tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from spsbench.records import Processing, SamplingParams


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
    if 0 < params.top_k < logits.shape[-1]:
        kth = logits.topk(params.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    probs = logits.softmax(-1)
    return _nucleus(probs, params.top_p) if params.top_p < 1.0 else probs


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


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable tokens whose mass reaches ``top_p``; renormalise."""
    falling = probs.sort(-1, descending=True).values
    mass = falling.cumsum(-1, dtype=torch.float64)
    # The token that crosses top_p belongs to the nucleus; rounding may leave even all below it.
    crossing = torch.searchsorted(mass, mass.new_full((len(probs), 1), top_p)).clamp_(max=probs.shape[-1] - 1)
    inside = probs >= falling.gather(-1, crossing)
    kept_mass = mass.gather(-1, (inside.sum(-1, keepdim=True) - 1).clamp_(min=0))
    kept: Tensor = torch.where(inside, probs, 0.0) / kept_mass.to(probs.dtype)
    return kept


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
    numbers do not depend on the device.

    Args:
        seed: of this sequence.
        device: where the models are.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.device = device
        self._block = torch.empty(0)
        self._used = 0

    def __call__(self, n: int) -> Tensor:
        """The next n numbers, [n] float32."""
        if self._used + n > self._block.shape[0]:
            self._block = torch.rand(max(n, _BLOCK), generator=self._generator).to(self.device)
            self._used = 0
        self._used += n
        return self._block.narrow(0, self._used - n, n)


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
