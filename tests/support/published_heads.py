"""Folders of random heads as others publish them: EAGLE-3 in both layouts, P-EAGLE, Medusa, XPress."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spsbench.models.speculators import eagle3_body
from spsbench.models.trained import config_of_layers

Weights = dict[str, Tensor]

SIZES = {"intermediate_size": 48, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
READS = "eagle_aux_hidden_state_layer_ids"


def some(vocab_size: int) -> Tensor:
    """The tokens of a head's rows: every second one, ascending."""
    return torch.arange(0, vocab_size, 2)


def noise_of(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5


def save_published(
    folder: Path,
    hidden: int,
    vocab_size: int,
    kind: str = "eagle3",
    *,
    ids: Sequence[int] | None = (0, 1, 2),
    layers: int = 1,
    model_type: str = "llama",
    vocabulary: Tensor | None = None,
    sizes: Mapping[str, int] = SIZES,
    seed: int = 0,
    name: str = "tiny",
    **told: Any,
) -> Path:
    """Write a head in the format of ``speculators``.

    Args:
        folder: made.
        hidden: of target and head.
        vocab_size: of the target.
        kind: ``eagle3`` or ``peagle``.
        ids: of the target's layers, as written.
        vocabulary: the token of each row; every token without it.
        sizes: of the layers.
        told: further fields of its configuration.
    """
    make = noise_of(seed)
    layer = {"model_type": model_type, "hidden_size": hidden, "vocab_size": vocab_size, **sizes}
    layer |= {"num_hidden_layers": layers, "bos_token_id": None, "eos_token_id": None}
    count = 3 if ids is None else len(ids)
    rows = vocab_size if vocabulary is None else len(vocabulary)
    body = eagle3_body(config_of_layers(layer), before_residual=False)
    weights: Weights = {
        name: 1 + 0.3 * make(*part.shape) if name.endswith("norm.weight") else make(*part.shape)
        for name, part in body.state_dict().items()
        if not name.startswith("embed_tokens")
    }
    weights |= {"fc.weight": make(hidden, count * hidden), "lm_head.weight": make(rows, hidden)}
    if told.get("norm_before_fc"):
        weights["input_norm.weight"] = 1 + 0.3 * make(count * hidden)
    if told.get("fc_norm"):
        weights |= {f"fc_norm.{number}.weight": 1 + 0.3 * make(hidden) for number in range(count)}
    if kind == "peagle":
        weights |= {
            "mask_hidden": make(1, 1, count * hidden),
            "embed_tokens.weight": make(vocab_size, hidden),
        }
        told = {"mask_token_id": 1} | told
    if vocabulary is not None:
        weights["d2t"] = vocabulary - torch.arange(rows)
        weights["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, vocabulary, True)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": name}},
        "transformer_layer_config": layer,
        "draft_vocab_size": rows,
        "norm_before_residual": False,
        **told,
    }
    return write(folder, config | ({} if ids is None else {READS: list(ids)}), weights)


def write(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: part.contiguous() for name, part in weights.items()}, folder / "model.safetensors")
    return folder


def as_authors(folder: Path, out: Path, *, pickled: bool = False, **told: Any) -> Path:
    """Write a head of ``save_published`` with one layer in the layout of EAGLE-3's authors.

    Args:
        pickled: as ``pytorch_model.bin``.
        told: further fields of its configuration.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    weights = {name.replace("layers.0.", "midlayer."): part for name, part in weights.items()}
    layer = config["transformer_layer_config"]
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer,
        "draft_vocab_size": config["draft_vocab_size"],
    }
    write(out, own | told, weights)
    if pickled:
        (out / "model.safetensors").unlink()
        torch.save(weights, out / "pytorch_model.bin")
    return out


def save_medusa(folder: Path, hidden: int, vocab_size: int, heads: int = 3, blocks: int = 1) -> Path:
    """Write Medusa's heads as their authors do."""
    make = noise_of(1)
    weights: Weights = {}
    for head in range(heads):
        for block in range(blocks):
            weights[f"{head}.{block}.linear.weight"] = make(hidden, hidden)
            weights[f"{head}.{block}.linear.bias"] = make(hidden)
        weights[f"{head}.{blocks}.weight"] = make(vocab_size, hidden)
    folder.mkdir(parents=True, exist_ok=True)
    told = {"medusa_num_heads": heads, "medusa_num_layers": blocks, "base_model_name_or_path": "tiny"}
    (folder / "config.json").write_text(json.dumps(told))
    torch.save(weights, folder / "medusa_lm_head.pt")
    return folder


def changed(folder: Path, weights: Callable[[Weights], Weights] = dict, **told: Any) -> Path:
    """With other weights, and other fields of its configuration (None for none)."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | told
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    held = weights(load_file(folder / "model.safetensors"))
    save_file({name: part.contiguous() for name, part in held.items()}, folder / "model.safetensors")
    return folder
