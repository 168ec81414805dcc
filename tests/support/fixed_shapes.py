"""What tests of fixed shapes share: requests of all lengths, the eager engine, and what is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny_models import EOS, TOKENS
from torch.utils._python_dispatch import TorchDispatchMode

from spsbench.base.records import Generation, Request, SamplingParams
from spsbench.decode.clock import FakeClock
from spsbench.engines.local import EagerEngine
from spsbench.models.causal_lm import CausalLM
from spsbench.testing import Letters

CPU = torch.device("cpu")
GREEDY = SamplingParams(greedy=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)
TOP_K = SamplingParams(temperature=0.9, top_k=20)
LONGEST, NEW, MOST_K = 40, 24, 5
SLOTS = LONGEST + NEW + MOST_K
PROMPTS = {length: tuple((7 * i + length) % 250 for i in range(length)) for length in (1, 2, 9, LONGEST)}


class Bytes(Letters):
    """The tokens of the tiny models as text: one character each."""

    def __init__(self) -> None:
        super().__init__("".join(chr(0x100 + i) for i in range(TOKENS)))
        self.eos_ids = frozenset({EOS, *range(0, 240, 12)})  # random models name the real one too seldom


def eager(pair: tuple[CausalLM, CausalLM], k: int) -> EagerEngine:
    return EagerEngine(pair[0], pair[1] if k else None, k, Bytes(), CPU, FakeClock(0.001))


def request(length: int, sampling: SamplingParams, seed: int = 0, **changes: Any) -> Request:
    settings = {"prompt_ids": PROMPTS[length], "max_new_tokens": NEW, "stop": (), "sampling": sampling}
    settings |= {"seed": seed, "trace": True}
    return Request(**(settings | changes))


def check_same(one: Generation, other: Generation) -> None:
    assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
    assert one.loops is not None
    assert other.loops is not None
    counts = [[(p.drafted, p.accepted, p.emitted) for p in found] for found in (one.loops, other.loops)]
    assert counts[0] == counts[1]
    for mine, theirs in zip(one.trace or [], other.trace or [], strict=True):
        assert (mine.token_id, mine.fate, mine.u) == (theirs.token_id, theirs.fate, theirs.u)
        assert mine.target_prob == pytest.approx(theirs.target_prob, abs=1e-4)


class Log(TorchDispatchMode):
    """Every operation with its shapes: what a graph would record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
        self.seen.append((str(func), *shapes))
        return func(*args, **(kwargs or {}))
