"""Small random checkpoints that hold multi-token prediction modules, as real ones do."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from support.tiny_models import BOS, EOS, TOKENS, make, make_tokenizer, save
from torch import Tensor

from spsbench.models.assistant import sharing_all

_SIZES = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
}
_ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_HYBRID = {
    "head_dim": 8,
    "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_MELLUM = {
    "head_dim": 8,
    "num_experts": 4,
    "sliding_window": 16,
    "layer_types": ["full_attention", "sliding_attention"],
    "mlp_layer_types": ["sparse", "sparse"],
}

_NEMOTRON = {
    "head_dim": 8,
    "hybrid_override_pattern": "M*E",
    "mtp_hybrid_override_pattern": "*E",
    "n_routed_experts": 4,
    "moe_shared_expert_intermediate_size": 16,
    "ssm_state_size": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "chunk_size": 8,
}

_ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "pad_token_id": None}
_LONGCAT = _LATENT | {
    "head_dim": 8,
    "num_layers": 1,
    "num_key_value_heads": 4,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 16,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "moe_topk": 2,
}

FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "deepseek-v3": ("DeepseekV3Config", _ROUTED | _LATENT | {"num_key_value_heads": 4}, "behind"),
    "ernie4.5-moe": ("Ernie4_5_MoeConfig", _ERNIE, "ernie"),
    "glm4-moe": ("Glm4MoeConfig", _ROUTED | {"head_dim": 8}, "behind"),
    "longcat-flash": ("LongcatFlashConfig", _LONGCAT, "longcat"),
    "mellum": ("MellumConfig", _MELLUM, "qwen"),
    "nemotron-h": ("NemotronHConfig", _NEMOTRON, "nemotron"),
    "qwen3.5": ("Qwen3_5TextConfig", _HYBRID, "qwen"),
    "qwen3-next": ("Qwen3NextConfig", _HYBRID | {"num_experts": 4}, "qwen"),
}
"""Configuration class, sizes, and how the modules are written."""


def mtp_config(family: str, layers: int = 2, **changes: Any) -> Any:
    """A target's configuration; ``changes`` replace its sizes."""
    name, sizes, _ = FAMILIES[family]
    given = _SIZES | sizes | {"num_hidden_layers": layers} | changes
    if family == "longcat-flash":  # whose layers are counted by halves, and sizes have names of their own
        others = ("num_hidden_layers", "intermediate_size", "moe_intermediate_size", "num_experts_per_tok")
        given = {name: value for name, value in given.items() if name not in others}
    return getattr(transformers, name)(**given)


def save_with_mtp(
    family: str,
    folder: Path,
    layers: int = 2,
    modules: int = 1,
    seed: int = 3,
    scale: float = 0.3,
    **changes: Any,
) -> Path:
    """A checkpoint whose files hold modules that transformers drops."""
    config = mtp_config(family, layers, num_nextn_predict_layers=modules, **changes)
    save(make(config), folder, make_tokenizer())
    tensors = load_file(folder / "model.safetensors")
    for number in range(modules):
        tensors |= module_tensors(family, config, number, seed + number, scale)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | {"num_nextn_predict_layers": modules}))
    return folder


def module_tensors(family: str, config: Any, number: int, seed: int, scale: float) -> dict[str, Tensor]:
    """One module's tensors under the names that its family's files have."""
    generator = torch.Generator().manual_seed(seed)
    width = config.hidden_size

    def noise(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    layer = _layer_tensors(config, seed)
    gains = {name: 1 + noise(width) for name in ("enorm", "hnorm", "norm")}
    # The target's state comes through the product as it is, with some noise, so that drafts are often right.
    product = torch.cat([torch.zeros(width, width), torch.eye(width)], 1) + noise(width, 2 * width)
    if FAMILIES[family][2] == "behind":
        prefix = f"model.layers.{config.num_hidden_layers + number}."
        own = {
            "enorm.weight": gains["enorm"],
            "hnorm.weight": gains["hnorm"],
            "eh_proj.weight": product,
            "shared_head.norm.weight": gains["norm"],
        }
        return {f"{prefix}{name}": part.contiguous() for name, part in (layer | own).items()}
    if FAMILIES[family][2] == "ernie":
        own = {"emb_norm": gains["enorm"], "hidden_norm": gains["hnorm"], "linear_proj": product}
        block = {f"model.mtp_block.{number}.{name}": part.contiguous() for name, part in layer.items()}
        return block | {f"model.mtp_{name}.{number}.weight": part for name, part in own.items()}
    if FAMILIES[family][2] == "longcat":
        own = {
            "layers.0.enorm.m.weight": gains["enorm"],
            "layers.0.hnorm.m.weight": gains["hnorm"],
            "layers.0.eh_proj.weight": product,
            "norm.weight": gains["norm"],
            "embed_tokens.weight": noise(config.vocab_size, width),
        }
        own |= {f"layers.0.{name}": part.contiguous() for name, part in layer.items()}
        return {f"model.mtp.{name}": part for name, part in own.items()}
    if FAMILIES[family][2] == "nemotron":
        count = len(config.mtp_layers_block_type)
        own = {
            "0.enorm.weight": gains["enorm"],
            "0.hnorm.weight": gains["hnorm"],
            "0.eh_proj.weight": product,
            f"{count - 1}.final_layernorm.weight": gains["norm"],
        }
        return {f"mtp.layers.{name}": part.contiguous() for name, part in (layer | own).items()}
    own = {
        "mtp.pre_fc_norm_embedding.weight": gains["enorm"],
        "mtp.pre_fc_norm_hidden.weight": gains["hnorm"],
        "mtp.fc.weight": product,
        "mtp.norm.weight": gains["norm"],
    }
    return own | {f"mtp.layers.{number}.{name}": part.contiguous() for name, part in layer.items()}


def _layer_tensors(config: Any, seed: int) -> dict[str, Tensor]:
    """A layer of a model's own kind, as its files have it; of Nemotron-H several, by number.

    A sparse one, but of Ernie and LongCat-Flash, whose modules are dense.
    """
    told = copy.deepcopy(config)
    if told.model_type == "longcat_flash":
        return _half_a_layer(make(told, seed))
    if told.model_type == "ernie4_5_moe":
        told.moe_layer_start_index = told.moe_layer_end_index = 1
    told.vocab_size, told.num_hidden_layers, told.first_k_dense_replace = 8, 1, 0
    told.bos_token_id = told.eos_token_id = told.pad_token_id = None
    several = getattr(told, "mtp_layers_block_type", None)
    if getattr(told, "layer_types", None):
        told.layer_types = several or told.layer_types[-1:]
    if getattr(told, "mlp_layer_types", None):
        told.mlp_layer_types = ["sparse"]
    model = make(told, seed)
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    prefix = "backbone.layers." if several else "model.layers.0."
    return {name[len(prefix) :]: part for name, part in tensors.items() if name.startswith(prefix)}


def _half_a_layer(model: Any) -> dict[str, Tensor]:
    """One attention and one product of a layer of LongCat-Flash, which has two of each and experts."""
    found = {}
    for name, part in model.model.layers[0].state_dict().items():
        whole, _, inner = name.partition(".0.")
        if inner:
            place = f"transformer_layer.mlp.{inner}" if whole == "mlps" else f"{whole}.{inner}"
            found[place] = part.clone()
    return {name: part for name, part in found.items() if "experts" not in name}


def save_speculators_mtp(folder: Path, config: Any, target: str, seed: int = 3, scale: float = 0.3) -> Path:
    """A module apart from its target, a dense Qwen 3, in the format of ``speculators``."""
    layer = {**json.loads(config.to_json_string()), "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    model = make(type(config)(**layer), seed)
    prefix = "model.layers.0."
    tensors = {
        f"mtp_layers.0.{name[len(prefix) :]}": part.clone()
        for name, part in model.state_dict().items()
        if name.startswith(prefix)
    }
    generator, width = torch.Generator().manual_seed(seed), config.hidden_size
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        gain = 1 + scale * torch.randn(width, generator=generator)
        tensors[f"mtp_layers.0.{name}.weight"] = gain
    through = torch.cat([torch.zeros(width, width), torch.eye(width)], 1)
    noise = scale * torch.randn(width, 2 * width, generator=generator)
    tensors["mtp_layers.0.input_proj.weight"] = through + noise
    told = {
        "speculators_model_type": "mtp",
        "architectures": ["MTPDraftModel"],
        "transformer_layer_config": layer,
        "num_nextn_predict_layers": 1,
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": target, "architectures": ["Qwen3ForCausalLM"]},
        },
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(told))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


_GEMMA: dict[str, Any] = {
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 8,
    "num_global_key_value_heads": 2,
    "sliding_window": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "hidden_size_per_layer_input": 8,
    "use_double_wide_mlp": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def gemma4_config(vocab_size: int = TOKENS, **changes: Any) -> Any:
    """A Gemma 4 of six layers, the last two of which share the keys and values of earlier ones."""
    types = ["sliding_attention", "full_attention"] * 3
    sizes = {"hidden_size": 32, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": types}
    sizes |= {"vocab_size": vocab_size, "vocab_size_per_layer_input": vocab_size}
    return transformers.Gemma4TextConfig(**_GEMMA | sizes | changes)


def make_gemma4(vocab_size: int = TOKENS, **changes: Any) -> Any:
    return make(gemma4_config(vocab_size, **changes))


def save_assistant(
    folder: Path, vocab_size: int = TOKENS, width: int = 32, ordered: bool = False, seed: int = 4
) -> Path:
    """An assistant for such a Gemma 4."""
    types = ["sliding_attention", "full_attention"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_kv_shared_layers": 2}
    sizes |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    text = gemma4_config(vocab_size, layer_types=types, **sizes)
    config = transformers.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=width,
        use_ordered_embeddings=ordered,
        num_centroids=4,
        centroid_intermediate_top_k=2,
    )
    torch.manual_seed(seed)
    with sharing_all(config):
        model = transformers.Gemma4AssistantForCausalLM(config).eval()
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "projection" in name or "centroids" in name:
                part.normal_(0.0, 0.3)
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(vocab_size))
    model.save_pretrained(folder)
    return folder
