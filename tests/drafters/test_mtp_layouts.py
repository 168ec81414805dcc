"""MTP modules of Ernie 4.5, LongCat-Flash and Nemotron-H against plain sums over their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_mtp import save_with_mtp
from torch import Tensor
from torch.nn.functional import relu, silu

from spsbench.base.records import Spec
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.mtp import NoModules, find_modules
from tests.drafters.test_blocks import PLAIN, PROMPT, V, context, loaded, loops, renamed

K, LOOPS = 3, 40


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Made(NamedTuple):
    """A target's tensors by name, and its configuration."""

    tensors: dict[str, Tensor]
    config: Any

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """The product of the linear layer of that name."""
        return x @ self.tensors[f"{name}.weight"].T

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * self.tensors[f"{name}.weight"]


def turned(x: Tensor, base: float, in_halves: bool = False) -> Tensor:
    """RoPE of [n, heads, d] at positions 0 to n - 1: numbers 2i and 2i + 1 are a pair, or i and i + d / 2."""
    n, _, d = x.shape
    angles = torch.arange(n)[:, None] * base ** (-torch.arange(0, d, 2) / d)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, -1) if in_halves else (x[..., 0::2], x[..., 1::2])
    pairs = first * cos - second * sin, first * sin + second * cos
    return torch.cat(pairs, -1) if in_halves else torch.stack(pairs, -1).flatten(-2)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of queries [n, heads, d] over as many keys; a group of heads shares one of few."""
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)


def gated(made: Made, name: str, x: Tensor) -> Tensor:
    return made(f"{name}.down_proj", silu(made(f"{name}.gate_proj", x)) * made(f"{name}.up_proj", x))


def of_ernie(made: Made, tokens: Tensor, states: Tensor, as_vllm: bool = False) -> tuple[Tensor, Tensor]:
    """Logits, and what is read again: the state behind the target's own final norm."""
    config, eps = made.config, made.config.rms_norm_eps
    embedded = made.norm("model.mtp_emb_norm.0", made.tensors["model.embed_tokens.weight"][tokens], eps)
    heard = made.norm("model.mtp_hidden_norm.0", states, eps)
    x = made("model.mtp_linear_proj.0", torch.cat([embedded, heard], -1))
    block = "model.mtp_block.0"
    normed = made.norm(f"{block}.input_layernorm", x, eps)
    counts = config.num_attention_heads, *[config.num_key_value_heads] * 2
    q, k, v = (
        made(f"{block}.self_attn.{part}_proj", normed).unflatten(-1, (heads, -1))
        for part, heads in zip("qkv", counts, strict=True)
    )
    base = config.rope_parameters["rope_theta"]
    mixed = attended(turned(q, base, in_halves=as_vllm), turned(k, base, in_halves=as_vllm), v)
    x = x + made(f"{block}.self_attn.o_proj", mixed)
    x = x + gated(made, f"{block}.mlp", made.norm(f"{block}.post_attention_layernorm", x, eps))
    x = x if as_vllm else made.norm("model.norm", x, eps)
    return made("model.embed_tokens", x), x


def of_longcat(made: Made, tokens: Tensor, states: Tensor, plain: bool = False) -> tuple[Tensor, Tensor]:
    """``plain``: latents as DeepSeek-V3 has them, without the target's factors."""
    config, eps, layer = made.config, made.config.rms_norm_eps, "model.mtp.layers.0"
    heads, latent, rope = config.num_attention_heads, config.kv_lora_rank, config.qk_rope_head_dim
    wide_q = 1.0 if plain else (config.hidden_size / config.q_lora_rank) ** 0.5
    wide_k = 1.0 if plain else (config.hidden_size / latent) ** 0.5
    embedded = made.norm(f"{layer}.enorm.m", made.tensors["model.mtp.embed_tokens.weight"][tokens], eps)
    heard = made.norm(f"{layer}.hnorm.m", states, eps)
    x = made(f"{layer}.eh_proj", torch.cat([embedded, heard], -1))
    normed, attention = made.norm(f"{layer}.input_layernorm", x, eps), f"{layer}.self_attn"
    q = made.norm(f"{attention}.q_a_layernorm", made(f"{attention}.q_a_proj", normed), 1e-6)
    q = (wide_q * made(f"{attention}.q_b_proj", q)).unflatten(-1, (heads, -1))
    compressed, k_rope = made(f"{attention}.kv_a_proj_with_mqa", normed).split([latent, rope], -1)
    compressed = wide_k * made.norm(f"{attention}.kv_a_layernorm", compressed, 1e-6)
    both = made(f"{attention}.kv_b_proj", compressed).unflatten(-1, (heads, -1))
    k, v = both.split([config.qk_nope_head_dim, config.v_head_dim], -1)
    base = config.rope_parameters["rope_theta"]
    shared = turned(k_rope[:, None], base).expand(-1, heads, -1)
    q = torch.cat([q[..., :-rope], turned(q[..., -rope:], base)], -1)
    x = x + made(f"{attention}.o_proj", attended(q, torch.cat([k, shared], -1), v))
    normed = made.norm(f"{layer}.post_attention_layernorm", x, eps)
    x = x + gated(made, f"{layer}.transformer_layer.mlp", normed)
    x = made.norm("model.mtp.norm", x, eps)
    return made("lm_head", x), x


def of_nemotron(made: Made, tokens: Tensor, states: Tensor, less_mean: bool = False) -> tuple[Tensor, Tensor]:
    """Attention without positions, then experts. ``less_mean``: a final norm that subtracts the mean."""
    config, eps = made.config, made.config.layer_norm_epsilon
    attention, experts = "mtp.layers.0", "mtp.layers.1"
    embedded = made.norm(f"{attention}.enorm", made.tensors["backbone.embeddings.weight"][tokens], eps)
    heard = made.norm(f"{attention}.hnorm", states, eps)
    x = made(f"{attention}.eh_proj", torch.cat([embedded, heard], -1))
    normed = made.norm(f"{attention}.norm", x, eps)
    q, k, v = (
        made(f"{attention}.mixer.{part}_proj", normed).unflatten(-1, (-1, config.head_dim)) for part in "qkv"
    )
    x = x + made(f"{attention}.mixer.o_proj", attended(q, k, v))
    normed, mixer = made.norm(f"{experts}.norm", x, eps), f"{experts}.mixer"
    scores = made(f"{mixer}.gate", normed).sigmoid()
    chosen = (scores + made.tensors[f"{mixer}.gate.e_score_correction_bias"]).topk(config.num_experts_per_tok)
    kept = torch.zeros_like(scores).scatter(-1, chosen.indices, scores.gather(-1, chosen.indices))
    kept = config.routed_scaling_factor * kept / kept.sum(-1, keepdim=True)

    def through(name: str) -> Tensor:
        return made(f"{name}.down_proj", relu(made(f"{name}.up_proj", normed)).square())

    routed = [through(f"{mixer}.experts.{number}") for number in range(config.n_routed_experts)]
    x = x + torch.einsum("ne,end->nd", kept, torch.stack(routed)) + through(f"{mixer}.shared_experts")
    x = made.norm(f"{experts}.final_layernorm", x - x.mean(-1, keepdim=True) if less_mean else x, eps)
    return made("lm_head", x), x


Reference = Callable[..., tuple[Tensor, Tensor]]
CASES: dict[str, tuple[Reference, str]] = {
    "ernie4.5-moe": (of_ernie, "as_vllm"),
    "longcat-flash": (of_longcat, "plain"),
    "nemotron-h": (of_nemotron, "less_mean"),
}
"""A reading of each, and what reads it otherwise."""


@pytest.mark.parametrize("family", CASES)
def test_rows_are_those_of_plain_sums(family: str, tmp_path: Path) -> None:
    """At each drafted place of the production's loops, also behind states that were read again."""
    reference, otherwise = CASES[family]
    saved = save_with_mtp(family, tmp_path / "t", vocab_size=V, bos_token_id=None, eos_token_id=None)
    target = loaded(saved)
    made = Made(load_file(saved / "model.safetensors"), target.config)
    text, errors, others = list(PROMPT), list[float](), list[float]()
    for loop in islice(loops(context(target, Spec("mtp"), PLAIN, K), Spec("mtp"), K), LOOPS):
        assert loop.draft.probs is not None
        known = torch.tensor(text)
        heard = target.model.get_decoder()(known[None, :-1]).last_hidden_state[0]
        for changed, found in ((False, errors), (True, others)):
            entries, states = known[1:], heard
            for drafted, shown in zip(loop.draft.tokens, loop.draft.probs, strict=True):
                logits, normed = reference(made, entries, states, **{otherwise: changed})
                found.append(float((logits[-1].softmax(-1) - shown).abs().max()))
                entries = torch.cat([entries, drafted[None]])
                states = torch.cat([states, normed[-1:]])
        text += loop.tokens
    assert len(errors) == LOOPS * K
    assert max(errors) < 1e-4
    assert sum(other > 1e-2 for other in others) > len(others) / 2


def test_what_a_module_of_ernie_lacks_is_named(tmp_path: Path) -> None:
    lacking = "model.mtp_linear_proj.0.weight"
    folder = renamed(save_with_mtp("ernie4.5-moe", tmp_path / "t"), lambda key: "" if key == lacking else key)
    with pytest.raises(NoModules, match=lacking):
        find_modules(Checkpoint(folder), loaded(folder).config)


def test_a_part_of_ernies_module_that_is_not_read_is_refused(tmp_path: Path) -> None:
    """A bias, or the scales of a quantised product, would change what the module computes."""
    folder = save_with_mtp("ernie4.5-moe", tmp_path / "t")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.mtp_linear_proj.0.bias": torch.ones(32)}, folder / "model.safetensors")
    with pytest.raises(NoModules, match=r"model\.mtp_linear_proj\.0\.bias is not read here"):
        find_modules(Checkpoint(folder), loaded(folder).config)
