"""Small random checkpoints of many architectures, saved to a folder as real ones are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors

from spsbench.config import PairConfig
from spsbench.config.models import ModelRef
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.pair import PairSource, find_pair
from spsbench.models.torch_lm import TorchLM

# The tokenizer: one token per byte, then BOS and EOS.
BOS, EOS = 256, 257
TOKENS = 258
WINDOW = 16
"""Attention window of the windowed architectures: shorter than every prompt of the tests."""

# Like Llama 3: the template adds BOS itself.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

_SHALLOW = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
_PLAIN = _SHALLOW | {"intermediate_size": 48, "max_position_embeddings": 512}
_GROUPED = _PLAIN | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 8}
_GEMMA3 = {
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
}
_FALCON = _SHALLOW | {"max_position_embeddings": 512, "ffn_hidden_size": 48}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512}),
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", _HEADS),
    "gpt_neox": ("GPTNeoXConfig", _PLAIN),
    "opt": (
        "OPTConfig",
        _SHALLOW | {"ffn_dim": 48, "max_position_embeddings": 512} | {"word_embed_proj_dim": 32},
    ),
    "mistral": ("MistralConfig", _HEADS | {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", _HEADS | _GEMMA3),
    "phi": ("PhiConfig", _PLAIN),
    "phi3": ("Phi3Config", _GROUPED | {"pad_token_id": None}),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 4, "n_head": 4}),
    "falcon": ("FalconConfig", _FALCON),
    "falcon-alibi": ("FalconConfig", _FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False}),
    "mixtral": ("MixtralConfig", _GROUPED | _EXPERTS),
    "olmo2": ("Olmo2Config", _GROUPED),
}
"""Configuration class and sizes; four layers each, the draft has the first two."""

_LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_GPT = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512}

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("GemmaConfig", _HEADS),
    "gemma2": ("Gemma2Config", _HEADS | {"sliding_window": WINDOW, "query_pre_attn_scalar": 8}),
    "qwen3-moe": ("Qwen3MoeConfig", _HEADS | {"num_experts": 4, "num_experts_per_tok": 2}),
    "llama4": ("Llama4TextConfig", _HEADS | {"attention_chunk_size": WINDOW, "num_local_experts": 2}),
    "deepseek-v3": ("DeepseekV3Config", _PLAIN | {"num_key_value_heads": 4} | _LATENT | _ROUTED),
    "gpt-oss": ("GptOssConfig", _HEADS | _EXPERTS | {"sliding_window": WINDOW}),
    "cohere2": ("Cohere2Config", _GROUPED | {"sliding_window": WINDOW}),
    "gpt-j": ("GPTJConfig", _GPT | {"rotary_dim": 8}),
    "gpt-neo": (
        "GPTNeoConfig",
        {"hidden_size": 32, "num_layers": 4, "num_heads": 4, "window_size": WINDOW}
        | {"attention_types": [[["global", "local"], 2]], "max_position_embeddings": 512},
    ),
    "gpt-bigcode": ("GPTBigCodeConfig", _GPT),
    "starcoder2": ("Starcoder2Config", _GROUPED),
    "granite": ("GraniteConfig", _GROUPED),
    "stablelm": ("StableLmConfig", _GROUPED),
    "smollm3": ("SmolLM3Config", _GROUPED | {"pad_token_id": None}),
    "modernbert": (
        "ModernBertDecoderConfig",
        _PLAIN | {"local_attention": 2 * WINDOW, "pad_token_id": 0, "cls_token_id": BOS, "sep_token_id": EOS},
    ),
}
"""Architectures that are put to the self-test alone."""

_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
_SCAN = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_n_heads": 4}
_SCAN2 = _SCAN | {"mamba_n_groups": 1, "mamba_chunk_size": 16}
_STATES = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_SPARSE = _LATENT | _ROUTED | {"moe_intermediate_size": 16, "first_k_dense_replace": 1}
_INDEX = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 8}
_QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SHORT = {"layer_types": ["conv", "full_attention", "conv", "conv"]}

RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5": ("Qwen3_5TextConfig", _HEADS | _DELTA),
    "lfm2": ("Lfm2Config", _GROUPED | _SHORT),
    "mamba": ("MambaConfig", _STATES),
    "falcon-h1": ("FalconH1Config", _HEADS | _SCAN2 | {"mamba_d_ssm": 32, "mamba_d_head": 8}),
    "deepseek-v4": ("DeepseekV4Config", _HEADS),
    "deepseek-v3.2": ("DeepseekV32Config", _PLAIN | {"num_key_value_heads": 4} | _SPARSE | _INDEX),
    "minimax": (
        "MiniMaxConfig",
        _HEADS | _EXPERTS | {"block_size": 16, "layer_types": ["full_attention", "linear_attention"] * 2},
    ),
    "recurrent-gemma": (
        "RecurrentGemmaConfig",
        _HEADS
        | {"lru_width": 32, "attention_window_size": WINDOW, "conv1d_width": 4}
        | {"block_types": ["recurrent", "recurrent", "attention"]},
    ),
    "rwkv": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}),
}
"""Architectures whose cache has more than a row for each token: one of each kind of cache."""

MORE_RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-next": ("Qwen3NextConfig", _HEADS | _DELTA | _QWEN_MOE | {"shared_expert_intermediate_size": 16}),
    "olmo-hybrid": ("OlmoHybridConfig", _HEADS | _DELTA | {"pad_token_id": 0}),
    "kimi-linear": (
        "KimiLinearConfig",
        _PLAIN
        | {"num_key_value_heads": 4, "head_dim": 8}
        | _LATENT
        | {"q_lora_rank": None, "layer_types": _DELTA["layer_types"], "pad_token_id": 0}
        | {"num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 16}
        | {"first_k_dense_replace": 1},
    ),
    "granite-hybrid": (
        "GraniteMoeHybridConfig",
        _GROUPED
        | _EXPERTS
        | _SCAN2
        | {"mamba_d_head": 16, "shared_intermediate_size": 16}
        | {"layer_types": ["mamba", "mamba", "attention", "mamba"]},
    ),
    "nemotron-h": (
        "NemotronHConfig",
        _HEADS
        | {"layers_block_type": ["mamba", "moe", "attention", "mamba"], "mamba_num_heads": 4}
        | {"mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "conv_kernel": 4, "chunk_size": 16}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"moe_shared_expert_intermediate_size": 16},
    ),
    "bamba": (
        "BambaConfig",
        _HEADS | _SCAN2 | {"mamba_d_head": 16, "attn_layer_indices": [1, 3], "pad_token_id": 0},
    ),
    "jamba": (
        "JambaConfig",
        _GROUPED
        | {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    "zamba2": (
        "Zamba2Config",
        _GROUPED
        | {"mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "chunk_size": 16}
        | {"layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1, "adapter_rank": 4},
    ),
    "mamba2": ("Mamba2Config", _STATES | {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16}),
    "lfm2-moe": ("Lfm2MoeConfig", _GROUPED | _SHORT | _QWEN_MOE | {"num_dense_layers": 1}),
    "glm-5": ("GlmMoeDsaConfig", _PLAIN | {"num_key_value_heads": 4} | _SPARSE | _INDEX),
}
"""Families in use beside those."""


_TWO_SIDED = {"vocab_size": TOKENS, "eos_token_id": EOS}
_BART = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 512}
_BART_HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
SEQ2SEQ: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": (
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 3}
        | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "n_positions": 512}
        | {"initializer_factor": 3.0, "decoder_start_token_id": BOS, "pad_token_id": BOS},
    ),
    "bart": (
        "BartConfig",
        _BART
        | _BART_HEADS
        | {"encoder_layers": 2, "decoder_layers": 3, "init_std": 0.3, "decoder_start_token_id": EOS}
        | {"bos_token_id": BOS, "pad_token_id": BOS, "forced_bos_token_id": BOS, "forced_eos_token_id": None},
    ),
}
"""Encoder-decoders: configuration class and sizes; T5 starts with its padding, BART with EOS and then BOS."""


def make_seq2seq(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A random encoder-decoder, in eval mode; ``changes`` replace its sizes."""
    name, sizes = SEQ2SEQ[architecture]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**_TWO_SIDED | sizes | changes)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    if (forced := sizes.get("forced_bos_token_id")) is not None:  # not of a configuration's own keys any more
        model.generation_config.forced_bos_token_id = forced
    return model


def save_seq2seq(architecture: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random encoder-decoder with a tokenizer that closes every text with EOS."""
    return save(make_seq2seq(architecture, seed, **changes), folder, make_tokenizer(closing=True))


def config_of(architecture: str, **changes: Any) -> Any:
    """A configuration; ``changes`` replace its sizes."""
    name, sizes = (ARCHITECTURES | MORE | RECURRENT | MORE_RECURRENT)[architecture]
    settings = {"vocab_size": TOKENS, "initializer_range": 0.3} | sizes
    settings |= {"bos_token_id": BOS, "eos_token_id": EOS} | changes
    return getattr(transformers, name)(**settings)


def make(config: Any, seed: int = 0) -> Any:
    """A model with random weights, in eval mode."""
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def make_pair(
    architecture: str, late: float = 0.8, vocab_sizes: tuple[int, int] = (TOKENS, TOKENS), **sizes: Any
) -> Any:
    """(target of four layers, draft with its first two).

    Args:
        architecture: a key of ``ARCHITECTURES``.
        late: scales the weights of the target's later layers, so that the draft is often right.
        vocab_sizes: logits of target and draft; those behind the tokenizer's are padding.
        sizes: in place of the architecture's.
    """
    config = config_of(architecture, vocab_size=vocab_sizes[0], **sizes)
    changes = {name: 2 for name in ("num_hidden_layers", "n_layer") if name in ARCHITECTURES[architecture][1]}
    if getattr(config, "layer_types", None):
        changes["layer_types"] = config.layer_types[:2]
    target = make(config)
    draft = make(config_of(architecture, vocab_size=vocab_sizes[1], **sizes | changes))
    with torch.no_grad():
        for name, weights in target.named_parameters():
            layer = re.search(r"\.(\d+)\.", name)
            if layer and int(layer[1]) >= 2:
                # Gemma's norms multiply by 1 + weight.
                shift = 1.0 if architecture == "gemma3" and "norm" in name else 0.0
                weights.copy_((weights + shift) * late - shift)
        head = target.get_output_embeddings().weight
        head[TOKENS + 1 :] = 0.0  # padding is never the best
    whole = target.state_dict()
    draft.load_state_dict({name: whole[name][: len(part)] for name, part in draft.state_dict().items()})
    return target, draft


def over_onnx(model: Any, vocab_size: int | None = None, threads: int = 1) -> OnnxLM:
    """A loaded model with ONNX Runtime's forward."""
    size = vocab_size or model.config.vocab_size
    return OnnxLM(model.config, LoadedWeights(model), size, threads, lambda: TorchLM(model))


def make_tokenizer(
    *, bos: bool = False, closing: bool = False, chat_template: str | None = None, extra: int = 0
) -> Any:
    """A byte-level tokenizer with BOS <s> and EOS </s>.

    Args:
        bos: whether a prompt begins with BOS, as with Llama.
        closing: whether it ends with EOS, as with T5.
        chat_template: Jinja text.
        extra: tokens added behind the others.
    """
    vocabulary = {byte: index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>", *(f"<extra_{i}>" for i in range(extra))])
    if closing:
        core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def save(model: Any, folder: Path, tokenizer: Any = None, **settings: Any) -> Path:
    """A checkpoint in a new folder; ``settings`` go to ``save_pretrained``."""
    model.save_pretrained(folder, **settings)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


def pair_of(target: Path | str, draft: Path | str | None = None, revision: str | None = None) -> PairSource:
    """A pair of saved checkpoints, found as a run finds them; the target drafts unless a draft is given."""
    refs = [ModelRef(id=str(path), revision=revision) for path in (target, draft or target)]
    return find_pair(PairConfig(name="tiny", target=refs[0], draft=refs[1]))
