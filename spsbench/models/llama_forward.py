"""A forward for Llama-class models with few operations.

At batch size 1 the time of a small model is dispatch: transformers' forward runs some 45 operations per
layer, and checks, masks and wrappers on every call. This one runs half as many: query, key and value are
one matrix product, gate and up projections are another, rotary tables are cached, and norms are short.
The target of every arm and the draft use it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.models.cache import RewindCache
from spsbench.models.packed_linear import KernelMode, PackedLinear

_CLASSES = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"})
# Types of rotary embedding whose tables do not depend on the sequence length.
_FIXED_ROPE = frozenset({"default", "linear", "llama3"})
_FIRST_POSITIONS = 1024


class LlamaForward:
    """Scores tokens with the weights of a model that ``applies_to`` accepts.

    Weights that multiply the same input are concatenated. The model's parameters become views of the
    result, so that the model still works and nothing is stored twice.

    Args:
        model: a ``PreTrainedModel`` with a language-model head.
        mode: whether packed weights are used.

    Attributes:
        linears: all matrix products of a forward.
    """

    def __init__(self, model: Any, mode: KernelMode) -> None:
        self._inner = model.model
        self._head = _joined([model.lm_head], mode)
        self._layers = [_Layer(layer, number, mode) for number, layer in enumerate(model.model.layers)]
        self._norm = _Norm(model.model.norm)
        self._device = model.device
        self._tables: tuple[Tensor, Tensor] | None = None
        self.linears = [self._head, *(linear for layer in self._layers for linear in layer.linears)]

    @staticmethod
    def applies_to(model: Any) -> bool:
        """Whether this class is known to compute the model's forward."""
        config = model.config
        rope = getattr(config, "rope_parameters", None) or {}
        windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return (
            type(model).__name__ in _CLASSES
            and config._attn_implementation == "sdpa"
            and rope.get("rope_type", "default") in _FIXED_ROPE
            and not windowed
            and not getattr(model, "is_quantized", False)
        )

    def __call__(self, tokens: Tensor, cache: RewindCache, last: int) -> Tensor:
        """Append [n] tokens to the cache; return [last, V] logits."""
        start, n = cache.length, tokens.shape[0]
        hidden = F.embedding(tokens, self._inner.embed_tokens.weight)
        cos, sin = self._rotary(hidden, start, n)
        mask = self._mask(hidden, start, n)
        for layer in self._layers:
            hidden = layer(hidden, cos, sin, mask, cache)
        return self._head(self._norm(hidden if last == n else hidden[-last:]))

    def _rotary(self, like: Tensor, start: int, n: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the next n positions, [n, 1, head_dim] each."""
        if self._tables is None or self._tables[0].shape[0] < start + n:
            size = max(_FIRST_POSITIONS, 2 * (start + n))
            positions = torch.arange(size, device=self._device).unsqueeze(0)
            cos, sin = (table[0].unsqueeze(1) for table in self._inner.rotary_emb(like, positions))
            half = sin.shape[-1] // 2
            # Rotation needs (-b, a) of (a, b): the sign is in the table, the swap is a roll by half.
            self._tables = cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        cos, sin = self._tables
        return cos[start : start + n], sin[start : start + n]

    def _mask(self, like: Tensor, start: int, n: int) -> Tensor | None:
        """Additive mask [1, 1, n, start + n]: 0 for visible positions, minus infinity for all others.

        None where the kernel needs none. It is not boolean, since every layer would convert it.
        """
        if n == 1 or start == 0:
            return None
        hidden = torch.full((n, start + n), float("-inf"), dtype=like.dtype, device=self._device)
        return hidden.triu_(start + 1)[None, None]


class _Norm:
    """RMS norm, computed in float32 whatever the model's dtype, like the model's own.

    On a CPU ``torch.rms_norm`` is a chain of a dozen operations; this one has six. A conversion to the
    same dtype is skipped: it costs as much as one of them.
    """

    def __init__(self, norm: Any) -> None:
        self._weight: Tensor = norm.weight
        self._eps = torch.tensor(norm.variance_epsilon, device=norm.weight.device)
        self._share = 1.0 / norm.weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return self._scaled(x) * self._weight
        return self._scaled(x.float()).to(x.dtype) * self._weight

    def _scaled(self, x: Tensor) -> Tensor:
        squares = (x * x).sum(-1, keepdim=True)
        return x * torch.add(self._eps, squares, alpha=self._share).rsqrt_()


class _Layer:
    """One decoder layer."""

    def __init__(self, layer: Any, number: int, mode: KernelMode) -> None:
        attention, unit = layer.self_attn, layer.mlp
        self._number = number
        self._width = attention.head_dim
        self._scaling = attention.scaling
        self._groups = attention.num_key_value_groups
        self._heads = attention.q_proj.weight.shape[0] // self._width
        self._kv_heads = self._heads // self._groups
        self._before, self._between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._qkv = _joined([attention.q_proj, attention.k_proj, attention.v_proj], mode)
        self._out = _joined([attention.o_proj], mode)
        self._gate_up = _joined([unit.gate_proj, unit.up_proj], mode)
        self._down = _joined([unit.down_proj], mode)
        self._activation = unit.act_fn
        self.linears = [self._qkv, self._out, self._gate_up, self._down]

    def __call__(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: RewindCache
    ) -> Tensor:
        """[n, hidden] -> [n, hidden]."""
        hidden = hidden + self._out(self._attention(self._before(hidden), cos, sin, mask, cache))
        both = self._gate_up(self._between(hidden))
        half = both.shape[-1] // 2
        return hidden + self._down(self._activation(both.narrow(-1, 0, half)) * both.narrow(-1, half, half))

    def _attention(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: RewindCache
    ) -> Tensor:
        n = x.shape[0]
        heads = self._qkv(x).view(n, -1, self._width)
        turning = self._heads + self._kv_heads
        rotated, values = heads.narrow(1, 0, turning), heads.narrow(1, turning, self._kv_heads)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._width // 2, -1), sin)
        queries = rotated.narrow(1, 0, self._heads)
        keys = rotated.narrow(1, self._heads, self._kv_heads)
        all_keys, all_values = cache.layer(self._number).update(
            keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
        )
        if n == 1:  # query heads that share keys are rows of one product
            queries = queries.view(1, self._kv_heads, self._groups, self._width)
        else:
            queries = queries.transpose(0, 1).unsqueeze(0)
        found = F.scaled_dot_product_attention(
            queries,
            all_keys,
            all_values,
            attn_mask=mask,
            is_causal=mask is None and n > 1,
            scale=self._scaling,
            enable_gqa=n > 1 and self._groups > 1,
        )
        return found.reshape(1, -1) if n == 1 else found[0].transpose(0, 1).reshape(n, -1)


def _joined(linears: list[nn.Linear], mode: KernelMode) -> PackedLinear:
    """Linear layers of the same input as one matrix product; their weights become views of it."""
    if len(linears) == 1:
        return PackedLinear(linears[0].weight, linears[0].bias, mode, linears)
    weight, bias = _concatenated(linears, "weight"), None
    if linears[0].bias is not None:
        bias = _concatenated(linears, "bias")
    return PackedLinear(weight, bias, mode, linears)


def _concatenated(linears: list[nn.Linear], name: str) -> Tensor:
    """Concatenate the parameters of that name; each becomes a view of the result."""
    parts: list[Tensor] = [getattr(linear, name).detach() for linear in linears]
    whole, first = torch.cat(parts), 0
    for linear, part in zip(linears, parts, strict=True):
        setattr(linear, name, nn.Parameter(whole[first : first + len(part)], requires_grad=False))
        first += len(part)
    return whole
