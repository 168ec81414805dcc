"""A decoder layer's forward as a graph, in which products, experts and attention are single operators.

A graph is traced with tensors that hold no numbers. Its attention has to be transformers' function of
queries, keys, values and a mask, behind a cache that takes keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from transformers.cache_utils import Cache

from spsbench.models.attention import attention
from spsbench.models.packed import PackedLinear
from spsbench.models.packed_experts import PackedExperts

Given = Mapping[str, Any]
"""What a layer is given beside its states, by the names of its arguments."""

SEVERAL = 7
"""Rows of a traced block, which stand for any number of them: a size that no other tensor of a layer has."""

_MASK = "attention_mask"

_library: Any = torch.library.Library("spsbench", "DEF")  # type: ignore[no-untyped-call]
_library.define("attention(Tensor query, Tensor key, Tensor value) -> Tensor")
_library.define("part(Tensor[] inputs, int place, int width) -> Tensor")


class Untraceable(Exception):
    """Why a layer has no graph."""


@dataclass(slots=True)
class Operators:
    """What a layer's graph calls by operators.

    Attributes:
        parts: by their places in the graph, [..., width] of inputs.
        attention: [1, n, heads, width] of queries [1, heads, n, width], new keys and values, and what the
            layer is given.
    """

    parts: list[Callable[..., Tensor]] = field(default_factory=list)
    attention: Callable[[Tensor, Tensor, Tensor, Given], Tensor] | None = None

    def traced(self, width: int, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Put a part into the graph that is traced."""
        self.parts.append(run)
        output: Tensor = torch.ops.spsbench.part(inputs, len(self.parts) - 1, width)
        return output


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The forward of one layer, for one row or for several.

    Attributes:
        module: of states, the tensors at ``paths`` and ``weights``.
        inputs: without numbers, as it was traced with them.
        paths: where tensors are among the layer's arguments: the name of one, and a place in a tuple.
        constants: arguments whose values are in the graph.
        cache: the argument that is one, and its class.
    """

    module: GraphModule
    inputs: Sequence[Tensor]
    paths: Sequence[tuple[str, int | None]]
    constants: Given
    cache: tuple[str, type[Cache]]
    weights: Sequence[Tensor]
    operators: Operators

    def tensors(self, given: Given) -> list[Tensor] | None:
        """Return the inputs of a call after its states; None where it is another call than was traced."""
        cache, kind = self.cache
        if not isinstance(given.get(cache), kind):
            return None
        if any(given.get(name) != value for name, value in self.constants.items()):
            return None
        found = [_at(given, *path) for path in self.paths]
        return found if all(isinstance(each, Tensor) for each in found) else None


class Operands:
    """What the operators of a layer have beside their tensors, while it runs."""

    operators: Operators
    given: Given

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert self.operators.attention is not None
        return self.operators.attention(query, key, value, self.given)

    def part(self, inputs: Sequence[Tensor], place: int, width: int) -> Tensor:
        return self.operators.parts[place](*inputs).contiguous()


RUNNING = Operands()
_library.impl("attention", RUNNING.attend, "CPU")
_library.impl("part", RUNNING.part, "CPU")
_library.impl("attention", lambda q, k, v: q.new_empty(len(q), q.shape[2], q.shape[1], v.shape[3]), "Meta")
_library.impl("part", lambda inputs, _, width: inputs[0].new_empty(*inputs[0].shape[:-1], width), "Meta")


def traced(layer: nn.Module, states: Tensor, given: Given) -> LayerGraph:
    """Trace a layer that is given states [1, n, hidden].

    Raises:
        Untraceable: its numbers decide what it does, or it reads more than rows of keys and values.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    caches = {name: type(value) for name, value in given.items() if isinstance(value, Cache)}
    if len(caches) != 1:
        raise Untraceable("it is given no cache")
    cache = next(iter(caches))
    paths = [*_paths(given)]
    of_tensors = {name for name, _ in paths}
    constants = {name: value for name, value in given.items() if name not in {cache, _MASK, *of_tensors}}
    weights = {name: weight.detach() for name, weight in _weights(layer)}
    operators, rows = Operators(), _NewRows()

    def forward(hidden: Tensor, *tensors: Tensor) -> Tensor:
        arguments = {**given, cache: rows} | ({_MASK: None} if _MASK in given else {})
        arguments |= {name: () for name in of_tensors if isinstance(given[name], tuple)}
        for (name, place), tensor in zip(paths, tensors, strict=False):
            arguments[name] = tensor if place is None else (*arguments[name], tensor)
        named = dict(zip(weights, tensors[len(paths) :], strict=True))
        with _tracing(layer, operators, rows, arguments):
            output = torch.func.functional_call(layer, named, (hidden,), arguments)
        if not isinstance(output, Tensor):
            raise Untraceable("it gives more than states")
        return output

    fake = [*_without_numbers([states, *(_at(given, *path) for path in paths)], [*weights.values()])]
    try:
        with torch.no_grad():
            module = make_fx(forward, tracing_mode="fake")(*fake)
    except Untraceable:
        raise
    except Exception as error:  # whatever a layer does that tensors without numbers cannot
        raise Untraceable(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if operators.attention is None or rows.updates != 1:
        raise Untraceable("its attention is a function of its own")
    return LayerGraph(module, fake, paths, constants, (cache, caches[cache]), [*weights.values()], operators)


def _at(given: Given, name: str, place: int | None) -> Any:
    value = given.get(name)
    return value if place is None or value is None else value[place]


def _paths(given: Given) -> Iterator[tuple[str, int | None]]:
    for name, value in given.items():
        if isinstance(value, Tensor) and name != _MASK:
            yield name, None
        elif isinstance(value, tuple) and all(isinstance(each, Tensor) for each in value):
            yield from ((name, place) for place in range(len(value)))
        elif not isinstance(value, Tensor | Cache | bool | int | float | str | None):
            raise Untraceable(f"it is given a {type(value).__name__} as {name}")


def _weights(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what is no operator's: weights in oneDNN's layout are."""
    for name, weight in (*layer.named_parameters(), *layer.named_buffers()):
        if not weight.is_mkldnn:
            yield name, weight


def _without_numbers(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield tensors of the same sizes, of which those of an input that are ``SEVERAL`` may be any."""
    from torch._dynamo.source import LocalSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    for place, tensor in enumerate((*inputs, *weights)):
        free = SEVERAL if place < len(inputs) else None
        sizes = [DimDynamic.DYNAMIC if size == free else DimDynamic.STATIC for size in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * len(sizes))
        yield mode.from_tensor(tensor, symbolic_context=context, source=LocalSource(f"input{place}"))


class _NewRows:
    """Stands for the cache of a layer that is traced: it has the new keys and values alone."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.told: tuple[Any, ...] = ()
        self.updates = 0

    def update(self, keys: Tensor, values: Tensor, *told: Any) -> tuple[Tensor, Tensor]:
        self.updates += 1
        self.keys, self.values, self.told = keys, values, told
        return keys, values

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"it reads {name} of its cache")


@contextmanager
def _tracing(layer: nn.Module, operators: Operators, rows: _NewRows, arguments: Given) -> Iterator[None]:
    """Have products, experts and attention be operators of the graph that is traced."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    outputs: dict[int, tuple[Tensor, Tensor]] = {}

    def multiply(linear: PackedLinear, states: Tensor) -> Tensor:
        joined = linear.product
        known = outputs.get(id(joined))
        if known is None or known[0] is not states:
            output = operators.traced(joined.width, partial(joined.of, is_last=True), states)
            known = outputs[id(joined)] = states, output
        return known[1][..., linear.rows]

    def mix(experts: PackedExperts, *inputs: Tensor) -> Tensor:
        return operators.traced(inputs[0].shape[-1], experts, *inputs)

    with ExitStack() as replaced:
        for part in layer.modules():
            if isinstance(part, PackedLinear):
                vars(part)["forward"] = partial(multiply, part)
            elif isinstance(part, PackedExperts):
                vars(part)["forward"] = partial(mix, part)
            else:
                continue
            replaced.callback(vars(part).pop, "forward")
        ALL_ATTENTION_FUNCTIONS.register("sdpa", _attending(operators, rows, arguments))
        replaced.callback(ALL_ATTENTION_FUNCTIONS.register, "sdpa", attention)
        yield


def _attending(operators: Operators, rows: _NewRows, arguments: Given) -> Callable[..., tuple[Tensor, None]]:
    """Return a function of attention that puts an operator into the graph that is traced."""

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **settings: Any,
    ) -> tuple[Tensor, None]:
        if key is not rows.keys or value is not rows.values or attention_mask is not None:
            raise Untraceable("its attention reads other rows than its cache has")
        told, cache = rows.told, next(name for name, value in arguments.items() if value is rows)
        of_layer = {
            name for name, value in settings.items() if name in arguments and value is arguments[name]
        }
        constants = {name: value for name, value in settings.items() if name not in of_layer}
        if any(isinstance(value, Tensor) for value in (*told, *constants.values())):
            raise Untraceable("its attention is given tensors that the layer made")

        def run(query: Tensor, key: Tensor, value: Tensor, given: Given) -> Tensor:
            keys, values = given[cache].update(key, value, *told)
            named = constants | {name: given[name] for name in of_layer}
            return attention(module, query, keys, values, given.get(_MASK), **named)[0].contiguous()

        operators.attention = run
        return torch.ops.spsbench.attention(query, key, value), None

    return attend
