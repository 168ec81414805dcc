"""A decoder layer's forward as a graph over keys and values, in which products and experts are operators.

A graph is traced with tensors that hold no numbers, for any number of tokens before. It writes the new keys
and values where the cache has room for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from transformers.cache_utils import Cache

from spsbench.models.onednn import multiplied, product
from spsbench.models.packed import JoinedProduct, PackedLinear
from spsbench.models.packed_experts import PackedExperts
from spsbench.models.rewind import RewindLayer

MOST_ROWS = 16
"""Of a block of drafts with the token before it; longer ones are prompts."""

SEVERAL = 7
"""Rows of a traced block, which stand for any number of them: a size that no other tensor of a layer has."""

SLOTS = 29
"""Tokens behind such a block, as another such size."""

MASK = "attention_mask"

_library: Any = torch.library.Library("spsbench", "DEF")  # type: ignore[no-untyped-call]
_library.define("product(Tensor states, Tensor weight, Tensor? bias) -> Tensor")
_library.define("experts(Tensor[] inputs, int place) -> Tensor")


class Untraceable(Exception):
    """Why a layer has no graph."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a decoder layer was given in a forward.

    Attributes:
        states: [1, n, hidden].
        given: the other arguments by their names.
        place: of the layer's keys and values among those of the cache.
    """

    states: Tensor
    given: Mapping[str, Any]
    place: int

    def masked_as(self, block: Call) -> Call:
        """Return this call of one row with the mask that a block has, as behind the end of a window."""
        mask = block.given[MASK]
        return replace(self, given={**self.given, MASK: mask[..., :1, :]})


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The forward of one layer, for one row or for several.

    Attributes:
        module: of states, keys and values, the tensors at ``paths`` and ``weights``.
        inputs: without numbers, as it was traced with them.
        paths: where tensors are among the layer's arguments: the name of one, and a place in a tuple.
        constants: arguments whose values are in the graph.
        cache: the argument that is one.
        place: of the layer's keys and values in the cache.
        experts: that the graph calls by their places here.
    """

    module: GraphModule
    inputs: Sequence[Tensor]
    paths: Sequence[tuple[str, int | None]]
    constants: Mapping[str, Any]
    cache: str
    place: int
    weights: Sequence[Tensor]
    experts: Sequence[PackedExperts]

    def tensors(self, given: Mapping[str, Any]) -> list[Tensor] | None:
        """Return the inputs of a call between values and weights; None where another call was traced."""
        for name, value in self.constants.items():
            other = given.get(name)
            if other is not value and (isinstance(other, Tensor) or other != value):
                return None
        found = [_at(given, *path) for path in self.paths]
        return found if all(isinstance(each, Tensor) for each in found) else None

    def rows(self, given: Mapping[str, Any], count: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values with room for new ones; None of another cache, or before the first."""
        layers = getattr(given.get(self.cache), "layers", ())
        layer = layers[self.place] if self.place < len(layers) else None
        return layer.extended(count) if type(layer) is RewindLayer and layer.used else None


class Running:
    """The experts of the layer that runs."""

    experts: Sequence[PackedExperts]

    def mix(self, inputs: Sequence[Tensor], place: int) -> Tensor:
        return self.experts[place](*inputs).contiguous()  # type: ignore[no-any-return]


RUNNING = Running()
for _key in ("CPU", "MkldnnCPU"):
    _library.impl("product", multiplied, _key)
_library.impl("product", lambda states, weight, _: states.new_empty(*states.shape[:-1], len(weight)), "Meta")
_library.impl("experts", RUNNING.mix, "CPU")
_library.impl("experts", lambda inputs, _: torch.empty_like(inputs[0]), "Meta")


def traced(layer: nn.Module, call: Call) -> LayerGraph:
    """Trace a layer.

    Raises:
        Untraceable: its numbers decide what it does, or it keeps more than rows of keys and values.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    given = call.given
    cache = next(name for name, value in given.items() if isinstance(value, Cache))
    held = given[cache].layers[call.place]
    if type(held) is not RewindLayer:
        raise Untraceable("it keeps more than rows of keys and values")
    paths = [*_paths(given)]
    of_tensors = {name for name, _ in paths}
    constants = {name: value for name, value in given.items() if name not in {cache, *of_tensors}}
    products = {id(product): product for product in _products(layer)}
    laid_out = [each for product in products.values() for each in (product.weight, product.bias)]
    plain = {name: weight.detach() for name, weight in _weights(layer)}
    experts = [part for part in layer.modules() if isinstance(part, PackedExperts)]
    updates: list[int] = []

    def forward(hidden: Tensor, keys: Tensor, values: Tensor, *tensors: Tensor) -> Tensor:
        others = iter(tensors)
        arguments = {**given, cache: _Rows(keys, values, hidden.shape[1], updates)}
        arguments |= {name: () for name in of_tensors if isinstance(given[name], tuple)}
        for (name, place), tensor in zip(paths, others, strict=False):
            arguments[name] = tensor if place is None else (*arguments[name], tensor)
        weights = {
            key: (next(others), None if product.bias is None else next(others))
            for key, product in products.items()
        }
        named = dict(zip(plain, others, strict=True))
        with _tracing(layer, weights, experts):
            output = torch.func.functional_call(layer, named, (hidden,), arguments)
        if not isinstance(output, Tensor):
            raise Untraceable("it gives more than states")
        return output

    tensors = [_at(given, *path) for path in paths]
    weights = [weight for weight in laid_out if weight is not None]
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes)
    fake = [*_without_numbers(mode, call.states, held, tensors, [*weights, *plain.values()])]
    symbols = _symbols(fake)
    try:
        with torch.no_grad():
            module = make_fx(forward, tracing_mode="fake")(*fake)
    except Untraceable:
        raise
    except Exception as error:  # whatever a layer does that tensors without numbers cannot
        raise Untraceable(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if not _hold(sizes.guards, symbols):
        raise Untraceable("it computes otherwise after more tokens")
    if updates != [call.place]:
        raise Untraceable("it does not write keys and values once")
    return LayerGraph(module, fake, paths, constants, cache, call.place, [*weights, *plain.values()], experts)


def _at(given: Mapping[str, Any], name: str, place: int | None) -> Any:
    value = given.get(name)
    return value if place is None or value is None else value[place]


def _paths(given: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    for name, value in given.items():
        if isinstance(value, Tensor):
            yield name, None
        elif isinstance(value, tuple) and all(isinstance(each, Tensor) for each in value):
            yield from ((name, place) for place in range(len(value)))
        elif not isinstance(value, Tensor | Cache | bool | int | float | str | None):
            raise Untraceable(f"it is given a {type(value).__name__} as {name}")


def _products(layer: nn.Module) -> Iterator[JoinedProduct]:
    """Yield them in an order that layers of one kind share; some more than once."""
    yield from (part.product for part in layer.modules() if isinstance(part, PackedLinear))


def _weights(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what is no product's or expert's: weights in oneDNN's layout are."""
    for name, weight in (*layer.named_parameters(), *layer.named_buffers()):
        if not weight.is_mkldnn:
            yield name, weight


def _without_numbers(
    mode: FakeTensorMode,
    states: Tensor,
    held: RewindLayer,
    tensors: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> Iterator[Tensor]:
    """Yield tensors of the same sizes; those that are ``SEVERAL`` or ``SLOTS`` may be any number."""
    from torch._dynamo.source import LocalSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    count = 0

    def fake(tensor: Tensor, has_room: bool = False) -> Tensor:
        nonlocal count
        count += 1
        free = (SEVERAL, SLOTS)
        sizes = [DimDynamic.DYNAMIC if size in free else DimDynamic.STATIC for size in tensor.shape]
        strides = [DimDynamic.INFER_STRIDE] * tensor.dim()
        if has_room:  # which grows
            strides[1] = DimDynamic.DYNAMIC
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=sizes,
            dynamic_strides=strides,
            constraint_sizes=[None] * len(sizes),
            constraint_strides=[None] * len(sizes),
        )
        return mode.from_tensor(tensor, symbolic_context=context, source=LocalSource(f"input{count}"))

    yield fake(states)
    for rows in held.extended(0):
        yield fake(rows, has_room=True)
    for tensor in tensors:
        yield fake(tensor)
    for weight in weights:
        with mode:
            yield torch.empty(weight.shape, dtype=weight.dtype)


def _symbols(tensors: Iterable[Tensor]) -> dict[Any, int]:
    """Return the free sizes and strides of tensors, and what they are here."""
    sizes = (size for tensor in tensors for size in (*tensor.shape, *tensor.stride()))
    return {size.node.expr: size.node.hint for size in sizes if isinstance(size, torch.SymInt)}


def _hold(guards: Iterable[Any], symbols: Mapping[Any, int]) -> bool:
    """Whether what a trace decided by sizes is so for any number of rows and tokens."""
    for rows, slots in itertools.product((2, MOST_ROWS), (MOST_ROWS + 1, 1 << 17)):
        free = {SEVERAL: rows, SLOTS: slots}  # the others are steps over all slots
        numbers = {symbol: free.get(size, size * slots) for symbol, size in symbols.items()}
        if not all(guard.expr.xreplace(numbers) for guard in guards):
            return False
    return True


class _Rows:
    """Stands for the cache of a layer that is traced: it has keys and values with room for the new ones."""

    def __init__(self, keys: Tensor, values: Tensor, count: int, updates: list[Any]) -> None:
        self._keys, self._values, self._count, self._updates = keys, values, count, updates

    def update(self, keys: Tensor, values: Tensor, place: int, *_: Any) -> tuple[Tensor, Tensor]:
        self._updates.append(place)
        for held, new in ((self._keys, keys), (self._values, values)):
            held.narrow(2, held.shape[2] - self._count, self._count).copy_(new)
        return self._keys, self._values

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"it reads {name} of its cache")


@contextmanager
def _tracing(
    layer: nn.Module, weights: Mapping[int, tuple[Tensor, Tensor | None]], experts: Sequence[PackedExperts]
) -> Iterator[None]:
    """Have products by weights of their own, and experts, be operators of the graph that is traced."""
    outputs: dict[int, tuple[Tensor, Tensor]] = {}

    def multiply(linear: PackedLinear, states: Tensor) -> Tensor:
        joined = id(linear.product)
        known = outputs.get(joined)
        if known is None or known[0] is not states:
            output = product(states, *weights[joined], by=torch.ops.spsbench.product)
            known = outputs[joined] = states, output
        return known[1][..., linear.rows]

    def mix(place: int, *inputs: Tensor) -> Tensor:
        states: Tensor = torch.ops.spsbench.experts(inputs, place)
        return states

    with ExitStack() as replaced:
        for part in layer.modules():
            if isinstance(part, PackedLinear):
                vars(part)["forward"] = partial(multiply, part)
                replaced.callback(vars(part).pop, "forward")
        for place, part in enumerate(experts):
            vars(part)["forward"] = partial(mix, place)
            replaced.callback(vars(part).pop, "forward")
        yield
