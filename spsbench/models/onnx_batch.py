"""A causal language model over ONNX Runtime that scores B sequences at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spsbench.models.onnx_batch_graph import build_batch_graph
from spsbench.models.onnx_forward import TABLES, OnnxCache, OnnxForward, rotary_tables, value_of
from spsbench.models.onnx_lm import OnnxLM, session_of


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
        """See ``BatchModel.begin``."""
        if len(prompt) > 1:
            tokens = torch.tensor(prompt[:-1])
            self._readers[row](partial(self._model.embed, tokens), 0, len(tokens), 1)

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        """See ``BatchModel.score``."""
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
