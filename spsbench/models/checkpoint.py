"""Where a model's weights come from: safetensors files, read where they lie, or a loaded module."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import nn

from spsbench.base.arrays import Ints, Singles


def in_own_pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array of zeros outside the heap, which would keep the memory after it is freed."""
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)


def trim_heap() -> None:
    """Return the heap's free pages to the system, where the C library can (glibc); takes milliseconds."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Its name in every covered architecture."""

_SMALL_BYTES = 16 << 20
"""Tables up to this size in float32 are held whole: to widen a row costs as much as a small forward."""

_STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2"), "F16": np.dtype("<f2")}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Sized(Protocol):
    """A tensor, wherever it is: its shape, and the number of its elements."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> int: ...


class StoredWeights(ABC):
    """A model's weights by name, as transformers names them."""

    tensors: Mapping[str, Sized]

    @property
    def parameters(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    @abstractmethod
    def read(self, name: str) -> Singles:
        """Return a tensor in float32; it may be a view of the stored one."""

    @abstractmethod
    def rows(self, name: str, ids: Ints, out: Singles) -> None:
        """Write rows ``ids`` [k] of a matrix [m, n] into ``out`` [k, n], in float32."""

    def reads(self, name: str) -> bool:
        """Return whether ``read`` reads a tensor: whether it is there, and has a floating type."""
        return name in self

    def integers(self, name: str) -> Ints:
        """Return a tensor of whole numbers, or of truth values as 0 and 1."""
        raise KeyError(name)


class LoadedWeights(StoredWeights):
    tensors: dict[str, Singles]

    def __init__(self, model: nn.Module) -> None:
        self.tensors = {name: tensor.detach().float().numpy() for name, tensor in model.named_parameters()}

    def read(self, name: str) -> Singles:
        return self.tensors[name]

    def rows(self, name: str, ids: Ints, out: Singles) -> None:
        np.take(self.tensors[name], ids, axis=0, out=out)


class Checkpoint(StoredWeights):
    """The weights of a folder of safetensors files.

    Whole tensors are read into memory, which is free again once they are used; rows of large ones are read
    from a map of the file, of which only the touched pages are in memory.
    """

    tensors: dict[str, StoredTensor]

    def __init__(self, folder: Path) -> None:
        self.tensors = {}
        self._tables: dict[str, npt.NDArray[Any]] = {}
        for file in _safetensors_files(folder):
            self._read_header(file)

    @property
    def is_plain(self) -> bool:
        """Whether there is a tensor, and every one has a floating dtype that this class reads."""
        return bool(self.tensors) and all(map(self.reads, self.tensors))

    def reads(self, name: str) -> bool:
        """Whether there is a tensor of that name, of a floating dtype that this class reads."""
        return name in self.tensors and self.tensors[name].kind in _STORED

    def read(self, name: str) -> Singles:
        tensor = self.tensors[name]
        read = in_own_pages(tensor.shape, _STORED[tensor.kind])
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            file.readinto(read.data)
        return _in_float32(read)

    def rows(self, name: str, ids: Ints, out: Singles) -> None:
        if name not in self._tables:
            tensor = self.tensors[name]
            table = np.memmap(tensor.file, _STORED[tensor.kind], "r", tensor.start, tensor.shape)
            small = 4 * table.size <= _SMALL_BYTES
            self._tables[name] = _in_float32(np.array(table)) if small else np.asarray(table)
        stored = self._tables[name]
        if stored.dtype == out.dtype:
            stored.take(ids, 0, out)
        else:
            out[:] = _in_float32(stored[ids])

    def integers(self, name: str) -> Ints:
        from safetensors import safe_open

        with safe_open(self.tensors[name].file, framework="numpy") as file:
            stored = file.get_tensor(name)
        if stored.dtype.kind not in "iub":
            raise ValueError(f"{name} has the type {stored.dtype}, and not whole numbers")
        numbers: Ints = stored.astype(np.int64)
        return numbers

    def _read_header(self, file: Path) -> None:
        from safetensors import safe_open

        with safe_open(file, framework="numpy"):
            pass  # the library checks header and size; it does not say where a tensor lies
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                first = 8 + size + entry["data_offsets"][0]
                self.tensors[name] = StoredTensor(file, entry["dtype"], tuple(entry["shape"]), first)


def _safetensors_files(folder: Path) -> list[Path]:
    """None if some of them are missing."""
    index = folder / "model.safetensors.index.json"
    files = [folder / "model.safetensors"]
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(names))]
    # A hub model is downloaded file by file: with some missing, the size is unknown.
    return files if all(file.is_file() for file in files) else []


def _in_float32(stored: npt.NDArray[Any]) -> Singles:
    """A bfloat16 is the upper half of a float32."""
    if stored.dtype == np.float32:
        return stored
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)
