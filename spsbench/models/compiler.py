"""Whether torch's Inductor can compile a model here, asked before anything is loaded; what it compiled."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Any

import torch

from spsbench.base.errors import UsageError
from spsbench.config.models import INDUCTOR

_REMEDY = "Use --backend torch."


@dataclass(frozen=True, slots=True)
class Compiled:
    """How many decoder layers are compiled, of how many, and why one is not."""

    layers: int
    of: int
    reason: str = ""


def require_compiler(device: torch.device) -> None:
    if device.type != "cpu":
        why = f"{INDUCTOR} compiles for a CPU here, and the device is {device.type}."
        raise UsageError(why, flag="--backend", remedy=_REMEDY)
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
        why = f"{INDUCTOR} needs a C++ compiler, and {named or 'g++'} is not found."
        raise UsageError(why, flag="--backend", remedy="Install one, or use --backend torch.")


def require_compilable(config: Any, quantised: Any, name: str) -> None:
    """Refuse a model whose layers are of another kind than Inductor is given here."""
    if config.is_encoder_decoder:
        why = f"{name} is an encoder-decoder, and {INDUCTOR} compiles decoders."
    elif quantised is not None:
        why = f"the weights of {name} are quantised, and {INDUCTOR} compiles layers of plain ones."
    else:
        return
    raise UsageError(why, flag="--backend", remedy=_REMEDY)
