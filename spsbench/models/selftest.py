"""A self-test of every model at load: does its KV cache roll back exactly?"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from spsbench.errors import UsageError
from spsbench.models.causal_lm import CausalLM, attention_window
from spsbench.models.tensor_parallel import RanksFault

_PROMPT = 24
_BLOCK = 5
_KEPT = 2
# Wider attention windows are not crossed, since the forwards would take long. They need no test: the
# cache stores every token whatever the window, so that rollback is the same operation.
_WIDEST_WINDOW = 256
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Largest absolute differences of logits between cached and uncached forwards.

    Attributes:
        scale: largest absolute logit, for comparison.
        bits: hash of the cached logits, bit for bit: whether two processes compute alike.
    """

    cached: float
    rolled_back: float
    scale: float
    prompt_tokens: int
    bits: str

    @property
    def worst(self) -> float:
        """The larger difference, relative to the logits' scale."""
        return max(self.cached, self.rolled_back) / max(self.scale, 1e-9)


@torch.inference_mode()
def self_test(model: CausalLM, seed: int = 0) -> SelfTest:
    """Score a prompt and a block, roll back into the block, continue; compare with uncached forwards.

    It catches caches that cannot be rolled back, windows cut too early, wrong positions and masks.
    """
    generator = torch.Generator().manual_seed(seed)
    prompt_length = _prompt_length(model)
    drawn = torch.randint(model.vocab_size, (prompt_length + _BLOCK + 1,), generator=generator)
    drawn = drawn.to(model.device)
    prompt, block, other = model.as_prompt(drawn[:prompt_length]), drawn[prompt_length:-1], drawn[-1:]
    pending = model.begin(prompt.tolist())
    cached = model.score(torch.cat([pending, block]), last=_BLOCK).clone()
    kept = len(prompt) + _KEPT
    model.rollback(kept)
    continued = model.score(other, last=1)
    model.rollback(0)
    tokens = torch.cat([prompt, block])
    full = model.score_uncached(tokens)
    branch = model.score_uncached(torch.cat([tokens[:kept], other]))
    return SelfTest(
        cached=_difference(model, cached, full[-_BLOCK:]),
        rolled_back=_difference(model, continued, branch[-1:]),
        scale=float(_proposable(model, full).abs().max()),
        prompt_tokens=prompt_length,
        bits=_bits(cached, continued),
    )


def require_exact_rollback(model: CausalLM, name: str) -> SelfTest:
    """Run ``self_test`` and refuse a model that fails it.

    A faulty cache fails with any tokens. Rounding that makes a router choose another expert does not,
    so a failed test is repeated with other tokens.
    """
    for seed in range(_SEEDS):
        try:
            result = self_test(model, seed)
        except (torch.OutOfMemoryError, RanksFault):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise _refusal(name, reason) from error
        if result.worst <= tolerance(model.dtype):
            return result
    raise _refusal(
        name,
        f"logits differ by {result.worst:.2g} of their scale (cached block {result.cached:.3g}, "
        f"after rollback {result.rolled_back:.3g})",
    )


def tolerance(dtype: torch.dtype) -> float:
    """By how much logits of two forwards may differ, relative to the largest: their rows and kernels do."""
    return {torch.float64: 1e-9, torch.float32: 2e-3}.get(dtype, 6e-2)


def _refusal(name: str, reason: str) -> UsageError:
    return UsageError(
        f"the cache of {name} cannot be rolled back exactly: {reason}.",
        remedy="Its architecture is not supported for speculative sampling.",
    )


def _prompt_length(model: CausalLM) -> int:
    """Long enough to exceed a small attention window, short enough that the block fits the context."""
    window = attention_window(model.config) or 0
    wanted = _PROMPT + (window if window <= _WIDEST_WINDOW else 0)
    return min(wanted, model.context_window - _BLOCK - 2)


def _bits(*logits: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for rows in logits:
        digest.update(rows.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _difference(model: CausalLM, a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = _proposable(model, a), _proposable(model, b)
    return float((a.double() - b.double()).abs().max())


def _proposable(model: CausalLM, logits: torch.Tensor) -> torch.Tensor:
    """[n, m] the logits of the tokens that a model can propose; an error where others are possible."""
    if model.vocabulary is None:
        return logits
    some = logits[:, model.vocabulary]
    others = logits.index_fill(1, model.vocabulary, float("-inf"))
    if not bool((others == float("-inf")).all()):
        raise ValueError("it proposes tokens outside of its vocabulary")
    return some
