"""Size of a model's weights, from the headers of its files."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spsbench.config.models import ONNXRUNTIME, Precision
from spsbench.errors import UsageError
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.quantised import saved_bytes
from spsbench.models.source import ModelSource, files_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}  # others: one byte
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_GIB = 1 << 30


def weight_bytes(
    source: ModelSource, dtype: str, flag: str, packed_on: torch.device | None = None
) -> int | None:
    """Size in bytes of a model's weights once loaded; None if unknown (not downloaded, no safetensors)."""
    folder = files_of(source.location, source.commit)
    if folder is None:
        return None
    asked = Precision.read(dtype)
    whole = asked.quantise is not None and packed_on is None
    wanted = DTYPES.get("float32" if whole else asked.dtype) or getattr(source.config, "dtype", None)
    # Quantised weights keep the size that they have on disk.
    width = None if source.quantization or not isinstance(wanted, torch.dtype) else wanted.itemsize
    with typed_errors(source.name, flag):
        tensors = [*Checkpoint(folder).tensors.values()]
    if not tensors:
        return None
    own = sum(
        tensor.size * (width if width and tensor.kind in _FLOATS else _WIDTHS.get(tensor.kind, 1))
        for tensor in tensors
    )
    if asked.quantise is not None and packed_on is not None and width:
        own -= saved_bytes(source.config, asked, packed_on, width)
    return own + _head_bytes(source, width)


def _head_bytes(source: ModelSource, width: int | None) -> int:
    """Of the rows that a trained draft takes from its target's head."""
    if source.sharing is None:
        return 0
    draft = source.sharing.draft
    return len(draft.ids_below(draft.target.vocab_size)) * draft.target.hidden * (width or 4)


def computed_width(source: ModelSource, dtype: str) -> int:
    """Bytes of a number that a model computes with once it is loaded in a dtype; see ``weight_bytes``."""
    asked = Precision.read(dtype)
    own = torch.float32 if asked.quantise is not None else getattr(source.config, "dtype", None)
    wanted = DTYPES.get(asked.dtype) or own
    return wanted.itemsize if isinstance(wanted, torch.dtype) else 4


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    return None


def require_memory(
    target: ModelSource,
    draft: ModelSource | None,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
    stock: Sequence[ModelSource] = (),
    split: int = 1,
) -> None:
    """Refuse a pair, or a target alone, whose weights do not fit on the device."""
    models = {"--target": target} | ({} if draft is None else {"--draft": draft})
    packed_on = None if backend == ONNXRUNTIME else device
    sizes = [
        weight_bytes(model, dtype, flag, packed_on) or 0
        for (flag, model), dtype in zip(models.items(), dtypes, strict=False)
    ]
    if device.type != "cpu":
        sizes[0] //= split
    needed, when = sum(sizes), ""
    if backend == ONNXRUNTIME:
        loading = max(sum(sizes[:number]) + sizes[number - 1] for number in range(1, len(sizes) + 1))
        beside = sum(weight_bytes(model, "float32", "--target") or 0 for model in stock)
        needed, when = max(
            (loading, " while they are loaded"),
            (sum(sizes) + beside, " over ONNX Runtime and torch together"),
        )
    names = " and ".join(model.name for model in models.values())
    remedy = "Choose smaller models, --dtype bfloat16, --quantise int8 or another --device."
    require_free(needed, device, f"the weights of {names}", "--target", remedy, when)


def require_free(
    needed_bytes: int, device: torch.device, what: str, flag: str, remedy: str, when: str = ""
) -> None:
    """Refuse what does not fit into the free memory of a device; nothing where that is not known.

    Args:
        needed_bytes: by arithmetic.
    """
    available = available_bytes(device)
    if available is not None and needed_bytes > available:
        raise UsageError(
            f"{what} need {needed_bytes / _GIB:.3g} GiB{when}, but {device.type} has "
            f"{available / _GIB:.3g} GiB free.",
            flag=flag,
            remedy=remedy,
        )
