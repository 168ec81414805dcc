"""A CUDA device that is not there: tensors on ``cuda:0`` with values on the CPU, under a real device's rules.

    with emulated() as device:
        call("run", ..., "--device", "cuda")
    assert device.counts.waits == ...

    python tests/support/device.py -m spsbench run ... --device cuda

What it refuses, counts and keeps:

* An operation on a device tensor and a host tensor of one or more dimensions fails.
* Every wait of the host is counted by its site: a number or a list read, copies between host and device,
  masks as indices, ``nonzero`` and its like, ``synchronize``. None is allowed while a graph is captured.
  A copy between pinned memory and the device that does not block is no wait; what it brings down is there
  after the next wait.
* A kernel is an operation that writes; a launch is a kernel or the replay of a graph.
* Memory that nothing was written to holds NaN. Beyond ``limit_bytes`` ``torch.OutOfMemoryError`` is raised.
* A captured operation is computed when its graph is replayed, from what its inputs hold then, into one place;
  while it is captured nothing is written to.
* An index out of range, or the kernel ``fails_at``, breaks the device: every later operation fails.
* With ``kernel_us`` or ``launch_us`` the clock is virtual: a launch takes the host, and a kernel its stream,
  so long, and a wait lasts until the stream is through. Nothing else takes time.

Not emulated: the rounding of CUDA's kernels, which attention kernel is chosen, gradients, generators of the
device, several devices. It needs no compiler, and ``emulated`` takes away all that it put into the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import runpy
import sys
import threading
import time
import unittest
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

import spsbench

CUDA = torch.device("cuda", 0)
GIB = 1 << 30
_LIBRARY = Path(torch.__file__).parent / "lib" / "libc10.so"
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA_SLOT, _OWN_SLOT, _SLOTS = (
    1,
    20,
    21,
)  # of c10::DeviceType; the second is for devices from outside of torch

WAITING = {
    **dict.fromkeys(("_local_scalar_dense", "item", "is_nonzero"), "item"),
    **dict.fromkeys(("nonzero", "nonzero_numpy", "argwhere", "where", "masked_select"), "nonzero"),
    **dict.fromkeys(("unique_dim", "_unique", "_unique2", "unique_consecutive"), "unique"),
    **dict.fromkeys(("bincount", "repeat_interleave"), "size"),
    **dict.fromkeys(("equal", "allclose"), "equal"),
}
"""Operations whose answer, or its shape, the host waits for."""

_InferenceMode = torch._C._InferenceMode
"""As ``torch.inference_mode``, which takes as long as a small operation."""

_CROSSING = {"to", "_to_copy", "type_as", "copy_"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_RESHAPING = {"resize_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "as_strided_"}
_OUT_OF_RANGE = re.compile(r"out of (range|bounds)")


@dataclass
class Counts:
    """What the device did, by (step, site) or (step, site, kind); ``Device.step`` names a step."""

    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    waits: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    up_bytes: Counter[str] = field(default_factory=Counter)
    down_bytes: Counter[str] = field(default_factory=Counter)

    def launched(self, step: str) -> int:
        return sum(number for key, number in self.launches.items() if key[0] == step)

    def waited(self, step: str) -> int:
        return sum(number for key, number in self.waits.items() if key[0] == step)

    def table(self, loops: int = 1, without: Collection[str] = ()) -> str:
        """Launches and waits of every step by their site, over so many loops."""
        lines = []
        for step in sorted({key[0] for key in (*self.launches, *self.waits)} - {*without}):
            launched, waited = self.launched(step) / loops, self.waited(step) / loops
            lines.append(f"{step}: {launched:.1f} launches, {waited:.2f} waits")
            waits = [(f"{site} {kind}", n) for (own, site, kind), n in self.waits.items() if own == step]
            lines += [f"  {n / loops:8.2f} waits     {site}" for site, n in sorted(waits)]
            launches = [(site, n) for (own, site), n in self.launches.items() if own == step]
            lines += [f"  {n / loops:8.2f} launches  {site}" for site, n in sorted(launches)]
        return "\n".join(lines)


class _Held:
    """Bytes of the device that some tensor still refers to."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size
        device.allocated_bytes += size
        device.peak_bytes = max(device.peak_bytes, device.allocated_bytes)

    def __del__(self) -> None:
        self.device.allocated_bytes -= self.size


class CudaTensor(torch.Tensor):
    """A tensor on ``cuda:0``; ``on_cpu`` has its values."""

    on_cpu: torch.Tensor
    held: _Held
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[CudaTensor], inner: torch.Tensor, held: _Held) -> CudaTensor:
        with _InferenceMode(False):  # else it could not be changed in place outside of that mode
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=CUDA,
            )
        made.on_cpu, made.held = inner, held
        return made

    def __tensor_flatten__(self) -> tuple[list[str], _Held]:
        """By its presence ``Module.to`` keeps a parameter that two modules share one parameter."""
        return ["on_cpu"], self.held

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, Any], held: _Held, size: Any, stride: Any) -> CudaTensor:
        return cls(parts["on_cpu"], held)

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Device.current().run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"cuda:0 {self.on_cpu!r}"

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, **named: Any) -> torch.Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=CUDA if device is None else device)

    def numpy(self, *args: Any, **named: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy


_STREAMS: weakref.WeakSet[Stream] = weakref.WeakSet()


class Stream:
    """``torch.cuda.Stream``: kernels of one run after each other."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.through_s = 0.0
        self.device = CUDA
        _STREAMS.add(self)

    def wait_stream(self, other: Stream) -> None:
        self.through_s = max(self.through_s, other.through_s)

    def wait_event(self, event: Event) -> None:
        self.through_s = max(self.through_s, event.at_s or 0.0)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        Device.current().wait("synchronize", self.through_s)

    def query(self) -> bool:
        device = Device.current()
        device.require_no_capture("query")
        return device.now() >= self.through_s

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class Event:
    """``torch.cuda.Event``: the moment when its stream has done what came before ``record``."""

    def __init__(self, enable_timing: bool = False, **named: Any) -> None:
        self.timed, self.at_s, self.captured = enable_timing, None, False
        self.external = bool(named.get("external"))

    at_s: float | None

    def record(self, stream: Stream | None = None) -> None:
        device = Device.current()
        device.require_whole()
        if device.capturing is not None:
            self.captured = not self.external
            device.capturing.steps.append(_Recorded(None, (), {}, self))
            return
        self._record(device, stream)

    def _record(self, device: Device, stream: Stream | None = None) -> None:
        self.at_s = max(device.now(), (stream or device.stream).through_s)

    def query(self) -> bool:
        device = Device.current()
        device.require_no_capture("query of an event")
        return self.at_s is None or device.now() >= self.at_s

    def synchronize(self) -> None:
        Device.current().wait("event", self.at_s or 0.0)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Device.current().stream).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds; both must be timed, recorded and reached."""
        device = Device.current()
        device.require_no_capture("elapsed time")
        if not (self.timed and end.timed) or self.captured or end.captured:
            raise RuntimeError("CUDA error: invalid resource handle (an event that is not timed)")
        if self.at_s is None or end.at_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if device.now() < max(self.at_s, end.at_s):
            raise RuntimeError("CUDA error: device not ready (an event that nobody waited for)")
        return 1e3 * (end.at_s - self.at_s)


@dataclass
class _Recorded:
    """An operation of a graph, or an event where there is no function; tensors are inner ones."""

    function: Callable[..., Any] | None
    args: Any
    named: Any
    result: Any
    kernels: int = 0


class Graph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.steps: list[_Recorded] = []
        self.complete = False

    def replay(self) -> None:
        device = Device.current()
        device.require_whole()
        device.require_no_capture("replay")
        if not self.complete:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        device.launch(sum(step.kernels for step in self.steps))
        with torch.inference_mode(), torch._C._DisableTorchDispatch():
            for step in self.steps:
                if step.function is None:
                    step.result._record(device)
                    continue
                new = step.function(*step.args, **step.named)
                for old, made in zip(_flat((step.result,)), _flat((new,)), strict=True):
                    if isinstance(old, torch.Tensor) and _storage(old) != _storage(made):
                        old.copy_(made)

    def reset(self) -> None:
        self.steps, self.complete = [], False

    def pool(self) -> tuple[int, int]:
        return (0, 0)


class _Capture:
    """``torch.cuda.graph``."""

    def __init__(self, graph: Graph, *args: Any, **named: Any) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        device = Device.current()
        device.require_no_capture("a second capture")
        self.graph.steps, device.capturing = [], self.graph

    def __exit__(self, kind: object, *error: object) -> None:
        Device.current().capturing = None
        self.graph.complete = kind is None


class _Mode(TorchDispatchMode):
    """Sees what is made on the device, or copied to it, from host tensors alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports the compiler

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Device.current().run(func, args, kwargs or {})


class Device:
    """The emulated device; ``emulated`` makes the only one there is."""

    _current: ClassVar[Device | None] = None

    def __init__(self, limit_bytes: float, kernel_us: float, launch_us: float, name: str) -> None:
        self.limit_bytes, self.kernel_us, self.launch_us, self.name = (
            int(limit_bytes),
            kernel_us,
            launch_us,
            name,
        )
        self.virtual = bool(kernel_us or launch_us)
        self.allocated_bytes = self.peak_bytes = 0
        self.counts, self.steps = Counts(), ["other"]
        self.capturing: Graph | None = None
        _STREAMS.clear()
        self.streams = [Stream()]
        self.fails_at: int | None = None
        self.broken = False
        self._kernels = 0
        self._now_s = 0.0
        self._holds: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()
        self._pinned: dict[int, Any] = {}
        self._arriving: list[tuple[torch.Tensor, torch.Tensor]] = []

    @classmethod
    def current(cls) -> Device:
        if cls._current is None:
            raise RuntimeError("CUDA error: the emulated device of this tensor is gone")
        return cls._current

    @property
    def stream(self) -> Stream:
        return self.streams[-1]

    def now(self) -> float:
        """Seconds of the host's clock."""
        return self._now_s if self.virtual else _perf_counter()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Count what follows under a name."""
        self.steps.append(name)
        try:
            yield
        finally:
            self.steps.pop()

    def require_no_capture(self, what: str) -> None:
        if self.capturing is not None:
            why = f"CUDA error: operation not permitted when stream is capturing ({what} at {_site()})"
            raise torch.AcceleratorError(why)

    def require_whole(self) -> None:
        if self.broken:
            raise torch.AcceleratorError(
                "CUDA error: device-side assert triggered (and the device is broken)"
            )

    def wait(self, kind: str, until_s: float | None = None) -> None:
        """The host waits: for the stream unless for a moment."""
        self.require_whole()
        self.require_no_capture(kind)
        self.counts.waits[self.steps[-1], _site(), kind] += 1
        self._now_s = max(self._now_s, self.stream.through_s if until_s is None else until_s)
        for to, values in self._arriving:
            to.copy_(values)
        self._arriving.clear()

    def synchronize(self, device: Any = None) -> None:
        self.wait("synchronize", max(stream.through_s for stream in _STREAMS))

    def launch(self, kernels: int = 1) -> None:
        """One launch of one kernel, or of a graph of many."""
        self._kernels += kernels
        if self.fails_at is not None and self._kernels >= self.fails_at:
            self.broken = True
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        step = self.steps[-1]
        self.counts.launches[step, _site()] += 1
        self.counts.kernels[step] += kernels
        self._now_s += 1e-6 * self.launch_us
        self.stream.through_s = max(self.now(), self.stream.through_s) + 1e-6 * self.kernel_us * kernels

    def hold(self, inner: torch.Tensor) -> CudaTensor:
        """A device tensor with these values; its memory is the device's as long as a tensor refers to it."""
        key = _storage(inner)
        held = self._holds.get(key)
        if held is None:
            size = inner.untyped_storage().nbytes()
            if self.allocated_bytes + size > self.limit_bytes:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total "
                    f"capacity of {self.limit_bytes / GIB:.2f} GiB of which {self.free_bytes / 2**20:.2f} "
                    "MiB is free."
                )
            held = self._holds[key] = _Held(self, size)
        return CudaTensor(inner, held)

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.allocated_bytes

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation, as the dispatcher hands it on."""
        what = _operation(func)
        flat = _flat((*args, *kwargs.values()))
        own = [value for value in flat if isinstance(value, CudaTensor)]
        wanted = [value for value in flat if isinstance(value, torch.device)]
        if what.pins:
            return self._pinning(what.name, args[0])
        if not own and not any(value.type == "cuda" for value in wanted):
            if kwargs.get("pin_memory"):
                return self._pin(func(*args, **kwargs | {"pin_memory": False}))
            return func(*args, **kwargs)
        self.require_whole()
        if what.name == "_has_compatible_shallow_copy_type":
            return False  # ``Module.to`` asks whether a parameter may stay the same tensor
        if any(value.type == "cuda" and value.index for value in wanted):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        with _InferenceMode(True):
            if (
                what.crosses
                and (crossed := self._crossed(what, what.named(args, kwargs), wanted)) is not None
            ):
                return crossed
            self._refuse_mixed(what, flat, own)
            if what.waits is not None or what.indexes:
                self._wait_for(what, what.named(args, kwargs))
            return self._computed(what, args, kwargs, own)

    def _refuse_mixed(self, what: _Operation, flat: list[Any], own: list[CudaTensor]) -> None:
        if what.indexes or not own:
            return
        shapes = [tuple(value.shape) for value in flat if _is_host(value) and value.dim()]
        if shapes:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                f"cpu! (aten::{what.name}, host tensors of {shapes}, at {_site()})"
            )

    def _wait_for(self, what: _Operation, named: dict[str, Any]) -> None:
        """What an operation makes the host wait for."""
        if not what.indexes:
            if named.get("output_size") is None:
                self.wait(str(what.waits))
            return
        indices = [index for index in named["indices"] if index is not None]
        values = named.get("values")
        if _is_host(values) and values.dim():
            why = "Expected all tensors to be on the same device, but the values of an index_put are on cpu!"
            raise RuntimeError(why)
        filled = isinstance(values, torch.Tensor) and not values.dim()
        if not filled and any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            self.wait("mask as index")
        for index in indices:
            if _is_host(index):
                self.counts.up_bytes[self.steps[-1]] += index.nbytes
                self.wait("index from the host")

    def _computed(self, what: _Operation, args: Any, kwargs: Any, own: list[CudaTensor]) -> Any:
        if what.name == "_fused_sdp_choice":
            return 0  # by matrix products: the CPU has no kernel of that name for a CUDA tensor
        written = [value.on_cpu for value in what.written(args, kwargs) if isinstance(value, CudaTensor)]
        known = {id(tensor.on_cpu): tensor for tensor in own}
        given, named = _mapped(_inner if self.capturing is None else _baked, (args, kwargs))
        if self.capturing is None:
            result = self._values(what, given, named, own)
        else:  # it is recorded: what it writes to is as it was
            copies = {id(inner): inner.clone() for inner in written}
            known |= {id(copies[id(inner)]): known[id(inner)] for inner in written}
            trial = _mapped(lambda value: copies.get(id(value), value), (given, named))
            result = self._values(what, *trial, own)
        before = {_storage(tensor.on_cpu) for tensor in own}
        made = [
            value for value in _flat((result,)) if isinstance(value, torch.Tensor) and id(value) not in known
        ]
        new = [value for value in made if _storage(value) not in before]
        if what.empty:
            for value in new:
                if value.is_floating_point():
                    value.fill_(float("nan"))
        kernels = int(not what.empty and bool(written or new))
        if self.capturing is not None:
            kept = _mapped(lambda value: known[id(value)].on_cpu if id(value) in known else value, result)
            self.capturing.steps.append(_Recorded(what.function, given, named, kept, kernels))
        elif kernels:
            self.launch()
        return _mapped(lambda value: self._outside(value, known), result)

    def _values(self, what: _Operation, args: Any, kwargs: Any, own: list[CudaTensor]) -> Any:
        """What it gives on the CPU."""
        try:
            result = what.function(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            if _OUT_OF_RANGE.search(str(error)) and any(tensor.dtype == torch.int64 for tensor in own):
                if self.capturing is not None:  # what would have put the index into its range is not done yet
                    return what.function(*_mapped(_first_index, args), **_mapped(_first_index, kwargs))
                self.broken = True
                why = f"CUDA error: device-side assert triggered ({what.name}: {error})"
                raise torch.AcceleratorError(why) from error
            raise
        if what.reshapes:
            why = f"aten::{what.name} changes a shape in place, which this device does not emulate"
            raise NotImplementedError(why)
        return result

    def _outside(self, value: Any, known: dict[int, CudaTensor]) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else self.hold(value)

    def _crossed(
        self, what: _Operation, named: dict[str, Any], wanted: list[torch.device]
    ) -> torch.Tensor | None:
        """The result of a copy between host and device; None of one that stays where it is."""
        if what.name == "copy_":
            to, source = named["self"], named["src"]
            if _is_host(to) == _is_host(source):
                return None
            up, dtype = _is_host(source), source.dtype
        else:
            to, source, other = None, named["self"], named.get("other")
            place = (
                wanted[0] if wanted else other.device if isinstance(other, torch.Tensor) else source.device
            )
            if place.type not in ("cuda", "cpu") or place.type == source.device.type:
                return None
            up = place.type == "cuda"
            dtype = other.dtype if isinstance(other, torch.Tensor) else named.get("dtype") or source.dtype
        free = bool(named.get("non_blocking"))
        return self._up(to, source, dtype, free) if up else self._down(to, source, dtype, free)

    def _up(self, to: Any, source: torch.Tensor, dtype: torch.dtype, free: bool) -> torch.Tensor:
        self._count_up(source, free)
        if to is None:
            to = self.hold(source.detach().to(dtype, copy=True))
        elif self.capturing is None:
            to.on_cpu.copy_(source)
        if self.capturing is not None:
            copy = torch.ops.aten.copy_.default
            self.capturing.steps.append(_Recorded(copy, (to.on_cpu, source), {}, to.on_cpu))
        return to

    def _down(self, to: Any, source: CudaTensor, dtype: torch.dtype, free: bool) -> torch.Tensor:
        """Into pinned memory, or into a new tensor, a copy need not block: then it arrives with a wait."""
        if dtype != source.dtype:
            self.launch()
        values = source.on_cpu.to(dtype, copy=True)
        self.counts.down_bytes[self.steps[-1]] += values.nbytes
        if to is None:
            with torch.inference_mode(False):
                to = torch.empty_strided(values.size(), values.stride(), dtype=dtype)
            if free:
                self._pin(to)
        if free and _storage(to) in self._pinned:
            self.require_no_capture("copy down")
            self._arriving.append((to, values))
        else:
            self.wait("copy down")
            to.copy_(values)
        return to

    def _count_up(self, source: torch.Tensor, free: bool) -> None:
        """A copy from pageable memory makes the host wait, whatever it asks for."""
        self.counts.up_bytes[self.steps[-1]] += source.nbytes
        if not (free and _storage(source) in self._pinned):
            self.wait("copy up")

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self._pinned[_storage(tensor)] = tensor.untyped_storage()
        return tensor

    def _pinning(self, name: str, tensor: torch.Tensor) -> Any:
        if name == "is_pinned":
            return not isinstance(tensor, CudaTensor) and _storage(tensor) in self._pinned
        return tensor if _storage(tensor) in self._pinned else self._pin(tensor.clone())


@dataclass(frozen=True)
class _Operation:
    """What is known of a function before it is called."""

    function: Any
    name: str
    parameters: tuple[str, ...]
    writes: tuple[int, ...]  # which of them
    waits: str | None
    indexes: bool
    crosses: bool
    pins: bool
    empty: bool
    reshapes: bool

    def named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        return dict(zip(self.parameters, args, strict=False)) | kwargs

    def written(self, args: Any, kwargs: Any) -> list[Any]:
        if not self.writes:
            return []
        named = self.named(args, kwargs)
        return _flat([named.get(self.parameters[place]) for place in self.writes])


@cache
def _operation(function: Any) -> _Operation:
    name, arguments = function._schema.name.removeprefix("aten::"), function._schema.arguments
    writes = (
        n for n, part in enumerate(arguments) if part.alias_info is not None and part.alias_info.is_write
    )
    return _Operation(
        function,
        name,
        tuple(part.name for part in arguments),
        tuple(writes),
        None if name == "where" and len(arguments) > 1 else WAITING.get(name),
        indexes=name in _INDEXING,
        crosses=name in _CROSSING,
        pins=name in ("_pin_memory", "pin_memory", "is_pinned"),
        empty=name.startswith(("empty", "new_empty")),
        reshapes=name in _RESHAPING,
    )


def _flat(values: Any) -> list[Any]:
    """Values of an operation, and those within its lists."""
    flat = []
    for value in values:
        if isinstance(value, list | tuple):
            flat += value
        else:
            flat.append(value)
    return flat


_NESTED = (list, tuple, dict)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same with every single value changed."""
    if not isinstance(value, _NESTED):
        return change(value)
    # A call less for each of the many that hold nothing else.
    if isinstance(value, dict):
        return {
            name: _mapped(change, part) if isinstance(part, _NESTED) else change(part)
            for name, part in value.items()
        }
    return type(value)(
        [_mapped(change, part) if isinstance(part, _NESTED) else change(part) for part in value]
    )


def _first_index(value: Any) -> Any:
    """Zeros in place of indices, for a result of the right shape."""
    return (
        torch.zeros_like(value) if isinstance(value, torch.Tensor) and value.dtype == torch.int64 else value
    )


def _is_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, CudaTensor)


def _inner(value: Any) -> Any:
    """What stands for an argument on the CPU."""
    if isinstance(value, CudaTensor):
        return value.on_cpu
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def _baked(value: Any) -> Any:
    """As ``_inner``; a number of the host is fixed when it is captured."""
    return value.clone() if _is_host(value) and not value.dim() else _inner(value)


def _without_lists(index: Any) -> Any:
    """Lists as the host tensors that they are copied from; an empty one indexes nothing."""
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    return torch.tensor(index, dtype=None if index else torch.int64) if isinstance(index, list) else index


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


_perf_counter = time.perf_counter
_PACKAGE = Path(spsbench.__file__).parent
_OWN = (
    Path(torch.__file__).parent,
    Path(unittest.__file__).parent,
    Path(contextlib.__file__),
    Path(__file__),
)


@cache
def _place(code: CodeType) -> tuple[str, bool] | None:
    """(The file's name, whether it is spsbench's); None of what is torch's or this file's."""
    file = Path(code.co_filename)
    if file.is_relative_to(_PACKAGE):
        return file.relative_to(_PACKAGE).as_posix(), True
    return None if any(map(file.is_relative_to, _OWN)) else (file.name, False)


def _site() -> str:
    """``engines/buffer.py:42``: the innermost line of spsbench, or else of whoever is no part of torch."""
    frame: FrameType | None = sys._getframe(1)
    outside = None
    while frame is not None:
        place = _place(frame.f_code)
        if place is not None and place[1]:
            return f"{place[0]}:{frame.f_lineno}"
        if outside is None and place is not None:
            outside = f"{place[0]}:{frame.f_lineno}"
        frame = frame.f_back
    return outside or "?"


class _Guard(torch._C._acc.DeviceGuard):
    """What C++ asks which device is current: always ``cuda:0``."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA


@cache
def _guard() -> tuple[_Guard, int]:
    """(The guard, where it lies.) Torch takes one of Python, once, for devices from outside of it."""
    guard, slots = _Guard(), _slots()
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    address, slots[_OWN_SLOT] = slots[_OWN_SLOT], None
    return guard, address


@cache
def _slots() -> Any:
    return (ctypes.c_void_p * _SLOTS).in_dll(ctypes.CDLL(str(_LIBRARY)), _GUARDS)


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """A CPU build of torch takes tensors on CUDA as arguments: it has no guard for them, and is lent one."""
    slots = _slots()
    usual, slots[_CUDA_SLOT] = slots[_CUDA_SLOT], _guard()[1]
    try:
        yield
    finally:
        slots[_CUDA_SLOT] = usual


def _forget_availability() -> None:
    """Libraries remember whether there is a CUDA device."""
    for name in ("transformers.utils.import_utils", "accelerate.utils.imports"):
        for part in vars(sys.modules.get(name, SimpleNamespace())).values():
            if callable(part) and hasattr(part, "cache_clear"):
                part.cache_clear()


def _with_mode(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Of threads: modes are a thread's own, and weights are loaded by several."""

    def running(thread: Any) -> None:
        with _Mode():
            run(thread)

    return running


@contextlib.contextmanager
def _of_stream(stream: Stream | None) -> Iterator[None]:
    streams = Device.current().streams
    streams.append(stream or streams[-1])
    try:
        yield
    finally:
        streams.pop()


def _attention(usual: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel, where no gradient is asked for."""

    def attention(query: Any, *args: Any, **named: Any) -> Any:
        if isinstance(query, CudaTensor) and not torch.is_grad_enabled():
            function = torch.ops.aten.scaled_dot_product_attention.default
            return Device.current().run(function, (query, *args), named)
        return usual(query, *args, **named)

    return attention


def _making(usual: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.tensor`` and ``as_tensor``, which are not dispatched."""

    def making(data: Any, *args: Any, device: Any = None, **named: Any) -> Any:
        if device is None and isinstance(data, CudaTensor):
            return data if named.get("dtype") in (None, data.dtype) else data.to(named["dtype"])
        modes = torch.overrides._get_current_function_mode_stack()
        wanted = next((mode.device for mode in reversed(modes) if hasattr(mode, "device")), "cpu")
        wanted = torch.device(wanted if device is None else device)
        if wanted.type != "cuda":
            return usual(data, *args, device=device, **named)
        if isinstance(data, torch.Tensor):
            return data.to(wanted, **named)
        return usual(data, *args, device="cpu", **named).to(wanted)

    return making


def _replaced(device: Device) -> Iterator[tuple[Any, str, Any]]:
    """What of torch is replaced: (owner, name, by what)."""
    from spsbench.decode.clock import SystemClock

    properties = SimpleNamespace(
        name=device.name,
        total_memory=device.limit_bytes,
        L2_cache_size=4 << 20,
        multi_processor_count=132,
        major=9,
        minor=0,
        uuid="00000000-0000-0000-0000-000000000000",
    )
    true = ("is_available", "is_initialized", "is_bf16_supported")
    nothing = (
        "_lazy_init",
        "set_device",
        "empty_cache",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
    )
    more = ("set_rng_state", "set_rng_state_all", "ipc_collect")
    memory = ("memory_allocated", "memory_reserved")
    functions: dict[str, Any] = {
        **{name: _answering(lambda: True) for name in true},
        **{name: _answering(lambda: None) for name in (*nothing, *more)},
        **{name: _answering(lambda: device.allocated_bytes) for name in memory},
        **{f"max_{name}": _answering(lambda: device.peak_bytes) for name in memory},
        "reset_peak_memory_stats": lambda *a: setattr(device, "peak_bytes", device.allocated_bytes),
        "mem_get_info": lambda *a: (device.free_bytes, device.limit_bytes),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *a: device.name,
        "get_device_properties": lambda *a: properties,
        "get_device_capability": lambda *a: (properties.major, properties.minor),
        "get_rng_state": lambda *a: torch.get_rng_state(),
        "get_rng_state_all": list,
        "_is_in_bad_fork": lambda: False,
        "synchronize": device.synchronize,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": _Capture,
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: device.capturing is not None,
        "stream": _of_stream,
        "current_stream": lambda *a: device.stream,
        "default_stream": lambda *a: device.streams[0],
    }
    yield from ((torch.cuda, name, function) for name, function in functions.items())
    yield torch.version, "cuda", "12.8"
    yield torch.backends.cuda, "is_built", lambda: True
    functional = torch.nn.functional
    yield functional, "scaled_dot_product_attention", _attention(functional.scaled_dot_product_attention)
    yield torch, "tensor", _making(torch.tensor)
    yield torch, "as_tensor", _making(torch.as_tensor)
    yield threading.Thread, "run", _with_mode(threading.Thread.run)
    if device.virtual:
        yield time, "perf_counter", device.now
        yield SystemClock, "now", staticmethod(device.now)


def _answering(answer: Callable[[], Any]) -> Callable[..., Any]:
    """A function for each name: torch's own tables hold a function once."""
    return lambda *args, **named: answer()


@contextlib.contextmanager
def emulated(
    *,
    limit_bytes: float = 80 * GIB,
    kernel_us: float = 0.0,
    launch_us: float = 0.0,
    name: str = "Emulated GPU",
) -> Iterator[Device]:
    """A CUDA device while the block lasts.

    Args:
        limit_bytes: its memory.
        kernel_us: how long a kernel takes; as ``launch_us``, it makes the clock virtual.
        launch_us: how long the host takes to launch one, or a graph.
        name: of the device.
    """
    if Device._current is not None:
        raise RuntimeError("there is an emulated device already")
    with contextlib.ExitStack() as stack:
        device = Device(limit_bytes, kernel_us, launch_us, name)
        stack.enter_context(_guarded())
        _device_constructors()  # remembers which functions they are
        for owner, attribute, value in _replaced(device):
            stack.enter_context(mock.patch.object(owner, attribute, value))
        _forget_availability()
        stack.callback(_forget_availability)
        Device._current = device
        stack.callback(setattr, Device, "_current", None)
        stack.enter_context(_Mode())
        yield device


def main() -> None:
    """``-m MODULE ARGUMENTS`` on an emulated device; its counts go to standard error."""
    if sys.argv[1] != "-m":
        raise SystemExit(__doc__)
    module, sys.argv = sys.argv[2], sys.argv[2:]
    with emulated() as device:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        finally:
            print(device.counts.table(), file=sys.stderr)


if __name__ == "__main__":
    from support import device as this  # one copy of the state, under the name by which tests import it

    this.main()
