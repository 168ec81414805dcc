"""Wrong samplers for the re-derivation beyond those of ``spsbench verify --control all``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode import sampling as law
from spsbench.decode.protocols import LanguageModel
from spsbench.decode.rejection import Draft
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.parts.verify.controls import CONTROLS, planted

_warp, _numbers, _draft = law.warp, UniformStream.__call__, ModelDrafter.draft


def _cut(probs: Tensor, outside: Tensor) -> Tensor:
    kept = probs.masked_fill(outside, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _nucleus_of_raw(logits: Tensor, params: SamplingParams) -> Tensor:
    """The nucleus is looked for among the probabilities at temperature 1."""
    if params.greedy:
        return _warp(logits, params)
    raw = _warp(logits, replace(params, temperature=1.0))
    return _cut(_warp(logits, replace(params, top_p=1.0)), raw <= 0)


def _top_k_last(logits: Tensor, params: SamplingParams) -> Tensor:
    """Nucleus first, top-k behind it."""
    if params.greedy or not params.top_k:
        return _warp(logits, params)
    probs = _warp(logits, replace(params, top_k=0))
    return _cut(probs, probs < probs.topk(params.top_k, dim=-1).values[:, -1:])


def _used_twice(self: UniformStream, n: int) -> Tensor:
    """The numbers of the draft's picks serve its tests again."""
    u = _numbers(self, n).clone()
    k = n // 2
    u[k : 2 * k] = u[:k]
    return u


def _changed(self: ModelDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
    """The last drafted token is replaced by the most probable one after it was drawn."""
    draft = _draft(self, tokens, k, u)
    return Draft(torch.cat([draft.tokens[:-1], draft.probs[-1:].argmax(-1)]), draft.probs)


_MORE: dict[str, tuple[tuple[Any, str, Callable[..., Any]], ...]] = {
    "nucleus-of-raw": ((rows, "warped", lambda *given: rows.TensorRows(_nucleus_of_raw(*given))),),
    "top-k-last": ((rows, "warped", lambda *given: rows.TensorRows(_top_k_last(*given))),),
    "used-twice": ((UniformStream, "__call__", _used_twice),),
    "changed-after-draw": ((ModelDrafter, "draft", _changed),),
}
FAULTS = (*CONTROLS, *_MORE)


@contextmanager
def fault(name: str, target: LanguageModel) -> Iterator[None]:
    """Decode with one of ``FAULTS`` meanwhile."""
    with ExitStack() as stack:
        if name in CONTROLS:
            stack.enter_context(planted(name, target))
        for place, attribute, wrong in _MORE.get(name, ()):
            stack.enter_context(patch.object(place, attribute, wrong))
        yield
