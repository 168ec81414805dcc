"""Block drafters: several places at once, over keys and values made of the target's states.

DFlash (Chen et al. 2026) runs a few layers over one block: the pending token, then masks. Keys and values of
the context are products of the target's states, so that nothing of the text is read a second time. DFlash2
adds short convolutions inside the block and chooses a path through each place's best tokens; DSpark adds to
each place's logits a bias by the token before it. Of both, a place's row depends on what was drawn before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from spsbench.models.causal_lm import VocabularyRows
from spsbench.models.onednn import Product
from spsbench.models.rewind import RewindCache

VANILLA, GATED, RNN = MARKOV = ("vanilla", "gated", "rnn")
"""How DSpark's bias reads the token before: alone, gated by the place's state, or with a running state."""


@dataclass(frozen=True, slots=True)
class BlockForm:
    """How a block is laid out and read; what a file's tensors do not say.

    Attributes:
        size: places in a block, the pending token's included.
        mask_token: the token whose embedding stands at every other place.
        anchor_predicts: whether the pending token's place predicts the token after it, so that a block drafts
            ``size`` tokens; else each place predicts its own token, and a block drafts one less.
        causal: per layer, whether a place sees only the places before it.
        windows: per layer the sliding window in tokens; None for all of the text.
        window_from_anchor: whether a window is counted from the block's first place for all of its places.
        embedding_scale, logit_scale: factors of embeddings and logits.
        softcap: bound of the logits; 0 for none.
        markov: one of ``MARKOV``; empty without such a head.
        candidates: DFlash2's tokens of a place that its path may take; 0 for all.
        convolution: DFlash2's taps and channels of a group; None without.
    """

    size: int
    mask_token: int
    anchor_predicts: bool
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    window_from_anchor: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    markov: str = ""
    candidates: int = 0
    convolution: tuple[int, int] | None = None

    @property
    def drafts(self) -> int:
        """The most tokens of one block."""
        return self.size if self.anchor_predicts else self.size - 1

    @property
    def is_sequential(self) -> bool:
        """Whether a place's row depends on the tokens drawn before it."""
        return bool(self.markov or self.candidates)


class _Attention(nn.Module):
    """Attention of a block's places over the context and themselves."""

    def __init__(self, config: Any, normed: bool) -> None:
        super().__init__()
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

        self._width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        bias = bool(getattr(config, "attention_bias", False))
        queries = config.num_attention_heads * self._width
        keys = config.num_key_value_heads * self._width
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        norm = Qwen3RMSNorm if normed else nn.Identity
        self.q_norm = norm(self._width, eps=config.rms_norm_eps)
        self.k_norm = norm(self._width, eps=config.rms_norm_eps)

    def keys(self, states: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """[1, heads, n, d] keys and values of states [n, hidden]."""
        keys, values = self._heads(self.k_proj(states)), self._heads(self.v_proj(states))
        return _rotated(self.k_norm(keys), rope), values

    def forward(
        self, states: Tensor, rope: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        """[n, hidden] of places over keys and values ``seen``, their own among them."""
        queries = _rotated(self.q_norm(self._heads(self.q_proj(states))), rope)
        found = scaled_dot_product_attention(queries, *seen, attn_mask=mask, enable_gqa=True)
        joined: Tensor = self.o_proj(found[0].transpose(0, 1).flatten(1))
        return joined

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(1, len(states), -1, self._width).transpose(1, 2)


def _rotated(heads: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    from transformers.models.qwen3.modeling_qwen3 import rotate_half

    cos, sin = rope
    rotated: Tensor = heads * cos + rotate_half(heads) * sin
    return rotated


class _Convolution(nn.Module):
    """Short causal convolutions before and after a sublayer, whose kernels follow from its input."""

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        self._taps, self._groups = taps, hidden // group
        self.base_kernel = nn.Parameter(torch.empty(2, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * self._groups, bias=False)

    def around(self, sublayer: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        """[n, hidden] a sublayer of states [n, hidden], with both convolutions."""
        kernels = self.kernel_projection(states).view(len(states), 2, self._taps, self._groups, 1)
        return self._over(sublayer(self._over(states, kernels, 0)), kernels, 1)

    def _over(self, states: Tensor, kernels: Tensor, side: int) -> Tensor:
        blocks = states.view(len(states), self._groups, -1)
        base = self.base_kernel[side].view(self._taps, self._groups, -1)
        out = torch.zeros_like(blocks)
        for tap in range(self._taps):
            before = pad(blocks[: len(blocks) - tap], (0, 0, 0, 0, tap, 0))
            out = out + before * (base[tap] + kernels[:, side, tap])
        return out.view_as(states)


class _Layer(nn.Module):
    def __init__(self, config: Any, normed: bool, convolution: tuple[int, int] | None) -> None:
        super().__init__()
        from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

        self.self_attn = _Attention(config, normed)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if convolution is not None:
            self.attention_conv = _Convolution(config.hidden_size, *convolution)
            self.mlp_conv = _Convolution(config.hidden_size, *convolution)
        self._convolves = convolution is not None

    def forward(self, states: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """[n, hidden]; ``attend`` stores a block's keys and values and attends over all."""
        normed = self.input_layernorm(states)
        states = states + (self.attention_conv.around(attend, normed) if self._convolves else attend(normed))
        normed = self.post_attention_layernorm(states)
        added = self.mlp_conv.around(self.mlp, normed) if self._convolves else self.mlp(normed)
        after: Tensor = states + added
        return after


class _Markov(nn.Module):
    """A bias of the logits by the token before, of low rank; see ``MARKOV``."""

    def __init__(self, kind: str, vocab_size: int, drafted: int, rank: int, hidden: int) -> None:
        super().__init__()
        self._kind = kind
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, drafted, bias=False)
        if kind == GATED:
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif kind == RNN:
            self.joint_proj = nn.Linear(hidden + 2 * rank, 3 * rank)

    def forward(
        self, previous: Tensor, state: Tensor, running: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """[1, m] the bias of a place, and the running state after it.

        Args:
            previous: [1] the token before.
            state: [1, hidden] of the place.
            running: [1, r] after the place before; None at the first one.
        """
        read = self.markov_w1(previous)
        if self._kind == GATED:
            read = torch.sigmoid(self.gate_proj(torch.cat([state, read], -1))) * read
        elif self._kind == RNN:
            running = torch.zeros_like(read) if running is None else running
            gate, new, out = self.joint_proj(torch.cat([running, read, state], -1)).chunk(3, -1)
            gate = torch.sigmoid(gate)
            running = gate * running + (1.0 - gate) * torch.tanh(new)
            read = torch.tanh(out)
        return self.markov_w2(read), running


class _Selector(nn.Module):
    """DFlash2's score of a candidate after the token before it."""

    def __init__(self, vocab_size: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def forward(self, previous: Tensor, state: Tensor, candidates: Tensor) -> Tensor:
        """[1, k] scores of candidates [1, k] of a place with a state [1, hidden]."""
        wanted = self.predecessor_codebook[previous] * self.hidden_projection(state)
        return linear(wanted, self.successor_codebook[candidates[0]])


class BlockNet(nn.Module):
    """The layers of a block drafter; its parameters are named as in the files.

    Args:
        config: of the layers, as transformers has it for Qwen 3 or Llama.
        form: the block's.
        read: width of what is read of the target, all states together.
        shapes: of the stored tensors, by name: which norms and ranks there are.
        vocab_size: rows of the target's embedding.
        drafted: tokens that it can propose.
    """

    def __init__(
        self,
        config: Any,
        form: BlockForm,
        read: int,
        shapes: Callable[[str], tuple[int, ...] | None],
        vocab_size: int,
        drafted: int,
    ) -> None:
        super().__init__()
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

        hidden = config.hidden_size
        self.fc = nn.Linear(read, hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(hidden, eps=config.rms_norm_eps)
        self.norm = Qwen3RMSNorm(hidden, eps=config.rms_norm_eps)
        normed = shapes("layers.0.self_attn.q_norm.weight") is not None
        self.layers = nn.ModuleList(
            [_Layer(config, normed, form.convolution) for _ in range(config.num_hidden_layers)]
        )
        if form.markov:
            rank = (shapes("markov_head.markov_w1.weight") or (0, 0))[-1]
            self.markov_head = _Markov(form.markov, vocab_size, drafted, rank, hidden)
        if form.candidates:
            rank = (shapes("candidate_selector.predecessor_codebook") or (0, 0))[-1]
            self.candidate_selector = _Selector(vocab_size, rank, hidden)


class Slots(Protocol):
    """The places of one block that draft, in their order."""

    count: int

    def logits(self, place: int, previous: Tensor) -> Tensor:
        """[1, V] of the next place, given the token [1] drawn before it; asked in order, once each."""
        ...


class BlockModel:
    """A block drafter over its target, with keys and values of the context's tokens.

    Args:
        net: the layers, with weights.
        form: the block's.
        rotary: from states and positions [1, n] to the cosines and sines of their rotation.
        embed: from tokens [n] to embeddings [n, hidden], unscaled.
        head: the product by the output head's rows of the m tokens that it can propose.
        ids: [m] those tokens.
        vocab_size: V.
    """

    def __init__(
        self,
        net: BlockNet,
        form: BlockForm,
        rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        embed: Callable[[Tensor], Tensor],
        head: Product,
        ids: Tensor,
        vocab_size: int,
    ) -> None:
        self.form = form
        self._net, self._rotary, self._embed, self._head = net, rotary, embed, head
        self._spread = VocabularyRows(ids, vocab_size)
        self._cache = RewindCache()

    def fresh(self) -> BlockModel:
        """Return the same weights with an own cache."""
        spread = self._spread
        return BlockModel(
            self._net, self.form, self._rotary, self._embed, self._head, spread.ids, spread.vocab_size
        )

    @property
    def length(self) -> int:
        """Number of tokens of the context."""
        return self._cache.length

    def rollback(self, length: int) -> None:
        self._cache.rollback(length)

    def read(self, states: Tensor) -> None:
        """Append the context's next tokens, by the target's states [n, width of all]."""
        if not len(states):
            return
        fused = self._net.hidden_norm(self._net.fc(states.to(self._head.dtype)))
        rope = self._rope(fused, self.length, len(states))
        for number, layer in enumerate(self._net.layers):
            attention: Any = layer.self_attn
            self._cache.update(*attention.keys(fused, rope), number)

    def block(self, anchor: Tensor, count: int) -> BlockSlots:
        """Run one block behind the context.

        Args:
            anchor: [1] the pending token.
            count: how many tokens are wanted, 1 to ``form.drafts``.
        """
        form, start = self.form, self.length
        tokens = torch.full((form.size,), form.mask_token, dtype=torch.int64, device=anchor.device)
        tokens[:1] = anchor
        states = self._embed(tokens)
        if form.embedding_scale != 1.0:
            states = states * form.embedding_scale
        rope = self._rope(states, start, form.size)
        for number, layer in enumerate(self._net.layers):

            def attend(normed: Tensor, number: int = number, own: Any = layer.self_attn) -> Tensor:
                seen = self._cache.update(*own.keys(normed, rope), number)
                attended: Tensor = own(normed, rope, seen, self._mask(number, start, normed))
                return attended

            states = layer(states, attend)
        self._cache.rollback(start)
        first = 0 if form.anchor_predicts else 1
        states = self._net.norm(states)
        lead = states[:first] if form.markov == RNN else None
        states = states[first : first + count]
        logits = self._head(states)
        if form.logit_scale != 1.0:
            logits = logits * form.logit_scale
        if form.softcap:
            logits = torch.tanh(logits / form.softcap) * form.softcap
        return BlockSlots(self._net, form, self._spread, states, logits, anchor, lead)

    def forward_bytes(self) -> int:
        tables = ("markov_w1", "codebook")
        named = self._net.named_parameters()
        own = sum(part.nbytes for name, part in named if not any(table in name for table in tables))
        return int(own + self._head.nbytes)

    def _rope(self, states: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + count, device=states.device).unsqueeze(0)
        cos, sin = self._rotary(states, positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    def _mask(self, number: int, start: int, states: Tensor) -> Tensor | None:
        """[size, start + size] which columns a layer's places see; None for all."""
        form = self.form
        window, causal = form.windows[number], form.causal[number]
        if window is None and not causal:
            return None
        places = torch.arange(start, start + form.size, device=states.device).unsqueeze(1)
        columns = torch.arange(start + form.size, device=states.device).unsqueeze(0)
        seen = columns <= places if causal else torch.ones_like(columns < places)
        if window is not None and form.window_from_anchor:
            seen = seen & (columns >= start - window)
        elif window is not None:
            seen = seen & ((places - columns).abs() < window)
        return seen


class BlockSlots:
    """See ``Slots``; of DFlash every place's row follows from the block alone."""

    def __init__(
        self,
        net: BlockNet,
        form: BlockForm,
        spread: VocabularyRows,
        states: Tensor,
        logits: Tensor,
        anchor: Tensor,
        lead: Tensor | None,
    ) -> None:
        self.count = len(states)
        self._net, self._form, self._spread = net, form, spread
        self._states, self._logits = states, logits
        self._running: Tensor | None = None
        if lead is not None and len(lead):  # the pending token's place drafts nothing, but is passed
            _, self._running = net.markov_head(anchor, lead, None)

    def all_logits(self) -> Tensor:
        """[count, V] of all places at once, where no row depends on what is drawn."""
        assert not self._form.is_sequential
        return self._spread(self._logits)

    def logits(self, place: int, previous: Tensor) -> Tensor:
        """See ``Slots.logits``."""
        row, state = self._logits[place : place + 1], self._states[place : place + 1]
        if self._form.markov:
            bias, self._running = self._net.markov_head(previous, state, self._running)
            row = row + bias
        if self._form.candidates:
            best = row.topk(self._form.candidates, dim=-1)
            scores = best.values + self._net.candidate_selector(previous, state, best.indices)
            row = torch.full_like(row, float("-inf")).scatter_(-1, best.indices, scores)
        return self._spread(row)
