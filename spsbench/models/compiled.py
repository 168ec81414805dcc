"""Decoder layers that torch's Inductor compiles once, for forwards of a few tokens on a CPU.

transformers computes a norm by eight operators and positions by fourteen, each called from Python; for one
token they take a third of the time of all products. What runs between two products is cold, since the weights
of each went through the caches: layers are compiled several at a time, and stretches with one graph share a
program. Kernels round where operators round; the sums of a norm are in another order. Prompts, batches,
trees of drafts and the caches of others go through the layer as it was.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from spsbench.base.errors import UsageError, first_line
from spsbench.config.models import INDUCTOR
from spsbench.models.body import body_of
from spsbench.models.causal_lm import attention_window, tolerance
from spsbench.models.compiler import Compiled
from spsbench.models.layer_graph import (
    MASK,
    MOST_ROWS,
    RUNNING,
    SEVERAL,
    SLOTS,
    Call,
    LayerGraph,
    Untraceable,
    are_alike,
    traced,
)
from spsbench.models.messages import NO_LAYERS, OTHER_LOGITS
from spsbench.models.rewind import RewindLayer
from spsbench.models.torch_lm import TorchLM

MOST_LAYERS = 6
"""In one program: the time to compile one grows with them."""

_Item = TypeVar("_Item")

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

    def __init__(self, layer: nn.Module, stretch: Stretch, place: int) -> None:
        self._layer, self._eager = layer, partial(type(layer).forward, layer)
        self._stretch, self._place = stretch, place

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return partial(type(self._layer).forward, memo[id(self._layer)])

    def __call__(self, hidden_states: Tensor, *args: Any, **given: Any) -> Any:
        states = self._stretch.states(self._place, hidden_states, given) if not args else None
        return self._eager(hidden_states, *args, **given) if states is None else states


class Stretch:
    """Layers one after the other that run as one program, when the first of them is called."""

    def __init__(self, one: Sequence[Program], several: Sequence[Program]) -> None:
        self._one, self._several = one, several
        self._computed: StretchOutputs | None = None

    def states(self, place: int, hidden: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """[1, n, hidden] that a layer gives; None for another call than was traced."""
        if place == 0:
            self._computed = self._started(hidden, given)
        computed = self._computed
        if computed is None:
            return None
        if place and not computed.goes_on(place, hidden, given):
            computed.take_back(place)
            self._computed = None
            return None
        if place == len(computed.outputs) - 1:
            self._computed = None
        return computed.outputs[place]

    def _started(self, hidden: Tensor, given: Mapping[str, Any]) -> StretchOutputs | None:
        batch, rows = hidden.shape[:2]
        if batch > 1 or rows > MOST_ROWS or torch.is_grad_enabled():
            return None
        outputs = (program.run(hidden, given) for program in (self._one if rows == 1 else self._several))
        return next((each for each in outputs if each is not None), None)


@dataclass(frozen=True, slots=True)
class StretchOutputs:
    """What a program computed, until the last of its layers was called.

    Attributes:
        outputs: [1, n, hidden] of each layer.
        given: what the first layer was given beside its states.
        held: the layers' keys and values.
    """

    outputs: Sequence[Tensor]
    given: Mapping[str, Any]
    held: Sequence[RewindLayer]

    def goes_on(self, place: int, hidden: Tensor, given: Mapping[str, Any]) -> bool:
        """Whether a layer after the first is called with what was computed for it."""
        return hidden is self.outputs[place - 1] and are_alike(given, self.given)

    def take_back(self, place: int) -> None:
        """Forget the keys and values of a layer and those after it."""
        for layer in self.held[place:]:
            layer.rollback(layer.used - self.outputs[place].shape[1])


class Program:
    def __init__(self, graph: LayerGraph, compiled: Callable[..., Any]) -> None:
        self._graph, self._compiled = graph, compiled

    def of(self, layers: Sequence[LayerGraph]) -> Program:
        return Program(self._graph.of(layers), self._compiled)

    def run(self, states: Tensor, given: Mapping[str, Any]) -> StretchOutputs | None:
        """Run the layers; None for another call than was traced."""
        graph = self._graph
        tensors, held = graph.tensors(given), graph.held(given)
        if tensors is None or held is None:
            return None
        rows = itertools.chain.from_iterable(layer.extended(states.shape[1]) for layer in held)
        RUNNING.experts = graph.experts
        try:
            outputs = self._compiled(states.contiguous(), *tensors, *rows, *graph.weights)
        finally:  # a model is not kept by the last of its layers that ran
            del RUNNING.experts
        return StretchOutputs(outputs, given, held)


@torch.inference_mode()
def compile_layers(lm: TorchLM) -> None:
    """Compile the decoder layers of a model on a CPU whose graphs can be traced, if the logits stay the same.

    Raises:
        UsageError: the compiler fails.
    """
    layers: list[nn.Module] = [*getattr(body_of(lm.model), "layers", ())]
    before = _logits(lm)
    forwards, reason = _forwards_of(lm, layers)
    for layer, forward in forwards.items():
        vars(layer)["forward"] = forward
    if not _is_close(_logits(lm), before, lm.dtype):
        reason = OTHER_LOGITS
        for layer in forwards:
            del vars(layer)["forward"]
        forwards = {}
    lm.compiled = Compiled(len(forwards), lm.layers, reason)


def _forwards_of(lm: TorchLM, layers: Sequence[nn.Module]) -> tuple[dict[nn.Module, CompiledForward], str]:
    """Of the layers that have one, and why the last of the others has none."""
    one, several = (_calls_of_layers(lm, layers, rows) for rows in (1, SEVERAL))
    graphs: dict[nn.Module, LayerGraph] = {}
    reason = "" if layers else NO_LAYERS
    for layer in layers:
        try:
            if layer not in one or layer not in several:
                raise Untraceable("it keeps other states than keys and values, or none")
            graphs[layer] = traced([layer], [one[layer]])
        except Untraceable as error:
            reason = str(error)
    has_windows = attention_window(lm.config) is not None
    shared: dict[tuple[str, ...], tuple[list[Program], list[Program]]] = {}
    forwards: dict[nn.Module, CompiledForward] = {}
    for members in _stretches(layers, graphs, one, several):
        own = [graphs[layer] for layer in members]
        key = tuple(graph.key for graph in own)
        if key not in shared:
            singles, blocks = ([calls[layer] for layer in members] for calls in (one, several))
            of_one = [singles]
            is_masked = [isinstance(each[0].given.get(MASK), Tensor) for each in (singles, blocks)]
            if has_windows and is_masked == [False, True]:
                masked = (call.masked_as(block) for call, block in zip(singles, blocks, strict=True))
                of_one.append([*masked])
            try:
                shared[key] = [_program(members, calls) for calls in of_one], [_program(members, blocks)]
            except Untraceable as error:
                reason = str(error)
                continue
        stretch = Stretch(*([program.of(own) for program in programs] for programs in shared[key]))
        for place, layer in enumerate(members):
            forwards[layer] = CompiledForward(layer, stretch, place)
    lm.rollback(0)
    return forwards, reason


def _stretches(
    layers: Sequence[nn.Module], graphs: Mapping[nn.Module, LayerGraph], *calls: Mapping[nn.Module, Call]
) -> Iterator[Sequence[nn.Module]]:
    """The layers of each program, in which each goes on with what the one before gives."""
    runs: list[list[nn.Module]] = []
    for layer in layers:
        if layer not in graphs:
            continue
        if runs and all(each[layer].goes_on(each[runs[-1][-1]]) for each in calls):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    for run in runs:
        yield from _parts(run, _layers_of_program([graphs[layer].key for layer in run]))


def _layers_of_program(kinds: Sequence[str]) -> int:
    """How many: the fewest calls of programs and layers in different ones."""

    def cost(length: int) -> tuple[int, int]:
        parts = [*_parts(kinds, length)]
        return len(parts) + sum(map(len, {tuple(part) for part in parts})), -length

    return min(range(1, MOST_LAYERS + 1), key=cost)


def _parts(items: Sequence[_Item], length: int) -> Iterator[Sequence[_Item]]:
    return (items[start : start + length] for start in range(0, len(items), length))


def _calls_of_layers(lm: TorchLM, layers: Sequence[nn.Module], rows: int) -> dict[nn.Module, Call]:
    """Of those that append to the keys and values at one place, in one forward."""
    calls: dict[nn.Module, Call] = {}
    before: list[Any] = []
    lm.begin([*_ids(SLOTS - rows + 1)])

    def lengths(given: Mapping[str, Any]) -> list[Any]:
        caches = [value for value in given.values() if isinstance(value, Cache)]
        return [getattr(held, "used", None) for cache in caches for held in cache.layers]

    def enter(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        before[:] = lengths(given)

    def leave(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        after = lengths(given)
        places = [place for place, used in enumerate(after) if used != before[place]]
        if len(args) == len(places) == 1 and isinstance(args[0], Tensor):
            calls[layer] = Call(args[0], given, places[0], output)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(leave, with_kwargs=True).remove)
        lm.score(torch.tensor([*_ids(rows)]), 1)
    return calls


def _ids(count: int) -> Iterator[int]:
    return (1 + place % 5 for place in range(count))


def _program(layers: Sequence[nn.Module], calls: Sequence[Call]) -> Program:
    from torch._inductor import compile as compile_graph

    graph = traced(layers, calls)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Inductor about what it imports
            lower_products()
            return Program(graph, compile_graph(graph.module, [*graph.inputs], _OPTIONS))
    except Exception as error:
        why = f"{INDUCTOR} fails to compile a layer: {first_line(error, kind=True)}."
        raise UsageError(why, flag="--backend", remedy="Use --backend torch.") from error


def lower_products() -> None:
    """Have products by laid-out weights be calls of oneDNN in a program, in place of calls of Python.

    Of a torch whose Inductor has them elsewhere they stay calls of Python.
    """
    try:
        from torch._inductor.ir import TensorBox
        from torch._inductor.lowering import lowerings, register_lowering
        from torch._inductor.mkldnn_ir import LinearUnary
    except ImportError:
        return

    def lowered(states: Any, weight: Any, bias: Any) -> Any:
        product = LinearUnary.create(states, weight, bias, "none", [], "")  # type: ignore[no-untyped-call]
        return TensorBox.create(product)

    ours = torch.ops.spsbench.product.default
    if ours not in lowerings:
        register_lowering(ours, type_promotion_kind=None)(lowered)


def _logits(lm: TorchLM) -> Tensor:
    """[n, V] of a prompt, a token and a block after it, through the cache."""
    lm.begin(range(1, 6))
    rows = [lm.score(torch.arange(3, 3 + count), count).clone() for count in (1, 2, SEVERAL, 1)]
    lm.rollback(0)
    return torch.cat(rows)


def _is_close(logits: Tensor, others: Tensor, dtype: torch.dtype) -> bool:
    return bool(((logits - others).abs() <= tolerance(dtype) * others.abs().max()).all())
