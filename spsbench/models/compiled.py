"""Decoder layers that torch's Inductor compiles once, for forwards of a few tokens on a CPU.

transformers computes a norm by eight operators and positions by fourteen, each called from Python; for one
token they take a third of the time of all products. Between the operators that a layer's graph leaves as they
are a few kernels remain, and layers with one graph share them. They round where operators round; the sums of
a norm are in another order. Prompts, batches and the caches of others go through the layer as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.base.errors import UsageError, first_line
from spsbench.config.models import INDUCTOR
from spsbench.models.body import body_of
from spsbench.models.causal_lm import tolerance
from spsbench.models.compiler import Compiled
from spsbench.models.layer_graph import RUNNING, SEVERAL, Given, LayerGraph, Untraceable, traced
from spsbench.models.torch_lm import TorchLM

MOST_ROWS = 16
"""Of a block of drafts with the token before it; longer ones are prompts."""

_OPTIONS = {
    "emulate_precision_casts": True,  # rounds to 16 bits between operators, as they do one by one
    "compile_threads": 1,  # no processes of its own
    "cpp.dynamic_threads": True,  # no number of threads in a program
    "size_asserts": False,
    "alignment_asserts": False,
}


class CompiledForward:
    """The forward of a decoder layer in place of its class'; a copy of the layer has that of its class."""

    def __init__(self, layer: nn.Module, one: Program, several: Program) -> None:
        self._layer, self._eager = layer, partial(type(layer).forward, layer)
        self._one, self._several = one, several

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return partial(type(self._layer).forward, memo[id(self._layer)])

    def __call__(self, hidden_states: Tensor, *args: Any, **given: Any) -> Any:
        batch, rows = hidden_states.shape[:2]
        if batch == 1 and rows <= MOST_ROWS and not args and not torch.is_grad_enabled():
            states = (self._one if rows == 1 else self._several).run(hidden_states, given)
            if states is not None:
                return states
        return self._eager(hidden_states, *args, **given)


class Program:
    """A layer's graph, compiled."""

    def __init__(self, graph: LayerGraph, compiled: Callable[..., Any]) -> None:
        self._graph, self._compiled = graph, compiled

    def run(self, states: Tensor, given: Given) -> Tensor | None:
        """[1, n, hidden]; None for another call than was traced."""
        tensors = self._graph.tensors(given)
        if tensors is None:
            return None
        RUNNING.operators, RUNNING.given = self._graph.operators, given
        try:
            output = self._compiled(states, *tensors, *self._graph.weights)
        finally:  # a model and its cache are not kept by the last of its layers that ran
            del RUNNING.operators, RUNNING.given
        first: Tensor = output[0] if isinstance(output, list | tuple) else output
        return first


@torch.inference_mode()
def compile_layers(lm: TorchLM) -> None:
    """Compile the decoder layers of a model on a CPU whose graphs can be traced, if the logits stay the same.

    Raises:
        UsageError: the compiler fails.
    """
    layers: list[nn.Module] = [*getattr(body_of(lm.model), "layers", ())]
    before = _logits(lm)
    forwards, reason = _compiled(lm, layers)
    for layer, forward in forwards.items():
        vars(layer)["forward"] = forward
    if not _is_close(_logits(lm), before, lm.dtype):
        reason = "its logits would be others"
        for layer in forwards:
            del vars(layer)["forward"]
        forwards = {}
    lm.compiled = Compiled(len(forwards), lm.layers, reason)


def _compiled(lm: TorchLM, layers: Sequence[nn.Module]) -> tuple[dict[nn.Module, CompiledForward], str]:
    """Return forwards of the layers that have one, and why the last of the others has none."""
    lm.begin(range(1, 6))
    calls = [_calls(layers, partial(lm.score, torch.arange(1, 1 + rows), 1)) for rows in (1, SEVERAL)]
    lm.rollback(0)
    shared: dict[str, Callable[..., Any]] = {}
    forwards, reason = {}, "" if layers else "its body has no layers"
    for layer in layers:
        try:
            programs = [_program(layer, heard.get(layer), shared) for heard in calls]
        except Untraceable as error:
            reason = str(error)
        else:
            forwards[layer] = CompiledForward(layer, *programs)
    return forwards, reason


_Call = tuple[Tensor, Given]
"""The states that a layer was given, and its other arguments."""


def _calls(layers: Sequence[nn.Module], run: Callable[[], Any]) -> dict[nn.Module, _Call]:
    """Return what each layer is given in a forward, of those that are given states and named arguments."""
    heard: dict[nn.Module, _Call] = {}

    def hear(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor):
            heard[layer] = args[0], given

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(hear, with_kwargs=True).remove)
        run()
    return heard


def _program(layer: nn.Module, call: _Call | None, shared: dict[str, Callable[..., Any]]) -> Program:
    from torch._inductor import compile as compile_graph

    if call is None:
        raise Untraceable("its layers are not given states and named arguments")
    graph = traced(layer, *call)
    sizes = (f"{each.shape} {each.stride()} {each.dtype}" for each in graph.inputs)
    key = "\n".join([graph.module.code, *sizes])
    if key not in shared:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Inductor about what it imports
                shared[key] = compile_graph(graph.module, [*graph.inputs], _OPTIONS)
        except Exception as error:
            why = f"{INDUCTOR} fails to compile a layer: {first_line(error, kind=True)}."
            raise UsageError(why, flag="--backend", remedy="Use --backend torch.") from error
    return Program(graph, shared[key])


def _logits(lm: TorchLM) -> Tensor:
    """[n, V] of a prompt, a token and a block after it, through the cache."""
    lm.begin(range(1, 6))
    rows = [lm.score(torch.arange(3, 3 + count), count).clone() for count in (1, 2, SEVERAL, 1)]
    lm.rollback(0)
    return torch.cat(rows)


def _is_close(logits: Tensor, others: Tensor, dtype: torch.dtype) -> bool:
    return bool(((logits - others).abs() <= tolerance(dtype) * others.abs().max()).all())
