"""A loaded model that scores B sequences at once, and whether it scores them as it scores one.

Over torch in fixed shapes, as CUDA graphs need them: the replay of a graph can depend on the content of
tensors only. So all cache slots are allocated up front, keys and values are written at positions given as a
tensor, and the mask hides all positions after a token's own: a rollback needs no operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from spsbench.base.errors import UsageError
from spsbench.decode.batch import BatchModel
from spsbench.decode.protocols import sent
from spsbench.models.causal_lm import CausalLM, attention_window, text_config, tolerance
from spsbench.models.onnx_graph import build_graph
from spsbench.models.onnx_lm import (
    OnnxForward,
    OnnxLM,
    bind,
    rotary_tables,
    run_bound,
    session_of,
    taken_by,
    value_of,
)
from spsbench.models.recurrent import StateCache
from spsbench.models.torch_lm import TorchLM


class NotStatic(Exception):
    """The model's forward cannot be given a fixed shape; the message says why."""


class FixedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer, [B, heads, slots, width] each.

    Attributes:
        positions: [b, n], the slots of the next n keys and values of each row that is written.
        row: the one that is written; None for all.
        span: so many slots, from the first on, are read after that.
    """

    def __init__(self, slots: int, batch: int) -> None:
        super().__init__()
        self._slots, self._batch = slots, batch
        self.positions = torch.empty(0, 0, dtype=torch.int64)
        self.row: int | None = None
        self.span = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate all slots as zeros: masked values are multiplied, too, by 0."""
        shape = (self._batch, key_states.shape[1], self._slots)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def clear(self, row: int) -> None:
        if self.is_initialized:
            self.keys[row].zero_()
            self.values[row].zero_()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [b, heads, n, width] keys and values at ``positions``; return the span of these rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._written(self.keys, key_states), self._written(self.values, value_states)

    def _written(self, held: Tensor, states: Tensor) -> Tensor:
        rows = held if self.row is None else held.narrow(0, self.row, 1)
        if len(self.positions) == 1:
            rows.index_copy_(2, self.positions[0], states)
        else:
            rows.scatter_(2, self.positions[:, None, :, None].expand_as(states), states)
        return rows.narrow(2, 0, self.span)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (number of keys, their offset)."""
        return self.span, 0

    def get_seq_length(self) -> int:
        """Return 0: the host does not know it, and the caller gives positions."""
        return 0

    def get_max_length(self) -> int:
        return self._slots


LEAST_SPAN = 256
"""Slots that attention reads at least; then twice as many, up to all."""


class StaticLM:
    """See ``decode.batch.BatchModel``; without a host synchronization where positions are tensors.

    Attention reads the first so many slots of the cache, its span: a graph has one, so that there are few.

    Attributes:
        slots: of every row.
        spans: the spans, ascending; the last is all slots.
        wide: the dtype of probabilities, at least float32.
    """

    def __init__(self, model: TorchLM, slots: int, batch: int = 1, *, least_span: int = LEAST_SPAN) -> None:
        if model.config._attn_implementation != "sdpa":
            raise NotStatic(f"its attention is {model.config._attn_implementation}, not sdpa")
        if model.rolled_back_by != "length":
            raise NotStatic(
                "its rows would accept unlike numbers of tokens, and a running state goes on by block"
            )
        if isinstance(model.cache, StateCache):
            raise NotStatic("its cache has more than keys and values for each token")
        if attention_window(model.config) is not None:
            raise NotStatic("it has sliding or chunked attention")
        self.batch = batch
        self.vocab_size = model.vocab_size
        self.device = model.device
        self.slots = slots
        doubled = takewhile(lambda span: span < slots, (least_span << n for n in count()))
        self.spans = (*doubled, slots)
        self.wide = torch.promote_types(model.dtype, torch.float32)
        self._model = model.model
        layers = text_config(model.config).num_hidden_layers
        self.layers = [FixedLayer(slots, batch) for _ in range(layers)]
        self._cache = Cache(layers=self.layers)
        self._slot_numbers = torch.arange(slots, device=model.device)

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """See ``BatchModel.begin``; slots are masked and not skipped, so that NaN in one would stay."""
        for layer in self.layers:
            layer.clear(row)
        if len(prompt) > 1:
            tokens = torch.tensor(prompt[:-1], device=self.device).unsqueeze(0)
            positions = self._slot_numbers[: len(prompt) - 1].unsqueeze(0)
            self._forward(tokens, positions, 1, self.span_of(len(prompt) - 1), row)

    def span_of(self, length: int) -> int:
        """Return the smallest span that holds so many tokens; all slots where none does."""
        return next((span for span in self.spans if span >= length), self.slots)

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        span = self.span_of(max(starts) + tokens.shape[1])
        return self.score_at(tokens, sent(starts, self.device), last, span)

    def score_at(self, tokens: Tensor, starts: Tensor, last: int, span: int) -> Tensor:
        """Score as ``score``, with ``starts`` [B] on the device; no row then exceeds ``span`` tokens."""
        n = tokens.shape[1]
        return self._forward(tokens, starts.unsqueeze(1) + self._slot_numbers[:n], last, span)

    def _forward(
        self, tokens: Tensor, positions: Tensor, last: int, span: int, row: int | None = None
    ) -> Tensor:
        """[b, last, V] logits of [b, n] tokens at positions [b, n], of one row or of all."""
        for layer in self.layers:
            layer.positions, layer.row, layer.span = positions, row, span
        seen = self._slot_numbers[:span] <= positions.unsqueeze(-1)
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=seen.unsqueeze(1),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=last,
        )
        logits: Tensor = output.logits[:, -last:, : self.vocab_size]
        return logits


class OnnxBatchLM:
    """See ``decode.batch.BatchModel``; the caches of all rows are allocated up front.

    One token a row runs in the model's own session, more in a session of their own, whose weights are packed
    again. Every shape of a forward is bound once to its own memory.
    """

    def __init__(self, model: OnnxLM, batch: int, slots: int, *, blocks: bool) -> None:
        plan = model.plan
        self.batch = batch
        self.vocab_size = model.vocab_size
        self.device = model.device
        self._model, self._spread = model, model.new_spread()
        shape = (batch, plan.kv_heads, slots, plan.head_dim)
        names = [f"{kind}_{number}" for number in range(plan.layers) for kind in ("key", "value")]
        caches = {name: np.zeros(shape, np.float32) for name in names}
        tables = rotary_tables(plan, slots)
        parts = [
            {name: value_of(array[row : row + 1]) for name, array in caches.items()} for row in range(batch)
        ]
        self._readers = [
            OnnxForward(model.session, plan, memory=part | tables, slots=slots) for part in parts
        ]
        self._whole = {name: value_of(array) for name, array in caches.items()} | tables
        self._apart = {
            f"{name}_{row}": value for row, part in enumerate(parts) for name, value in part.items()
        }
        self._apart |= tables
        self._several: Any = None
        if blocks:
            graph = build_graph(plan, model.stored, model.bits, batch)
            self._several, _ = session_of(graph, model.threads)
        self._seen, self._total = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
        self._most = np.zeros((), np.int32)
        self._bound: dict[tuple[int, int], tuple[Any, Any, Tensor]] = {}

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        if len(prompt) > 1:
            tokens = torch.tensor(prompt[:-1])
            self._readers[row](partial(self._model.embed, tokens), 0, len(tokens), 1)

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        n = tokens.shape[1]
        run, hidden, logits = self._bound.get((n, last)) or self._bind(n, last)
        self._model.embed(tokens.flatten(), hidden)
        # Written in place, since the session reads these arrays: tokens before each row's last one, tokens
        # with it, and the most of any row.
        self._seen[:] = starts
        self._seen += n - 1
        self._total[:] = self._seen + 1
        self._most[...] = self._total.max()
        run()
        rows = self._model.all_logits(logits, self._spread)
        return rows.reshape(self.batch, last, self.vocab_size)

    def _bind(self, n: int, last: int) -> tuple[Any, Any, Tensor]:
        """(Forward, [B n, hidden] its input, [B last, V] its logits), row after row."""
        plan, batch = self._model.plan, self.batch
        if n == 1:
            session = self._model.session
            memory = self._whole
            shape = (batch, 1)
            inputs = {"rows": np.array([0]), "seen": self._seen, "total": self._most}
        else:
            assert self._several is not None, "made for blocks"
            session = self._several
            memory = self._apart
            shape = (1, batch * n)
            inputs = {"rows": np.arange(batch * n).reshape(batch, n)[:, n - last :].flatten()}
            for row in range(batch):
                inputs |= {f"seen_{row}": self._seen[row : row + 1], f"total_{row}": self._total[row, ...]}
        hidden = np.zeros((*shape, plan.hidden), np.float32)
        logits = np.zeros((shape[0], batch * last // shape[0], plan.vocab_size), np.float32)
        inputs = taken_by(session, inputs | {"hidden": hidden}, plan)
        binding = bind(session, inputs, memory, {"logits": logits})
        self._bound[n, last] = (
            partial(run_bound, session, binding),
            hidden.reshape(batch * n, plan.hidden),
            torch.from_numpy(logits).reshape(batch * last, plan.vocab_size),
        )
        return self._bound[n, last]


_PROMPT, _BLOCK = 12, 3


def batch_model(model: CausalLM, batch: int, slots: int, *, blocks: bool) -> BatchModel:
    """Make a model for B sequences over the weights of one, with its own caches."""
    model_of_batch: BatchModel
    try:
        if isinstance(model, OnnxLM):
            model_of_batch = OnnxBatchLM(model, batch, slots, blocks=blocks)
        else:
            assert isinstance(model, TorchLM), "encoder-decoders are refused before they are loaded"
            model_of_batch = StaticLM(model, slots, batch)
        require_same_answers(model, model_of_batch, slots, blocks=blocks)
    except NotStatic as reason:
        raise UsageError(
            f"{model.config.model_type} over {model.backend} does not run {batch} sequences at once: "
            f"{reason}.",
            flag="--batch",
            remedy="Give --batch 1.",
        ) from reason
    return model_of_batch


def require_same_answers(model: CausalLM, batch: BatchModel, slots: int, *, blocks: bool = True) -> None:
    """Compare the logits of one token a row, and of blocks, with those of each sequence alone."""
    for block in (1, _BLOCK) if blocks else (1,):
        worst = difference(model, batch, block, min(_PROMPT, slots - block + 1))
        if not worst <= tolerance(model.dtype):
            other = "from those of one" if batch.batch > 1 else "with positions given as a tensor"
            raise NotStatic(f"its logits differ by {worst:.3g} of their scale {other}")


@torch.inference_mode()
def difference(model: CausalLM, batch: BatchModel, block: int, longest: int = _PROMPT) -> float:
    """Return the largest difference of logits between a batch and its sequences alone, relative to their
    scale.

    The rows hold prompts of unlike lengths, one of them of one token, after what other sequences left in
    their slots.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(model.vocab_size, (batch.batch, longest + block), generator=generator)
    prompts = [row[: longest - number % longest].tolist() for number, row in enumerate(drawn)]
    prompts[1:2] = [prompt[:1] for prompt in prompts[1:2]]
    tokens = drawn[:, -block:].to(model.device)
    for number, row in enumerate(drawn):
        batch.begin(number, row.flip(0)[:longest].tolist())
    for number, prompt in enumerate(prompts):
        batch.begin(number, prompt)
    logits = batch.score(tokens, [len(prompt) - 1 for prompt in prompts], last=block).clone()
    alone = []
    for number, prompt in enumerate(prompts):
        model.begin(prompt)
        alone.append(model.score(tokens[number], last=block).clone())
    model.rollback(0)
    one = logits.float()
    other = torch.stack(alone).float()
    if model.vocabulary is not None:
        one, other = one[..., model.vocabulary], other[..., model.vocabulary]
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-9))
