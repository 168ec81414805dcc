"""Decoder layers as a graph over keys and values, in which products and experts are operators.

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
from spsbench.models.packed import PackedLinear
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
    """What a decoder layer was given in a forward, and gave.

    Attributes:
        states: [1, n, hidden].
        given: the other arguments by their names.
        place: of the layer's keys and values among those of the cache.
        output: [1, n, hidden].
    """

    states: Tensor
    given: Mapping[str, Any]
    place: int
    output: Any

    def masked_as(self, block: Call) -> Call:
        """Return this call of one row with the mask that a block has, as behind the end of a window."""
        mask = block.given[MASK]
        return replace(self, given={**self.given, MASK: mask[..., :1, :]})

    def goes_on(self, before: Call) -> bool:
        """Whether the layer is given what the one before gave, and else what that was given."""
        return self.states is before.output and are_alike(self.given, before.given)


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The forward of layers one after the other, for one row or for several.

    Attributes:
        module: the states after each layer, of states, the tensors at ``paths``, keys and values of each
            layer, and ``weights``.
        inputs: without numbers, as it was traced with them.
        paths: where tensors are among a layer's arguments: the name of one, and a place in a tuple.
        constants: arguments whose values are in the graph.
        cache: the argument that is one.
        places: of the layers' keys and values in the cache.
        experts: that the graph calls by their places here.
    """

    module: GraphModule
    inputs: Sequence[Tensor]
    paths: Sequence[tuple[str, int | None]]
    constants: Mapping[str, Any]
    cache: str
    places: Sequence[int]
    weights: Sequence[Tensor]
    experts: Sequence[PackedExperts]

    @property
    def key(self) -> str:
        """What graphs that compute the same have in common."""
        made = (f"{name} {value.tolist()}" for name, value in self.module.named_buffers())
        sizes = (f"{each.shape} {each.stride()} {each.dtype}" for each in self.inputs)
        return "\n".join([self.module.code, *made, *sizes])

    def of(self, layers: Sequence[LayerGraph]) -> LayerGraph:
        """Return this graph for layers whose own graphs have the keys of those that it was traced from."""
        return replace(
            self,
            places=[place for layer in layers for place in layer.places],
            weights=[weight for layer in layers for weight in layer.weights],
            experts=[each for layer in layers for each in layer.experts],
        )

    def tensors(self, given: Mapping[str, Any]) -> list[Tensor] | None:
        """Return the inputs of a call after its states; None where another call was traced."""
        if not all(_is_one(given.get(name), value) for name, value in self.constants.items()):
            return None
        found = [_at(given, *path) for path in self.paths]
        if not all(map(_is_like, found, self.inputs[1:])):
            return None
        return [each.contiguous() for each in found]  # as a program reads them, whatever they are views of

    def held(self, given: Mapping[str, Any]) -> list[RewindLayer] | None:
        """Return the layers' keys and values; None of another cache, or before there are some."""
        layers = getattr(given.get(self.cache), "layers", ())
        held = [layers[place] for place in self.places if place < len(layers)]
        are_some = len(held) == len(self.places) and all(type(each) is RewindLayer for each in held)
        return held if are_some and held[0].used else None


def are_alike(given: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return given.keys() == others.keys() and all(map(_is_one, given.values(), map(others.get, given)))


def _is_one(value: Any, other: Any) -> bool:
    """Whether values are the same: tensors, and tuples of some, by being it."""
    if value is other:
        return True
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return all(map(_is_one, value, other))
    return not isinstance(value, Tensor) and not isinstance(other, Tensor) and bool(value == other)


def _is_like(value: Any, traced: Tensor) -> bool:
    """Whether a program, which asks nothing, may read a value in place of what was traced."""
    if not isinstance(value, Tensor) or value.dtype != traced.dtype or value.dim() != traced.dim():
        return False
    sizes = zip(value.shape, traced.shape, strict=True)
    return all(size == other for size, other in sizes if isinstance(other, int))


class Running:
    experts: Sequence[PackedExperts]

    def mix(self, inputs: Sequence[Tensor], place: int) -> Tensor:
        return self.experts[place](*inputs).contiguous()  # type: ignore[no-any-return]


RUNNING = Running()
for _key in ("CPU", "MkldnnCPU"):
    _library.impl("product", multiplied, _key)
_library.impl("product", lambda states, weight, _: states.new_empty(*states.shape[:-1], len(weight)), "Meta")
_library.impl("experts", RUNNING.mix, "CPU")
_library.impl("experts", lambda inputs, _: torch.empty_like(inputs[0]), "Meta")


def traced(layers: Sequence[nn.Module], calls: Sequence[Call]) -> LayerGraph:
    """Trace layers, each of which goes on with what the one before gives.

    Raises:
        Untraceable: numbers decide what one does, or it keeps more than rows of keys and values.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    given = calls[0].given
    cache = next(name for name, value in given.items() if isinstance(value, Cache))
    places = [call.place for call in calls]
    held = [given[cache].layers[place] for place in places]
    if any(type(each) is not RewindLayer for each in held):
        raise Untraceable("it keeps more than rows of keys and values")
    paths = [*_paths(given)]
    of_tensors = {name for name, _ in paths}
    constants = {name: value for name, value in given.items() if name not in {cache, *of_tensors}}
    weights = [_Weights(layer) for layer in layers]
    experts = [part for layer in layers for part in layer.modules() if isinstance(part, PackedExperts)]
    updates: list[int] = []

    def forward(hidden: Tensor, *tensors: Tensor) -> list[Tensor]:
        others = iter(tensors)
        arguments = {**given}
        arguments |= {name: () for name in of_tensors if isinstance(given[name], tuple)}
        for (name, place), tensor in zip(paths, others, strict=False):
            arguments[name] = tensor if place is None else (*arguments[name], tensor)
        rows = [_Rows(next(others), next(others), hidden.shape[1], updates) for _ in layers]
        outputs = []
        for layer, own, each in zip(layers, weights, rows, strict=True):
            laid_out, plain = own.of(others)
            with _tracing(layer, laid_out, experts):
                hidden = torch.func.functional_call(layer, plain, (hidden,), arguments | {cache: each})
            if not isinstance(hidden, Tensor):
                raise Untraceable("it gives more than states")
            outputs.append(hidden)
        return outputs

    tensors = [calls[0].states, *(_at(given, *path) for path in paths)]
    runtime = [weight for own in weights for weight in own]
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes)
    fake = [*_with_free_sizes(mode, [each.contiguous() for each in tensors], held, runtime)]
    symbols = _free_symbols(fake)
    try:
        with torch.no_grad():
            module = make_fx(forward, tracing_mode="fake")(*fake)
    except Untraceable:
        raise
    except Exception as error:  # whatever a layer does that tensors without numbers cannot
        raise Untraceable(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if not _hold(sizes.guards, symbols):
        raise Untraceable("it computes otherwise after more tokens")
    if updates != places:
        raise Untraceable("it does not write keys and values once")
    return LayerGraph(module, fake, paths, constants, cache, places, runtime, experts)


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


class _Weights:
    """What a layer's graph reads beside its states: of products, and others by their names."""

    def __init__(self, layer: nn.Module) -> None:
        parts = (part.product for part in layer.modules() if isinstance(part, PackedLinear))
        self._products = {id(joined): joined for joined in parts}
        named = (*layer.named_parameters(), *layer.named_buffers())
        self._plain = {name: weight.detach() for name, weight in named if not weight.is_mkldnn}

    def __iter__(self) -> Iterator[Tensor]:
        for joined in self._products.values():
            yield joined.weight
            if joined.bias is not None:
                yield joined.bias
        yield from self._plain.values()

    def of(self, tensors: Iterator[Tensor]) -> tuple[_OfProducts, dict[str, Tensor]]:
        """Return tensors that stand for these, in their order."""
        products = {
            key: (next(tensors), None if joined.bias is None else next(tensors))
            for key, joined in self._products.items()
        }
        return products, {name: next(tensors) for name in self._plain}


_OfProducts = Mapping[int, tuple[Tensor, Tensor | None]]
"""Weight and bias of each product, by its identity."""


def _with_free_sizes(
    mode: FakeTensorMode, inputs: Sequence[Tensor], held: Sequence[RewindLayer], weights: Sequence[Tensor]
) -> Iterator[Tensor]:
    """Tensors of the same sizes; those that are ``SEVERAL`` or ``SLOTS`` may be any number."""
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

    for tensor in inputs:
        yield fake(tensor)
    for layer in held:
        for rows in layer.extended(0):
            yield fake(rows, has_room=True)
    for weight in weights:
        with mode:
            if weight.is_mkldnn:  # has no strides
                yield torch.empty(weight.shape, dtype=weight.dtype)
            else:
                yield torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype)


def _free_symbols(tensors: Iterable[Tensor]) -> dict[Any, int]:
    """Of sizes and strides, not of what follows from them, and what they are here."""
    sizes = (size for tensor in tensors for size in (*tensor.shape, *tensor.stride()))
    nodes = (size.node for size in sizes if isinstance(size, torch.SymInt))
    return {node.expr: node.hint for node in nodes if node.expr.is_Symbol}


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
def _tracing(layer: nn.Module, weights: _OfProducts, experts: Sequence[PackedExperts]) -> Iterator[None]:
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
