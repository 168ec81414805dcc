"""Writing what was trained, as ``models.trained`` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.models.trained import DESCRIPTION, FORMAT, VOCABULARY, WEIGHTS, MadeFor


def write_draft(
    folder: Path,
    kind: str,
    target: MadeFor,
    config: dict[str, Any] | None,
    heads: int,
    weights: dict[str, Tensor],
    vocabulary: Tensor,
) -> None:
    """Write a draft's weights in bfloat16 and what they are; a reader finds both or no ``draft.json``.

    Args:
        vocabulary: [m] the ids that it proposes, ascending.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "format": FORMAT,
        "kind": kind,
        "target": {
            "name": target.name,
            "hidden": target.hidden,
            "vocab_size": target.vocab_size,
            "embedding": target.embedding,
        },
        "config": config,
    } | ({"heads": heads} if heads else {})
    tensors = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in weights.items()}
    if len(vocabulary) < target.vocab_size:
        tensors[VOCABULARY] = vocabulary.to("cpu", torch.int32)
    _replace(folder / WEIGHTS, lambda path: save_file(tensors, path))
    text = json.dumps(described, indent=2) + "\n"
    _replace(folder / DESCRIPTION, lambda path: path.write_text(text, encoding="utf-8"))


def _replace(path: Path, write: Any) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    write(unfinished)
    unfinished.replace(path)
