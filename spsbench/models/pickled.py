"""Tensors of a file that ``torch.save`` wrote, read without running what it says."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from spsbench.base.arrays import Ints, Singles
from spsbench.base.errors import UsageError
from spsbench.base.files import open_file
from spsbench.models.checkpoint import StoredWeights

PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt")
"""Files of published drafters that are no safetensors."""

PICKLED_INDEX = "pytorch_model.bin.index.json"

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class PickledTensor:
    """A tensor's shape and size."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.size = tensor.numel()


class PickledWeights(StoredWeights):
    """The tensors of a file; nothing else may be in it.

    The file is mapped: what is not read is not in memory. Only torch's own unpickler of tensors reads it.
    """

    def __init__(self, file: Path, flag: str) -> None:
        self._file, self._flag = file, flag
        with open_file(file) as opened:
            if not zipfile.is_zipfile(opened):
                raise self._refusal("is not a zip archive, which torch.save writes since torch 1.6")
            opened.seek(0)
            with zipfile.ZipFile(opened) as archive:
                packed = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
                most = 2 * sum(entry.file_size for entry in archive.infolist())
            if packed:
                raise self._refusal("has compressed entries, which torch.save does not write")
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as fault:  # whatever an unpickler of a foreign file raises
            why = f"holds objects other than tensors ({type(fault).__name__}), which is not run"
            raise self._refusal(why) from fault
        if not isinstance(content, dict) or not content:
            raise self._refusal("holds no tensors by name")
        for name, value in content.items():
            if not isinstance(name, str) or type(value) is not Tensor or value.layout != torch.strided:
                raise self._refusal(f"holds {str(name)[:80]}, which is not a tensor")
            if value.device.type != "cpu" or value.numel() * value.element_size() > most:
                raise self._refusal(f"holds {name[:80]}, which is larger than the file")
        self._tensors: dict[str, Tensor] = content
        self.tensors = {name: PickledTensor(tensor) for name, tensor in content.items()}

    def _refusal(self, why: str) -> UsageError:
        remedy = "Save its tensors as model.safetensors, or choose another."
        return UsageError(f"{self._file} {why}.", flag=self._flag, remedy=remedy)

    def reads(self, name: str) -> bool:
        return name in self._tensors and self._tensors[name].dtype in _FLOATS

    def read(self, name: str) -> Singles:
        read: Singles = self._tensors[name].float().contiguous().numpy()
        return read

    def rows(self, name: str, ids: Ints, out: Singles) -> None:
        out[:] = self._tensors[name][torch.from_numpy(ids)].float().numpy()

    def integers(self, name: str) -> Ints:
        tensor = self._tensors[name]
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            raise self._refusal(f"has {name} in {tensor.dtype}, not in an integer type")
        numbers: Ints = tensor.to(torch.int64).numpy()
        return numbers
