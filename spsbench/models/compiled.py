"""Decoder layers that torch's Inductor compiles once, for forwards of a few tokens on a CPU.

transformers computes a norm by eight operators and positions by fourteen, each called from Python; for one
token they take a third of the time of all products. Between the operators that a layer's graph leaves as they
are a few kernels remain, and layers with one graph share them. They round where operators round; the sums of
a norm are in another order. Prompts, batches and the caches of others go through the layer as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from spsbench.base.errors import UsageError, first_line
from spsbench.config.models import INDUCTOR
from spsbench.models.body import body_of
from spsbench.models.causal_lm import attention_window, tolerance
from spsbench.models.compiler import Compiled
from spsbench.models.layer_graph import (
    MOST_ROWS,
    RUNNING,
    SEVERAL,
    SLOTS,
    Call,
    LayerGraph,
    Untraceable,
    traced,
)
from spsbench.models.torch_lm import TorchLM

_OPTIONS = {
    "emulate_precision_casts": True,  # rounds to 16 bits between operators, as they do one by one
    "compile_threads": 1,  # no processes of its own
    "cpp_wrapper": True,  # from kernel to kernel without Python
    "cpp.dynamic_threads": True,  # no number of threads in a program
    "size_asserts": False,
    "alignment_asserts": False,
}


class CompiledForward:
    """The forward of a decoder layer in place of its class'; a copy of the layer has that of its class."""

    def __init__(self, layer: nn.Module, one: Sequence[Program], several: Sequence[Program]) -> None:
        self._layer, self._eager = layer, partial(type(layer).forward, layer)
        self._one, self._several = one, several

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return partial(type(self._layer).forward, memo[id(self._layer)])

    def __call__(self, hidden_states: Tensor, *args: Any, **given: Any) -> Any:
        batch, rows = hidden_states.shape[:2]
        if batch == 1 and rows <= MOST_ROWS and not args and not torch.is_grad_enabled():
            for program in self._one if rows == 1 else self._several:
                if (states := program.run(hidden_states, given)) is not None:
                    return states
        return self._eager(hidden_states, *args, **given)


class Program:
    """A layer's graph, compiled."""

    def __init__(self, graph: LayerGraph, compiled: Callable[..., Any]) -> None:
        self._graph, self._compiled = graph, compiled

    def run(self, states: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """[1, n, hidden]; None for another call than was traced."""
        tensors = self._graph.tensors(given)
        rows = None if tensors is None else self._graph.rows(given, states.shape[1])
        if tensors is None or rows is None:
            return None
        RUNNING.experts = self._graph.experts
        try:
            output = self._compiled(states, *rows, *tensors, *self._graph.weights)
        finally:  # a model is not kept by the last of its layers that ran
            del RUNNING.experts
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
    one, several = (_calls(lm, layers, rows) for rows in (1, SEVERAL))
    shared: dict[str, Callable[..., Any]] = {}
    forwards, reason = {}, "" if layers else "its body has no layers"
    for layer in layers:
        try:
            if layer not in one or layer not in several:
                raise Untraceable("it keeps other states than keys and values, or none")
            single, block = one[layer], several[layer]
            masked = [single.masked_as(block)] if attention_window(lm.config) else []
            programs = [_program(layer, call, shared) for call in (single, *masked)]
            forwards[layer] = CompiledForward(layer, programs, [_program(layer, block, shared)])
        except Untraceable as error:
            reason = str(error)
    lm.rollback(0)
    return forwards, reason


def _calls(lm: TorchLM, layers: Sequence[nn.Module], rows: int) -> dict[nn.Module, Call]:
    """Return the calls of a forward, of the layers that append to the keys and values at one place."""
    calls: dict[nn.Module, Call] = {}
    before: list[Any] = []
    lm.begin([*_ids(SLOTS - rows + 1)])

    def lengths(given: Mapping[str, Any]) -> list[Any]:
        caches = [value for value in given.values() if isinstance(value, Cache)]
        return [getattr(held, "used", None) for cache in caches for held in cache.layers]

    def enter(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        before[:] = lengths(given)

    def leave(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any], _: Any) -> None:
        after = lengths(given)
        places = [place for place, used in enumerate(after) if used != before[place]]
        if len(args) == len(places) == 1 and isinstance(args[0], Tensor):
            calls[layer] = Call(args[0], given, places[0])

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(leave, with_kwargs=True).remove)
        lm.score(torch.tensor([*_ids(rows)]), 1)
    return calls


def _ids(count: int) -> Iterator[int]:
    return (1 + place % 5 for place in range(count))


def _program(layer: nn.Module, call: Call, shared: dict[str, Callable[..., Any]]) -> Program:
    from torch._inductor import compile as compile_graph

    graph = traced(layer, call)
    sizes = (f"{each.shape} {each.stride()} {each.dtype}" for each in graph.inputs)
    key = "\n".join([graph.module.code, *sizes])
    if key not in shared:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Inductor about what it imports
                lower_products()
                shared[key] = compile_graph(graph.module, [*graph.inputs], _OPTIONS)
        except Exception as error:
            why = f"{INDUCTOR} fails to compile a layer: {first_line(error, kind=True)}."
            raise UsageError(why, flag="--backend", remedy="Use --backend torch.") from error
    return Program(graph, shared[key])


def lower_products() -> None:
    """Have products by laid-out weights be calls of oneDNN in a program, in place of calls of Python."""
    from torch._inductor.ir import TensorBox
    from torch._inductor.lowering import lowerings, register_lowering
    from torch._inductor.mkldnn_ir import LinearUnary

    operator = torch.ops.spsbench.product.default
    if operator not in lowerings:

        def lowered(states: Any, weight: Any, bias: Any) -> Any:
            product = LinearUnary.create(states, weight, bias, "none", [], "")  # type: ignore[no-untyped-call]
            return TensorBox.create(product)

        register_lowering(operator, type_promotion_kind=None)(lowered)


def _logits(lm: TorchLM) -> Tensor:
    """[n, V] of a prompt, a token and a block after it, through the cache."""
    lm.begin(range(1, 6))
    rows = [lm.score(torch.arange(3, 3 + count), count).clone() for count in (1, 2, SEVERAL, 1)]
    lm.rollback(0)
    return torch.cat(rows)


def _is_close(logits: Tensor, others: Tensor, dtype: torch.dtype) -> bool:
    return bool(((logits - others).abs() <= tolerance(dtype) * others.abs().max()).all())
