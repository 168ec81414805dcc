"""Folders with small random block drafters, in the layouts of those who publish them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

MASK, BLOCK, RANK = 5, 5, 6
_GROUP, _TAPS = 8, 2


def save_block(
    folder: Path,
    *,
    hidden: int,
    vocab_size: int,
    target_layers: int,
    kind: str = "dflash",
    writer: str = "speculators",
    layers: int = 2,
    block: int = BLOCK,
    reads: tuple[int, ...] = (1, 2),
    markov: str = "vanilla",
    candidates: int = 4,
    drafted: int = 0,
    seed: int = 0,
    scale: float = 0.3,
    sliding: int = 0,
    target: str = "tiny",
    without: tuple[str, ...] = (),
    **told: Any,
) -> Path:
    """Write one.

    Args:
        hidden, vocab_size, target_layers: the target's.
        kind: ``dflash``, ``dflash2`` or ``dspark``.
        writer: ``speculators``, or ``z-lab`` or ``deepspec`` for their authors' layouts.
        reads: ids as written.
        drafted: tokens that it can propose, every second one; 0 for all.
        sliding: the window of the last layer; 0 for full attention.
        without: tensors that are left out.
        told: in place of what ``config.json`` would say.
    """
    layer: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"] * (layers - bool(sliding)) + ["sliding_attention"] * bool(sliding),
        "sliding_window": sliding or None,
        "use_sliding_window": bool(sliding),
    }
    own: dict[str, Any] = {"block_size": block, "mask_token_id": MASK}
    if kind == "dflash2":
        own |= {"conv_kernel_size": _TAPS, "conv_group_size": _GROUP, "selector_rank": RANK}
        own |= {"selector_top_k": candidates}
    if kind == "dspark":
        own |= {"markov_rank": RANK, "markov_head_type": markov, "enable_confidence_head": False}
    if writer == "speculators":
        config = own | {
            "speculators_model_type": kind,
            "architectures": ["DFlashDraftModel"],
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": list(reads),
            "draft_vocab_size": drafted or vocab_size,
            "speculators_config": _verifier(kind, target, block),
        }
    elif writer == "z-lab":
        name = "DFlash2DraftModel" if kind == "dflash2" else "DFlashDraftModel"
        nested = {name: own[name] for name in own if name != "block_size"} | {"target_layer_ids": list(reads)}
        config = layer | {"architectures": [name], "block_size": block, "dflash_config": nested}
        config |= {"num_target_layers": target_layers}
    else:
        config = layer | own | {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": list(reads)}
        config |= {"num_target_layers": target_layers, "num_anchors": 4}
    tensors = block_tensors(kind, layer, len(reads), drafted or vocab_size, markov, seed, scale)
    if writer == "deepspec":
        generator = torch.Generator().manual_seed(seed + 1)
        for name in ("embed_tokens.weight", "lm_head.weight"):
            tensors[name] = scale * torch.randn(vocab_size, hidden, generator=generator)
    if drafted:
        ids = torch.arange(drafted) * 2
        tensors["d2t"] = ids - torch.arange(drafted)
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        generator = torch.Generator().manual_seed(seed + 2)
        tensors["lm_head.weight"] = scale * torch.randn(drafted, hidden, generator=generator)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config | told))
    kept = {name: part for name, part in tensors.items() if name not in without}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _verifier(kind: str, target: str, block: int) -> dict[str, Any]:
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": block - 1}],
        "verifier": {"name_or_path": target, "architectures": ["Qwen3ForCausalLM"]},
    }


def block_tensors(
    kind: str, layer: dict[str, Any], reads: int, drafted: int, markov: str, seed: int, scale: float
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = layer["hidden_size"], layer["intermediate_size"]
    queries, keys = 8 * layer["num_attention_heads"], 8 * layer["num_key_value_heads"]

    def noise(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    tensors = {"fc.weight": noise(hidden, reads * hidden)} | _parts_of(kind, markov, noise, layer, drafted)
    tensors |= {name: 1 + noise(hidden) for name in ("hidden_norm.weight", "norm.weight")}
    for number in range(layer["num_hidden_layers"]):
        sizes = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
        sizes |= {"o_proj": (hidden, queries)}
        named = {f"self_attn.{name}.weight": noise(*size) for name, size in sizes.items()}
        named |= {f"self_attn.{name}.weight": 1 + noise(8) for name in ("q_norm", "k_norm")}
        sizes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        named |= {f"mlp.{name}.weight": noise(*size) for name, size in sizes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            named[f"{name}.weight"] = 1 + noise(hidden)
        if kind == "dflash2":
            for name in ("attention_conv", "mlp_conv"):
                named[f"{name}.base_kernel"] = noise(2, _TAPS, hidden)
                named[f"{name}.kernel_projection.weight"] = noise(2 * _TAPS * hidden // _GROUP, hidden)
        tensors |= {f"layers.{number}.{name}": part for name, part in named.items()}
    return tensors


def _parts_of(
    kind: str, markov: str, noise: Callable[..., Tensor], layer: dict[str, Any], drafted: int
) -> dict[str, Tensor]:
    """What stands beside the layers."""
    tensors, hidden, vocab_size = {}, layer["hidden_size"], layer["vocab_size"]
    if kind == "dflash2":
        for name in ("predecessor_codebook", "successor_codebook"):
            tensors[f"candidate_selector.{name}"] = noise(vocab_size, RANK)
        tensors["candidate_selector.hidden_projection.weight"] = noise(RANK, hidden)
    if kind == "dspark":
        tensors["markov_head.markov_w1.weight"] = noise(vocab_size, RANK)
        tensors["markov_head.markov_w2.weight"] = noise(drafted, RANK)
        if markov == "gated":
            tensors["markov_head.gate_proj.weight"] = noise(RANK, hidden + RANK)
            tensors["markov_head.gate_proj.bias"] = noise(RANK)
        if markov == "rnn":
            tensors["markov_head.joint_proj.weight"] = noise(3 * RANK, hidden + 2 * RANK)
            tensors["markov_head.joint_proj.bias"] = noise(3 * RANK)
    return tensors
