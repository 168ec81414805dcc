"""The forward of a Llama-class model with as few operations as its arithmetic needs.

At batch size 1 a small model's time is dispatch: transformers' own forward takes some 45 operations a
layer and checks, masks and wraps around them, anew each time. Here a layer takes half as many: the
projections of query, key and value are one product, and so are the two of the gated unit; rotary
tables are kept; norms are one operation. Both arms, and the draft, take this path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.models.cache import RewindCache
from spsbench.models.product import Modes, Product

_CLASSES = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"})
# Rotary tables that do not depend on how long the sequence is.
_FIXED_ROPE = frozenset({"default", "linear", "llama3"})
_FIRST_POSITIONS = 1024

Multiply = Callable[[Tensor], Tensor]
"""A matrix product, [n, in] -> [n, out]."""


class DirectForward:
    """Scores tokens with the weights of a model that ``applies_to`` accepts.

    Weights that are multiplied together are laid side by side; the model's own parameters become
    views of them, so that it works as before and nothing is stored twice.

    Args:
        model: a ``PreTrainedModel`` with a language-model head.
        modes: whether it multiplies with packed weights.

    Attributes:
        products: every matrix product of a forward that may be packed; the head's first.
    """

    def __init__(self, model: Any, modes: Modes) -> None:
        self._inner = model.model
        head = _joined([model.lm_head], modes)
        self._head: Multiply = head
        self._layers = [_Layer(layer, number, modes) for number, layer in enumerate(model.model.layers)]
        self._norm = _Norm(model.model.norm)
        self._device = model.device
        self._tables: tuple[Tensor, Tensor] | None = None
        self.products = [head, *(product for layer in self._layers for product in layer.products)]

    def first(self, layers: int) -> DirectForward:
        """The forward that stops behind the first layers; products, norms and tables are the same objects."""
        shorter = copy.copy(self)
        shorter._layers = self._layers[:layers]
        inside = [product for layer in shorter._layers for product in layer.products]
        shorter.products = [self.products[0], *inside]
        return shorter

    def multiplying(self, instead: Callable[[Product], Multiply]) -> DirectForward:
        """The same forward with other products in the place of its own, none of which can be packed."""
        other = copy.copy(self)
        other._head = instead(self.products[0])
        other._layers = [layer.multiplying(instead) for layer in self._layers]
        other.products = []
        return other

    @staticmethod
    def applies_to(model: Any) -> bool:
        """Whether the model's forward is known to be what this class does."""
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
        """Feed [n] tokens behind the cache; [last, V] logits."""
        start, n = cache.length, tokens.shape[0]
        hidden = F.embedding(tokens, self._inner.embed_tokens.weight)
        cos, sin = self._rotary(hidden, start, n)
        mask = self._mask(hidden, start, n)
        for layer in self._layers:
            hidden = layer(hidden, cos, sin, mask, cache)
        return self._head(self._norm(hidden if last == n else hidden[-last:]))

    def _rotary(self, like: Tensor, start: int, n: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, [n, 1, head width] each, of the next n positions."""
        if self._tables is None or self._tables[0].shape[0] < start + n:
            size = max(_FIRST_POSITIONS, 2 * (start + n))
            positions = torch.arange(size, device=self._device).unsqueeze(0)
            cos, sin = (table[0].unsqueeze(1) for table in self._inner.rotary_emb(like, positions))
            half = sin.shape[-1] // 2
            # (a, b) turns into (-b, a): the minus is in the table, the swap a roll by half.
            self._tables = cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        cos, sin = self._tables
        return cos[start : start + n], sin[start : start + n]

    def _mask(self, like: Tensor, start: int, n: int) -> Tensor | None:
        """[1, 1, n, start + n], added to the scores: 0 for what a token may see, else minus infinity.

        None where the kernel knows by itself. Not of truth values: each layer would convert them.
        """
        if n == 1 or start == 0:
            return None
        hidden = torch.full((n, start + n), float("-inf"), dtype=like.dtype, device=self._device)
        return hidden.triu_(start + 1)[None, None]


class _Norm:
    """Root-mean-square norm, in float32 whatever the model's dtype, as the model's own.

    On a CPU torch's own ``rms_norm`` is a chain of a dozen operations; this one has six. Even a
    conversion to the dtype that is there already costs as much as one of them.
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

    def __init__(self, layer: Any, number: int, modes: Modes) -> None:
        attention, unit = layer.self_attn, layer.mlp
        self._number = number
        self._width = attention.head_dim
        self._scaling = attention.scaling
        self._groups = attention.num_key_value_groups
        self._heads = attention.q_proj.weight.shape[0] // self._width
        self._kv_heads = self._heads // self._groups
        self._before, self._between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.products = [
            _joined([attention.q_proj, attention.k_proj, attention.v_proj], modes),
            _joined([attention.o_proj], modes),
            _joined([unit.gate_proj, unit.up_proj], modes),
            _joined([unit.down_proj], modes),
        ]
        self._qkv: Multiply
        self._out: Multiply
        self._gate_up: Multiply
        self._down: Multiply
        self._qkv, self._out, self._gate_up, self._down = self.products
        self._activation = unit.act_fn

    def multiplying(self, instead: Callable[[Product], Multiply]) -> _Layer:
        """The same layer with other products; see ``DirectForward.multiplying``."""
        other = copy.copy(self)
        other._qkv, other._out, other._gate_up, other._down = map(instead, self.products)
        other.products = []
        return other

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
        if n == 1:  # heads that share keys are rows of one product
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


def _joined(linears: list[nn.Linear], modes: Modes) -> Product:
    """Several layers of the same input as one product; their weights become views of it."""
    if len(linears) == 1:
        return Product(linears[0].weight, linears[0].bias, modes, linears)
    weight, bias = _beside(linears, "weight"), None
    if linears[0].bias is not None:
        bias = _beside(linears, "bias")
    return Product(weight, bias, modes, linears)


def _beside(linears: list[nn.Linear], name: str) -> Tensor:
    """The parameters of that name, one under the other; each becomes a view of the whole."""
    parts: list[Tensor] = [getattr(linear, name).detach() for linear in linears]
    whole, first = torch.cat(parts), 0
    for linear, part in zip(linears, parts, strict=True):
        setattr(linear, name, nn.Parameter(whole[first : first + len(part)], requires_grad=False))
        first += len(part)
    return whole
