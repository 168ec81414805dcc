"""The recurrences of transformers' models, taken token by token with the state after each of them.

Projections, attention and everything else of a forward are computed for a whole block; only the recurrence
goes through it in steps, by the model's own function for one token. That costs little, since a recurrence of
a few tokens is small, and transformers' function for several pads them to a chunk of 64 or more.

A selective scan (Mamba, Jamba, Zamba) has to go in steps after a past: the function for several tokens begins
with an empty state whatever was read before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

Steps = Callable[[Callable[..., Any], Mapping[str, Any], Tensor], tuple[Tensor, list[Tensor]]]
"""(function for one token, arguments for several, state before) to (output, the states after each)."""

LONGEST = 32
"""Tokens of a block whose states are kept: longer ones are prompts."""

_reading: ContextVar[tuple[Any, bool] | None] = ContextVar("reading", default=None)


@contextmanager
def in_steps(cache: Any, keep: bool) -> Iterator[None]:
    """Have recurrences of a cache's layers go in steps, those that must or, to ``keep`` states, all."""
    token = _reading.set((cache, keep))
    try:
        yield
    finally:
        _reading.reset(token)


def _delta(step: Callable[..., Any], given: Mapping[str, Any], state: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The (gated) delta rule: arguments are [b, n, heads, width]."""
    by_token = ("query", "key", "value", "g", "beta")
    others = {name: value for name, value in given.items() if name not in (*by_token, *_CHUNKED)}
    outputs, states = [], []
    for i in range(given["query"].shape[1]):
        at = {name: given[name].narrow(1, i, 1) for name in by_token}
        output, state = step(**others | at | {"initial_state": state, "output_final_state": True})
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, dim=1), states


_CHUNKED = ("chunk_size", "safe_gate", "lower_bound")


def _mamba2(step: Callable[..., Any], given: Mapping[str, Any], state: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Mamba 2: x is [b, n, heads, width], dt [b, n, heads], B and C [b, n, groups, size]."""
    x, b, c = (given[name].float() for name in ("hidden_states", "B", "C"))
    n, width, size = x.shape[1], x.shape[3], b.shape[3]
    # As the function for several tokens does; the one for a token leaves the limits out.
    dt = given["dt"]
    dt = dt if given.get("dt_bias") is None else dt + given["dt_bias"].to(dt.dtype)
    dt = softplus(dt) if given.get("dt_softplus") else dt
    low, high = given.get("dt_limit") or (0.0, float("inf"))
    dt = dt.clamp(low, high).unsqueeze(-1).expand(*dt.shape, width)
    a = given["A"][:, None, None].expand(-1, width, size)
    d = None if given.get("D") is None else given["D"][:, None].expand(-1, width)
    outputs, states = [], []
    for i in range(n):
        state = state.clone()  # it is written to
        outputs.append(step(state, x[:, i], dt[:, i], a, b[:, i], c[:, i], d, dt_softplus=False))
        states.append(state)
    return torch.stack(outputs, dim=1), states


def _selective(
    step: Callable[..., Any], given: Mapping[str, Any], state: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Mamba: x, dt and z are [b, width, n], B and C [b, size, n]."""
    x, dt, b, c = (given[name] for name in ("hidden_states", "dt", "B", "C"))
    z = given.get("z")
    outputs, states = [], []
    for i in range(x.shape[-1]):
        state = state.clone()  # it is written to
        output = step(
            state,
            x[..., i],
            dt[..., i],
            given["A"],
            b[..., i],
            c[..., i],
            given.get("D"),
            z=None if z is None else z[..., i],
            dt_bias=given.get("delta_bias"),
            dt_softplus=given.get("delta_softplus", False),
        )
        outputs.append(output)
        states.append(state)
    return torch.stack(outputs, dim=-1), states


_RECURRENCES: dict[str, tuple[str, Steps, bool]] = {
    "torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _delta, False),
    "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _delta, False),
    "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba2, False),
    "mamba_selective_scan": ("mamba_selective_state_update", _selective, True),
}
"""transformers' function for several tokens: the one for a single token, how it is called for each, and
whether the first begins with an empty state always."""


def let_step(model: Any) -> None:
    """Have the recurrences of a model's classes go in steps inside ``in_steps``, and nowhere else."""
    for module in {sys.modules[type(part).__module__] for part in model.modules()}:
        for name, (step, steps, empties) in _RECURRENCES.items():
            usual = getattr(module, name, None)
            if usual is not None and hasattr(module, step) and not hasattr(usual, "in_steps"):
                setattr(module, name, _in_steps(usual, getattr(module, step), steps, empties))


def limits_steps(model: Any) -> bool:
    """Return whether a model of Mamba 2 bounds its time steps in blocks.

    transformers does not in single steps: there Nemotron-H leaves its own forward.
    """
    bounds = (getattr(part, "time_step_limit", None) for part in model.modules())
    return any(bound is not None and tuple(bound) != (0.0, float("inf")) for bound in bounds)


def _in_steps(usual: Any, step: Callable[..., Any], steps: Steps, empties: bool) -> Any:
    signature = inspect.signature(usual)

    @wraps(usual)
    def recurrence(*args: Any, **kwargs: Any) -> Any:
        cache, keep = _reading.get() or (None, False)
        layer: Any = getattr(cache, "asked", None)
        before = None if layer is None else layer.recurrent_states[0]
        must = empties or getattr(cache, "limited", False)
        if before is None or not (keep or must):
            return usual(*args, **kwargs)
        known = {name: value for name, value in kwargs.items() if name in signature.parameters}
        given = signature.bind_partial(*args, **known).arguments
        count = next(iter(given.values())).shape[-1 if steps is _selective else 1]
        if count > LONGEST and not must:
            return usual(*args, **kwargs)
        if before.dim() == 4 and steps is _selective:  # Zamba: one call a head
            before = before[:, len(layer.stepped)]
        output, states = steps(step, given, before)
        layer.stepped.append(states if keep and count <= LONGEST else states[-1:])
        return output, states[-1]

    recurrence.in_steps = True  # type: ignore[attr-defined]
    return recurrence
