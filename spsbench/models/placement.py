"""A target that is larger than one device: its modules on several, by accelerate's device maps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.files import read_file
from spsbench.config.models import INDUCTOR, ONNXRUNTIME, TORCH, Precision
from spsbench.models.causal_lm import LAST, States, skeleton
from spsbench.models.choices import Choices
from spsbench.models.memory import DTYPES, Weights, available_bytes
from spsbench.models.quantised import EXTRA, packed_bytes
from spsbench.models.source import ModelSource
from spsbench.models.torch_lm import TorchLM
from spsbench.models.witness import ReadBlock

FLAG = "--device-map"
STRATEGIES = ("auto", "balanced", "sequential")
"""Of accelerate, which fills devices by what is free on them; anything else names a file."""

DISK = "disk"
_GIB = 1 << 30
_FORM = 'Write {"MODULE": DEVICE, ...} with a GPU\'s number, "cpu" or "disk" for each, as model.layers.0.'

Modules = Mapping[str, "int | str"]
"""Device by the name of a module: a GPU's number, ``cpu`` or ``disk``; the longest name that fits counts."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What ``--device-map`` asks for."""

    text: str
    modules: Modules | None = None

    @property
    def content(self) -> str:
        """What must be equal for two placements to be the same: the strategy, or a hash of the file's map."""
        if self.modules is None:
            return self.text
        text = json.dumps(dict(self.modules), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @classmethod
    def read(cls, text: str) -> Placement:
        if find_spec("accelerate") is None:
            why = f"{text} needs accelerate, which is not installed."
            raise UnavailableError(why, flag=FLAG, remedy=f"pip install '{EXTRA}'.")
        return cls(text) if text in STRATEGIES else cls(text, _read_map(Path(text)))

    @classmethod
    def beside(cls, choice: str, text: str | None) -> tuple[Placement | None, str]:
        """Return a device map, if there is one, and the backends to choose from with it."""
        if text is None:
            return None, choice
        placement = cls.read(text)
        return placement, placement.backend(choice)

    def backend(self, choice: str) -> str:
        """Return torch, the only backend that can be spread over devices."""
        if choice in (ONNXRUNTIME, INDUCTOR):
            why = f"{self.text} spreads a model over devices, and {choice} computes on one CPU."
            raise UsageError(why, flag=FLAG, remedy="Leave it out, or use --backend torch.")
        return TORCH

    def require(self, target: ModelSource, dtype: str) -> None:
        """Refuse a target that cannot be placed so, and a map that does not fit it; nothing is loaded."""
        if target.is_encoder_decoder:
            why = f"{target.name} is an encoder-decoder, and only decoders are spread over devices."
            raise UsageError(why, flag=FLAG, remedy="Leave it out.")
        if self.modules is None:
            return
        if Precision(dtype).quantise is not None and {"cpu", DISK} & {*self.modules.values()}:
            why = f"{self.text} puts modules on cpu or disk, where quantised weights cannot be left."
            raise UsageError(why, flag=FLAG, remedy="Use GPUs only, or a --dtype without int8 and int4.")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for name, where in self.modules.items():
            if isinstance(where, int) and where >= count:
                why = f"{name} is put on GPU {where}, and there are {count} here."
                remedy = f"Use numbers below {count}." if count else 'Use "cpu" and "disk".'
                raise UsageError(why, flag=FLAG, remedy=remedy)
        _require_modules(self.modules, skeleton(target.config))

    def require_room(self, weights: Weights, target: Any, dtype: str, device: torch.device) -> None:
        """Refuse a map by which a device cannot hold its part; a strategy never overfills one.

        Args:
            target: its configuration; ``dtype`` is the target's, too.
            device: of the draft.
        """
        needed: dict[torch.device, int] = {}
        if weights.draft:
            needed[_indexed(device)] = weights.draft
        precision = Precision(dtype)
        if self.modules is None and precision.quantise is not None and device.type == "cuda":
            self._require_gpus(weights.known)
        if self.modules is not None:
            for place, size in _bytes_by_device(self.modules, target, precision).items():
                needed[place] = needed.get(place, 0) + size
        for place, size in needed.items():
            available = available_bytes(place)
            if available is not None and size > available:
                raise UsageError(
                    f"{self.text} puts {size / _GIB:.3g} GiB on {place}, which has "
                    f"{available / _GIB:.3g} GiB free.",
                    flag=FLAG,
                    remedy='Put more modules elsewhere, "disk" at worst, or use --dtype bfloat16.',
                )

    def _require_gpus(self, needed_bytes: int) -> None:
        """Refuse quantised weights that all GPUs together cannot hold: they cannot be left elsewhere."""
        gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        free = sum(available_bytes(gpu) or 0 for gpu in gpus)
        if needed_bytes > free:
            raise UsageError(
                f"{self.text} may put quantised weights on GPUs alone, which have "
                f"{free / _GIB:.3g} GiB free of {needed_bytes / _GIB:.3g} GiB.",
                flag=FLAG,
                remedy="Choose a smaller target, or a --dtype with int4, or without int8 and int4.",
            )

    def settings(
        self, target: ModelSource, dtype: str, reserved_bytes: int, device: torch.device, folder: str
    ) -> dict[str, Any]:
        """Return arguments of ``from_pretrained``.

        A strategy leaves ``reserved_bytes`` free on the draft's ``device``.
        """
        if self.modules is not None:
            plain = _without_nested(self.modules, skeleton(target.config))
            return {"device_map": plain, "offload_folder": folder}
        from accelerate.utils import get_max_memory

        quantised = Precision(dtype).quantise is not None
        memory = _usable_bytes(get_max_memory(), device, reserved_bytes, quantised=quantised)
        return {"device_map": self.text, "max_memory": memory, "offload_folder": folder}


class PlacedLM(TorchLM):
    """A model whose modules lie on several devices.

    accelerate moves what is passed between its modules. Token ids come from one device, that of the draft
    and of the sampling, and logits go back there, whichever device the head is on.
    """

    def __init__(self, model: Any, vocab_size: int, device: torch.device, source: ModelSource) -> None:
        super().__init__(model, vocab_size)
        self.device = device
        resolved = getattr(model, "hf_device_map", None) or {"": model.device}
        self.placed = {name: str(where) for name, where in resolved.items()}
        self.parameters = sum(part.numel() for part in skeleton(source.config).parameters())

    def _scored(self, tokens: Tensor, last: int) -> Tensor:
        return super()._scored(tokens, last).to(self.device)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        return super().score_uncached(tokens, last).to(self.device)

    def score_uncached_parts(self, tokens: Tensor, last: int, rows: int) -> Iterator[Tensor]:
        for part in super().score_uncached_parts(tokens, last, rows):
            yield part.to(self.device)

    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> Iterator[Tensor] | None:
        rows = super().score_in_blocks(tokens, first, blocks, choices)
        return None if rows is None else (row.to(self.device) for row in rows)

    def with_features(self, flag: str, states: States = LAST) -> NoReturn:
        why = "a drafter that reads layers, states or the embedding of its target needs it on one device."
        remedy = f"Draft with a model, lookup, suffix or ngram, or leave {FLAG} out."
        raise UsageError(why, flag=flag, remedy=remedy)

    def truncated(self, layers: int, flag: str) -> NoReturn:
        self.with_features(flag)

    def embedding_fingerprint(self) -> NoReturn:
        self.with_features("--draft")


def _read_map(path: Path) -> Modules:
    try:
        content = json.loads(read_file(path))
    except OSError as error:
        why = f"{path} is neither a strategy nor a readable file."
        remedy = f"Choose from {', '.join(STRATEGIES)}, or name a JSON file."
        raise UsageError(why, flag=FLAG, remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON.", flag=FLAG, remedy=_FORM) from error
    devices = content.values() if isinstance(content, dict) else ()
    known = [where in ("cpu", DISK) or (type(where) is int and where >= 0) for where in devices]
    if not known or not all(known):
        raise UsageError(f"{path} is not a device map.", flag=FLAG, remedy=_FORM)
    return dict(content)


def _require_modules(modules: Modules, model: Any) -> None:
    """Require that every name is a module, every weight has a device, and tied weights share one."""
    known = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    for name in modules:
        if name not in known:
            remedy = f"It has {', '.join(sorted(name for name in known if name)[:4])}, ..."
            raise UsageError(f"{type(model).__name__} has no module {name}.", flag=FLAG, remedy=remedy)
    for name, _ in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        if _device_of(name, modules) is None:
            remedy = 'Add it, or "" for all others.'
            raise UsageError(f"no device is given for {name}.", flag=FLAG, remedy=remedy)
    for one, other in model.all_tied_weights_keys.items():
        if _device_of(one, modules) != _device_of(other, modules):
            raise UsageError(
                f"{one} and {other} are one tensor, and are put on {_device_of(one, modules)} and "
                f"{_device_of(other, modules)}.",
                flag=FLAG,
                remedy="Put both on one device.",
            )


def _device_of(name: str, modules: Modules) -> int | str | None:
    """Of a weight: that of the longest module name which it begins with."""
    fitting = [part for part in modules if not part or name == part or name.startswith(f"{part}.")]
    return modules[max(fitting, key=len)] if fitting else None


def _without_nested(modules: Modules, model: Any) -> dict[str, int | str]:
    """The same map without modules inside of others, as accelerate wants it."""
    device_of: dict[str, int | str] = {}

    def walk(part: Any, name: str) -> None:
        inside = f"{name}." if name else ""
        device = modules.get(name, _device_of(name, modules))
        within = {where for key, where in modules.items() if key.startswith(inside) and key != name}
        if device is not None and within <= {device}:
            device_of[name] = device
            return
        for child, module in part.named_children():
            walk(module, inside + child)
        for child, _ in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            where = _device_of(inside + child, modules)
            assert where is not None, "every weight was given a device"
            device_of[inside + child] = where

    walk(model, "")
    return device_of


def _bytes_by_device(modules: Modules, config: Any, precision: Precision) -> dict[torch.device, int]:
    """Of weights; none on disk, and quantised weights on GPUs only."""
    sizes: dict[torch.device, int] = {}
    model = skeleton(config, DTYPES.get(precision.dtype))
    packed: dict[str, tuple[int, int]] = {}
    if precision.quantise is not None:
        packed = packed_bytes(model, precision, torch.device("cuda"), model.dtype.itemsize)
    for name, part in model.named_parameters():
        where = _device_of(name, modules)
        if where not in (None, DISK):
            place = torch.device("cpu") if where == "cpu" else torch.device("cuda", int(str(where)))
            sizes[place] = sizes.get(place, 0) + packed.get(name, (0, part.nbytes))[1]
    return sizes


def _usable_bytes(
    memory: dict[Any, int], device: torch.device, reserved_bytes: int = 0, *, quantised: bool = False
) -> dict[Any, int]:
    """Free memory of the devices that a strategy may fill, less what is reserved on one.

    With ``--device cpu`` these are not GPUs. Quantised weights stay on the kind of device that packed them.
    """
    place = _indexed(device)
    name_of_place = place.index if place.type == "cuda" else place.type
    usable = (
        ["cpu"] if name_of_place == "cpu" else [name for name in memory if not (quantised and name == "cpu")]
    )
    return {name: max(memory[name] - reserved_bytes * (name == name_of_place), 0) for name in usable}


def _indexed(device: torch.device) -> torch.device:
    """``cuda`` as the GPU that it means."""
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
