"""A loaded model that scores B sequences at once, and whether it scores them as it scores one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import TensorProto, helper
from torch import Tensor

from spsbench.decode.batch import BatchModel
from spsbench.errors import UsageError
from spsbench.models.blueprint import Blueprint
from spsbench.models.causal_lm import CausalLM
from spsbench.models.checkpoint import StoredWeights
from spsbench.models.onnx_graph import Builder, Graph
from spsbench.models.onnx_lm import (
    TABLES,
    OnnxCache,
    OnnxForward,
    OnnxLM,
    rotary_tables,
    session_of,
    value_of,
)
from spsbench.models.selftest import tolerance
from spsbench.models.static import NotStatic, StaticBatchLM
from spsbench.models.torch_lm import TorchLM


def build_batch_graph(plan: Blueprint, stored: StoredWeights, bits: int | None, batch: int) -> Graph:
    """The graph of B sequences of n tokens each.

    Inputs: ``hidden`` [1, B n, hidden], sequence after sequence; ``rows`` [m], which of the B n rows are
    wanted; ``cos`` and ``sin`` as in ``Graph``; and for each sequence b ``seen_b`` [1], ``total_b`` [] and
    per layer ``key_i_b`` and ``value_i_b`` [1, kv_heads, slots, head_dim]. Outputs: ``logits`` [1, m, V], and
    ``new_key_i_b`` and ``new_value_i_b``, to be bound to the same memory as their inputs.
    """
    return _BatchBuilder(plan, stored, bits, batch).graph()


class _BatchBuilder(Builder):
    def __init__(self, plan: Blueprint, stored: StoredWeights, bits: int | None, batch: int) -> None:
        super().__init__(plan, stored, bits)
        self._batch = batch
        self._names = [f"_{row}" for row in range(batch)]

    def _over_cache(self, states: Sequence[str], number: int, row: str = "") -> str:
        parts = [self._split(name) for name in states]
        found = [
            super(_BatchBuilder, self)._over_cache([part[b] for part in parts], number, name)
            for b, name in enumerate(self._names)
        ]
        return self._node("Concat", found, axis=1)

    def _split(self, state: str) -> list[str]:
        """What is of each sequence; an input that is absent is absent for all."""
        if not state:
            return [""] * self._batch
        outputs = [f"{state}{name}" for name in self._names]
        self._node("Split", [state], outputs, axis=1, num_outputs=self._batch)
        return outputs

    def _score(self, states: str) -> None:
        wanted = self._node("Gather", [states, "rows"], axis=1)
        self._matrix(wanted, [self._head()], self._plan.logit_scale, out="logits")

    def _signature(self) -> tuple[list[Any], list[Any]]:
        plan, value = self._plan, helper.make_tensor_value_info
        floats, longs, ints = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
        table: list[str | int | None] = ["slots", plan.head_dim // 2]
        slots: list[str | int | None] = [1, plan.kv_heads, "slots", plan.head_dim]
        caches = [
            f"{kind}_{number}{name}"
            for number in range(plan.layers)
            for kind in ("key", "value")
            for name in self._names
        ]
        inputs = [
            value("hidden", floats, [1, "tokens", self._width]),
            value("rows", longs, ["wanted"]),
            value("cos", floats, table),
            value("sin", floats, table),
            *(value(f"seen{name}", ints, [1]) for name in self._names),
            *(value(f"total{name}", ints, []) for name in self._names),
            *(value(name, floats, slots) for name in caches),
        ]
        outputs = [
            value("logits", floats, [1, "wanted", plan.vocab_size]),
            *(value(f"new_{name}", floats, slots) for name in caches),
        ]
        return inputs, outputs


class OnnxBatchLM:
    """See ``decode.batch.BatchModel``; the caches of all rows are allocated up front.

    One token a row runs in the model's own session, more in its own session, whose weights are packed
    again.
    """

    def __init__(self, model: OnnxLM, batch: int, slots: int, *, blocks: bool) -> None:
        plan = model.plan
        self.batch, self.vocab_size, self.device = batch, model.vocab_size, model.device
        self._model, self._spread = model, model.new_spread()
        shape = (batch, plan.kv_heads, slots, plan.head_dim)
        names = [f"{kind}_{number}" for number in range(plan.layers) for kind in ("key", "value")]
        caches = {name: np.zeros(shape, np.float32) for name in names}
        tables = rotary_tables(plan, slots)
        parts = [
            {name: value_of(array[row : row + 1]) for name, array in caches.items()} for row in range(batch)
        ]
        self._readers = [
            OnnxForward(model.session, plan, cache=OnnxCache(part | tables, slots)) for part in parts
        ]
        self._one = _OneEach(model, {name: value_of(array) for name, array in caches.items()} | tables, batch)
        self._several: _Several | None = None
        if blocks:
            named = {f"{name}_{row}": value for row, part in enumerate(parts) for name, value in part.items()}
            self._several = _Several(model, named | tables, batch)

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        if len(prompt) > 1:
            tokens = torch.tensor(prompt[:-1])
            self._readers[row](partial(self._model.embed, tokens), 0, len(tokens), 1)

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        n = tokens.shape[1]
        if n == 1:
            logits = self._one(tokens, starts)
        else:
            assert self._several is not None, "made for blocks"
            logits = self._several(tokens, starts, last)
        found = self._model.all_logits(logits, self._spread)
        return found.reshape(self.batch, last, self.vocab_size)


class _OneEach:
    """Forwards of one token a row, by the session of one sequence."""

    def __init__(self, model: OnnxLM, memory: dict[str, Any], batch: int) -> None:
        plan = model.plan
        self._model = model
        self._hidden = np.zeros((batch, 1, plan.hidden), np.float32)
        self._seen, self._total = np.zeros(batch, np.int32), np.zeros((), np.int32)
        logits = np.zeros((batch, 1, plan.vocab_size), np.float32)
        self._logits = torch.from_numpy(logits[:, 0])
        rows = np.array([-1])
        own = {"hidden": self._hidden, "rows": rows, "seen": self._seen, "total": self._total}
        self._run = _bound(model, own, memory, logits)

    def __call__(self, tokens: Tensor, starts: Sequence[int]) -> Tensor:
        """[B, V] logits of [B, 1] tokens."""
        self._model.embed(tokens[:, 0], self._hidden[:, 0])
        self._seen[:] = starts
        self._total[...] = max(starts) + 1
        self._run()
        return self._logits


class _Several:
    """Forwards of several tokens a row, in their own session."""

    def __init__(self, model: OnnxLM, memory: dict[str, Any], batch: int) -> None:
        self._model, self._memory, self._batch = model, memory, batch
        graph = build_batch_graph(model.plan, model.stored, model.bits, batch)
        self._session, _ = session_of(graph, model.threads)
        self._seen = [np.zeros(1, np.int32) for _ in range(batch)]
        self._total = [np.zeros((), np.int32) for _ in range(batch)]
        self._shapes: dict[tuple[int, int], _Shape] = {}

    def __call__(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        """[B last, V] logits of [B, n] tokens, row after row."""
        n = tokens.shape[1]
        shape = self._shapes.get((n, last)) or self._shape(n, last)
        self._model.embed(tokens.flatten(), shape.hidden)
        for seen, total, start in zip(self._seen, self._total, starts, strict=True):
            seen[0], total[...] = start + n - 1, start + n
        shape.run()
        return shape.logits

    def _shape(self, n: int, last: int) -> _Shape:
        plan, batch = self._model.plan, self._batch
        hidden = np.zeros((1, batch * n, plan.hidden), np.float32)
        rows = np.arange(batch * n).reshape(batch, n)[:, n - last :].flatten()
        logits = np.zeros((1, batch * last, plan.vocab_size), np.float32)
        own: dict[str, npt.NDArray[Any]] = {"hidden": hidden, "rows": rows}
        own |= {f"seen_{row}": array for row, array in enumerate(self._seen)}
        own |= {f"total_{row}": array for row, array in enumerate(self._total)}
        run = _bound(self._model, own, self._memory, logits, self._session)
        self._shapes[n, last] = _Shape(hidden[0], torch.from_numpy(logits[0]), run)
        return self._shapes[n, last]


class _Shape:
    """One shape of a forward, bound to its own memory."""

    __slots__ = ("hidden", "logits", "run")

    def __init__(self, hidden: npt.NDArray[np.float32], logits: Tensor, run: Callable[[], None]) -> None:
        self.hidden, self.logits, self.run = hidden, logits, run


def _bound(
    model: OnnxLM,
    own: dict[str, npt.NDArray[Any]],
    memory: dict[str, Any],
    logits: npt.NDArray[np.float32],
    session: Any = None,
) -> Callable[[], None]:
    """A forward over arrays and caches that stay where they are; caches are written in place."""
    session = model.session if session is None else session
    binding = session.io_binding()
    for name, value in ({name: value_of(array) for name, array in own.items()} | memory).items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("logits", value_of(logits))
    for name, value in memory.items():
        if name not in TABLES:
            binding.bind_ortvalue_output(f"new_{name}", value)
    return partial(session.run_with_iobinding, binding)


_PROMPT, _BLOCK = 12, 3


def batched(model: CausalLM, batch: int, slots: int, *, blocks: bool) -> BatchModel:
    """A model for B sequences over the weights of one, with its own caches."""
    found: BatchModel
    try:
        if isinstance(model, OnnxLM):
            found = OnnxBatchLM(model, batch, slots, blocks=blocks)
        else:
            assert isinstance(model, TorchLM), "encoder-decoders are refused before they are loaded"
            found = StaticBatchLM(model, batch, slots)
    except NotStatic as reason:
        raise _refused(model, batch, str(reason)) from reason
    tested = (1, _BLOCK) if blocks else (1,)
    if (worst := max(difference(model, found, n) for n in tested)) > tolerance(model.dtype):
        raise _refused(model, batch, f"its logits differ by {worst:.3g} of their scale from those of one")
    return found


@torch.inference_mode()
def difference(model: CausalLM, batch: BatchModel, block: int) -> float:
    """The largest difference of logits between a batch and its sequences alone, over the logits' scale.

    The rows hold prompts of unlike lengths, one of them of one token, after what other sequences left in
    their slots.
    """
    generator = torch.Generator().manual_seed(0)
    size = batch.batch
    drawn = torch.randint(model.vocab_size, (size, _PROMPT + block), generator=generator)
    prompts = [row[: 1 + number % (_PROMPT - 1)].tolist() for number, row in enumerate(drawn)]
    tokens = drawn[:, -block:].to(model.device)
    for number, row in enumerate(drawn):
        batch.begin(number, row.flip(0)[:_PROMPT].tolist())
    for number, prompt in enumerate(prompts):
        batch.begin(number, prompt)
    found = batch.score(tokens, [len(prompt) - 1 for prompt in prompts], last=block).clone()
    worst = scale = 0.0
    for number, prompt in enumerate(prompts):
        model.begin(prompt)
        alone = model.score(tokens[number], last=block)
        kept = slice(None) if model.vocabulary is None else model.vocabulary
        one, other = found[number][:, kept].float(), alone[:, kept].float()
        worst = max(worst, float((one - other).abs().max()))
        scale = max(scale, float(other.abs().max()))
    model.rollback(0)
    return worst / max(scale, 1e-9)


def _refused(model: CausalLM, batch: int, reason: str) -> UsageError:
    return UsageError(
        f"{model.config.model_type} over {model.backend} does not run {batch} sequences at once: {reason}.",
        flag="--batch",
        remedy="Give --batch 1.",
    )
