"""A causal language model over ONNX Runtime's forward on a CPU."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import Singles
from spsbench.base.errors import UsageError
from spsbench.config.models import ONNXRUNTIME
from spsbench.models.blueprint import Blueprint, blueprint_of
from spsbench.models.causal_lm import LAST, NORMED, CausalLM, FeatureRows, States, VocabularyRows, roomy
from spsbench.models.checkpoint import EMBEDDING, StoredWeights, trim_heap
from spsbench.models.choices import Choices
from spsbench.models.live_tree import Branches, Columns
from spsbench.models.onnx_graph import FEATURES, Graph, build_graph, state_name
from spsbench.models.trained import embedding_fingerprint
from spsbench.models.witness import ReadBlock

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

    from spsbench.models.torch_lm import TorchLM


# Before its import: it sends usage statistics, and warns on stderr where HOME cannot be written to.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_ERRORS_ONLY = 3
_pool: list[int] = []
"""Threads of this process's pool, once there is one: the runtime makes it once and for all."""


def session_options(threads: int) -> SessionOptions:
    """Return options of a session that runs on so many threads, the caller's included."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    if threads == 1 and not _pool:
        options.intra_op_num_threads = 1
        return options
    if not _pool:
        onnxruntime.set_global_thread_pool_sizes(threads, 1)
        _pool.append(threads)
    if _pool[0] != threads:
        why = f"ONNX Runtime keeps one thread pool a process, and here it has {_pool[0]}, not {threads}."
        raise UsageError(why, flag="--threads", remedy=f"Give {_pool[0]}, or begin a new process.")
    options.use_per_session_threads = False
    return options


_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return what the runtime raises: its own errors have no base, and its bindings raise Python's."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    raised = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (RuntimeError, *raised)


def run_bound(session: InferenceSession, binding: Any) -> None:
    """Run a forward that is bound.

    Raises:
        RuntimeError: as torch's forward would; an error of the runtime's own would pass every handler of it.
    """
    try:
        session.run_with_iobinding(binding)
    except runtime_errors() as error:
        raise as_python(error) from error


def as_python(error: Exception) -> RuntimeError:
    """Return an error of the runtime as Python's own, with its whole message."""
    return RuntimeError("ONNX Runtime: " + (_CODE.sub("", str(error)) or type(error).__name__))


# Larger blocks are prompts: no two are of the same length, and a prompt does not wait for a binding.
_MOST_ROWS_KEPT = 66
"""The pending token and a tree of 65."""

LONG, SEVERAL = 512, 2
"""From so many cached tokens and rows on, products are the faster attention: docs/decisions.md, 0016."""


Bound = tuple[Any, Singles, Tensor, list[Tensor], "_Placed | None"]
"""A shape's binding, its [n, width] embeddings, [last, V] logits, [n, hidden] of each state that is kept, and
what dense attention reads."""


class _Placed:
    """The inputs that say where the n tokens of a forward stand; see ``Graph``."""

    def __init__(self, plan: Blueprint, n: int, slots: int) -> None:
        self._window = next(filter(None, plan.windows), None)
        self._positions = np.zeros((n, 1), np.int64)
        self._places = np.zeros((n, plan.kv_heads, 1, 3), np.int64)
        self._places[:, :, 0, 1] = np.arange(plan.kv_heads)
        shape = (n, plan.heads // plan.kv_heads, slots)
        self._bias = np.zeros(shape, np.float32)
        self._near = np.zeros(shape if self._window else (1, 1, 1), np.float32)
        self.arrays: dict[str, Any] = {"positions": self._positions, "places": self._places}
        self.arrays |= {
            "bias": self._bias.reshape(-1, slots),
            "near": self._near.reshape(-1, self._near.shape[-1]),
        }

    def write(self, start: int, branches: Branches | None) -> None:
        """Place the tokens in the columns from ``start`` on; as a chain, if no branches are given."""
        n = len(self._positions)
        end = start + n
        if branches is None:
            branches = Branches(np.arange(start, end), np.tri(n, dtype=np.bool_))
        first = end - len(branches.positions)
        positions = branches.positions[-n:, None]
        self._positions[:] = positions
        self._places[:, :, 0, 2] = np.arange(start, end)[:, None]
        self._bias[:, :, :first] = 0.0
        self._bias[:, :, first:end] = np.where(branches.sees, 0.0, -np.inf)[:, None]
        self._bias[:, :, end:] = -np.inf
        if self._window:
            far = positions - np.append(np.arange(first), branches.positions) >= self._window
            self._near[:] = self._bias
            self._near[:, :, :end] += np.where(far, -np.inf, 0.0)[:, None]


class OnnxForward:
    """Appends tokens to a cache and scores them.

    Past and present keys and values are the same memory: nothing is copied, and to forget tokens is to
    start earlier.

    Args:
        width: of the embeddings, if not the model's.
        memory: keys and values of ``slots`` tokens with the rotary tables; allocated as needed if not given.
        states: which hidden states are kept of a forward; see ``causal_lm.States``.
        wide: gives the session of dense attention, which trees take; None where there is none.
        blocks: blocks over a long context take it too.

    Attributes:
        memory: see the argument.
        caches: [2 layers, 1, kv_heads, slots, head_dim] the keys and values in it, if it was allocated here.
        features: [n, hidden] of each state of the last forward; the next one of that shape overwrites them.
    """

    def __init__(
        self,
        session: InferenceSession,
        blueprint: Blueprint,
        width: int = 0,
        states: States = (),
        memory: Mapping[str, Any] | None = None,
        slots: int = 0,
        wide: Callable[[], InferenceSession] | None = None,
        blocks: bool = False,
    ) -> None:
        self._session = session
        self._plan = blueprint
        self._wide = wide
        self._blocks = blocks
        self._width = width or blueprint.hidden
        self._states = states
        self.features: list[Tensor] = []
        self.memory = dict(memory or {})
        self._slots = slots
        self._crossed: dict[str, Any] = {}
        self._bound: dict[tuple[int, int, bool], Bound] = {}
        self.caches: Singles = np.empty(0, np.float32)
        # What is written into these arrays is what the graph reads: a value shares an array's memory.
        self._seen, self._total = np.zeros(1, np.int32), np.zeros((), np.int32)

    def __call__(
        self,
        embed: Callable[[Singles], None],
        start: int,
        n: int,
        last: int,
        branches: Branches | None = None,
    ) -> Tensor:
        """[last, V] logits of n tokens after the first ``start`` cached ones; ``embed`` writes [n, width].

        The next forward of the same shape overwrites them. Which attention is used follows from the rows
        and the context alone, so that tokens do not depend on the machine.
        """
        self.make_room(start, start + n)
        several = self._blocks and SEVERAL <= n <= _MOST_ROWS_KEPT and start >= max(LONG, self._slots // 2)
        dense = branches is not None or several
        bound = self._bound.get((n, last, dense)) or self._bind(n, last, dense)
        binding, hidden, logits, self.features, placed = bound
        embed(hidden)
        if placed is not None:
            placed.write(start, branches)
        self._seen[0] = start + n - 1
        self._total[...] = start + n
        run_bound(self._session_of(placed is not None), binding)
        return logits

    def _session_of(self, dense: bool) -> InferenceSession:
        if not dense:
            return self._session
        assert self._wide is not None, "a tree takes dense attention"
        return self._wide()

    def move(self, start: int, columns: Columns) -> None:
        """Move cached tokens to ``start`` and after it."""
        self.caches[:, :, :, start : start + len(columns)] = self.caches[:, :, :, columns]

    def fit(self, wanted: int) -> None:
        """Resize the cache for a sequence of so many tokens: products would go over all of a larger one."""
        if self._wide is not None and self._slots > 2 * roomy(0, wanted):
            self._slots = 0

    def attend(self, crossed: Mapping[str, Any]) -> None:
        """Give every layer the keys and values of a source, until the next call."""
        self._crossed = dict(crossed)
        self._bound.clear()

    def make_room(self, held: int, wanted: int) -> None:
        """Grow the cache to hold ``wanted`` tokens; the first ``held`` stay."""
        if wanted <= self._slots:
            return
        plan = self._plan
        slots = roomy(held, wanted)
        caches = np.zeros((2 * plan.layers, 1, plan.kv_heads, slots, plan.head_dim), np.float32)
        if held:
            caches[:, :, :, :held] = self.caches[:, :, :, :held]
        names = [f"{kind}_{number}" for number in range(plan.layers) for kind in ("key", "value")]
        self.memory = dict(zip(names, map(value_of, caches), strict=True)) | rotary_tables(plan, slots)
        self.caches, self._slots = caches, slots
        self._bound.clear()

    def _bind(self, n: int, last: int, dense: bool) -> Bound:
        session = self._session_of(dense)
        hidden = np.zeros((1, n, self._width), np.float32)
        rows = np.arange(n - last, n)
        placed = _Placed(self._plan, n, self._slots) if dense else None
        inputs = {"hidden": hidden, "rows": rows, "seen": self._seen, "total": self._total}
        inputs = taken_by(session, inputs, self._plan, placed)
        outputs = {"logits": np.zeros((1, last, self._plan.vocab_size), np.float32)}
        for state in self._states:
            name = FEATURES if state == NORMED else state_name(state)
            outputs[name] = np.zeros((1, n, self._plan.hidden), np.float32)
        binding = bind(session, inputs, self.memory | self._crossed, outputs)
        logits, *features = (torch.from_numpy(array[0]) for array in outputs.values())
        bound = (binding, hidden[0], logits, features, placed)
        if n <= _MOST_ROWS_KEPT:
            self._bound[n, last, dense] = bound
        return bound


def taken_by(
    session: InferenceSession, own: Mapping[str, Any], plan: Blueprint, placed: _Placed | None = None
) -> dict[str, Any]:
    """Return the arrays that a session takes: the inputs differ between the ways of attention."""
    spare = placed or _Placed(plan, 1, 1)
    all_ = {**own, **spare.arrays, "dense": np.array(placed is not None)}
    names = {each.name for each in session.get_inputs()}
    return {name: array for name, array in all_.items() if name in names}


def bind(
    session: InferenceSession,
    inputs: Mapping[str, Any],
    memory: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> Any:
    """Bind a forward to arrays and to the runtime's values in ``memory``.

    Caches among these values are written in place.
    """
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, value_of(array))
    for name, value in memory.items():
        binding.bind_ortvalue_input(name, value)
        if name.startswith(("key_", "value_")):
            binding.bind_ortvalue_output(f"new_{name}", value)
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, value_of(array))
    return binding


def rotary_tables(plan: Blueprint, slots: int) -> dict[str, Any]:
    """Return cosines and sines [slots, head_dim / 2] as the runtime's values; none where nothing rotates."""
    if not len(plan.frequencies):
        return {}
    angles = torch.arange(slots, dtype=torch.float32).unsqueeze(1) * plan.frequencies
    return {
        name: value_of((table * plan.rotary_scale).numpy())
        for name, table in zip(("cos", "sin"), (angles.cos(), angles.sin()), strict=True)
    }


def value_of(array: Any) -> Any:
    """Return an array as the runtime's value, which shares its memory and keeps it alive."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(array)


class OnnxModel(CausalLM):
    """Owns a session on a CPU, which other models may share, and a KV cache; batch size 1."""

    backend = ONNXRUNTIME
    embedding: str

    def __init__(
        self,
        config: Any,
        stored: StoredWeights,
        vocab_size: int,
        threads: int,
        reference: Callable[[], TorchLM],
        bits: int | None,
        plan: Blueprint,
        graph: Graph,
    ) -> None:
        # Activations of 8 bits round as coarsely as bfloat16, and its tolerances are theirs.
        dtype = torch.float32 if bits is None else torch.bfloat16
        super().__init__(config, vocab_size, torch.device("cpu"), dtype)
        self.stored = stored
        self.threads = threads
        self._reference = reference
        self.bits, self.plan, self.layers = bits, plan, plan.layers
        self.session, self._weight_bytes = session_of(graph, threads)
        self.wide: Callable[[], InferenceSession] | None = None
        self.large = False
        self._forward = OnnxForward(self.session, plan)
        self._spread: VocabularyRows | None = None
        self._length = 0
        self.parameters, self.kv_bytes_per_token = stored.parameters, plan.kv_bytes_per_token

    @property
    def weights(self) -> str:
        """``float32``, or how the matrices are rounded."""
        return "float32" if self.bits is None else f"int{self.bits}"

    @property
    def embedding_shape(self) -> tuple[int, int]:
        rows, width = self.stored.shape(self.embedding)
        return rows, width

    @property
    def length(self) -> int:
        return self._length

    def forward_bytes(self, rows: int = 1) -> int:
        return self._weight_bytes

    def reference(self) -> TorchLM:
        return self._reference()

    def begin(self, prompt: Sequence[int]) -> Tensor:
        self._forward.fit(len(prompt))
        return super().begin(prompt)

    def score(self, tokens: Tensor, last: int, branches: Branches | None = None) -> Tensor:
        """See ``LanguageModel.score``; with ``branches`` tokens are appended as nodes of a tree."""
        n, start = tokens.shape[0], self._length
        logits = self._forward(lambda out: self.embed(tokens, out), start, n, last, branches)
        if self._features is not None:
            self._features.write(start, self._forward.features)
        self._length = start + n
        return self.all_logits(logits, self._spread)

    def keep(self, start: int, columns: Columns) -> None:
        """Move cached tokens to ``start`` and after it, and forget all that comes after."""
        if len(columns):
            self._forward.move(start, columns)
        if self._features is not None:
            self._features.move(start, torch.from_numpy(columns))
        self._length = start + len(columns)

    def rollback(self, length: int) -> None:
        self._length = min(self._length, length)

    def restore(self, length: int) -> None:
        self._length = length

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        return self._scored_by(OnnxForward(self.session, self.plan), tokens, last)

    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> Iterator[Tensor] | None:
        return self._blocks_by(OnnxForward(self.session, self.plan), tokens, first, blocks)

    def _blocks_by(
        self, fresh: OnnxForward, tokens: Tensor, first: int, blocks: Sequence[ReadBlock]
    ) -> Iterator[Tensor]:
        """See ``score_in_blocks``; uses a fresh forward, which is never rolled back: nothing is dropped."""
        start = 0
        for n in (first, *(block.kept for block in blocks)):
            if not n:
                continue
            rows = fresh(partial(self.embed, tokens[start : start + n]), start, n, n if start >= first else 1)
            if start >= first:
                yield self.all_logits(rows.clone(), self.new_spread())
            start += n

    def _scored_by(self, fresh: OnnxForward, tokens: Tensor, last: int) -> Tensor:
        n = tokens.shape[0]
        logits = fresh(lambda out: self.embed(tokens, out), 0, n, last or n)
        return self.all_logits(logits, self.new_spread())

    def twin(self) -> Self:
        other = copy.copy(self)
        other._forward = other._new_forward()
        other._length, other._features, other._spread = 0, None, other.new_spread()
        return other

    def _new_forward(self) -> OnnxForward:
        return OnnxForward(self.session, self.plan, wide=self.wide, blocks=self.large)

    def embed(self, tokens: Tensor, out: Singles) -> None:
        """Write the embeddings of tokens [n] into ``out`` [n, width]."""
        self.stored.rows(self.embedding, tokens.numpy(), out)
        if self.plan.embedding_scale != 1.0:
            out *= self.plan.embedding_scale

    def new_spread(self) -> VocabularyRows | None:
        """Return rows to spread a partial vocabulary's logits into; None where the head covers all."""
        return None if self.vocabulary is None else VocabularyRows(self.vocabulary, self.vocab_size)

    def all_logits(self, logits: Tensor, spread: VocabularyRows | None) -> Tensor:
        """Return the logits of all used tokens, from those of the head."""
        if spread is not None:
            return spread(logits)
        return logits if logits.shape[-1] == self.vocab_size else logits[:, : self.vocab_size]


_LARGE = 8 << 20
"""From so many bytes of weights a layer on, one session has both ways of attention: the choice between them
costs some microseconds a layer. Smaller models get a second session when they are given a tree."""


class OnnxLM(OnnxModel):
    """A decoder alone; the rows of its head stand for the tokens of ``vocabulary`` [m], or for all."""

    embedding = EMBEDDING

    def __init__(
        self,
        config: Any,
        stored: StoredWeights,
        vocab_size: int,
        threads: int,
        reference: Callable[[], TorchLM],
        layers: int | None = None,
        bits: int | None = None,
        vocabulary: Tensor | None = None,
    ) -> None:
        plan = blueprint_of(config)
        plan = replace(
            plan,
            layers=plan.layers if layers is None else layers,
            vocab_size=plan.vocab_size if vocabulary is None else len(vocabulary),
        )
        large = plan.layer_entries * (bits or 32) // 8 >= _LARGE
        graph = build_graph(plan, stored, bits, ways="both" if large else "fused")
        super().__init__(config, stored, vocab_size, threads, reference, bits, plan, graph)
        session, self.large = self.session, large
        self.wide = cache(
            lambda: (
                session if large else session_of(build_graph(plan, stored, bits, ways="dense"), threads)[0]
            )
        )
        self._forward = self._new_forward()
        self.vocabulary = vocabulary
        self._spread = self.new_spread()
        self._variants: dict[tuple[int | None, int | None], OnnxLM] = {}
        self._sessions: dict[States, InferenceSession] = {}

    def with_features(self, flag: str, states: States = LAST) -> OnnxLM:
        self._require_kept(states, flag)
        other = self.twin()
        session, wide = self.session, self.wide
        raw = tuple(sorted({state for state in states if state != NORMED}))
        if raw:
            session = self._session_showing(raw)
            wide = lambda: session  # noqa: E731 - it has both ways of attention
        other._forward = OnnxForward(session, self.plan, states=states, wide=wide, blocks=self.large)
        other._features = FeatureRows(states)
        return other

    def _session_showing(self, states: States) -> InferenceSession:
        """Its graph gives these states too; its weights are in memory once more.

        As outputs of the one graph they would be kept in every forward of every twin.
        """
        if states not in self._sessions:
            graph = build_graph(self.plan, self.stored, self.bits, ways="both", states=states)
            self._sessions[states] = session_of(graph, self.threads)[0]
        return self._sessions[states]

    def embedding_fingerprint(self) -> str:
        return embedding_fingerprint(self.stored)

    def truncated(self, layers: int, flag: str) -> OnnxLM:
        self._require_layers(layers, flag)
        return self._variant(layers, self.bits)

    def rounded(self, bits: int) -> OnnxLM:
        """Return the model with its matrices rounded to 8 or 4 bits, with its own cache.

        Norms and embeddings stay as they are. Made once: further calls share the weights.
        """
        return self._variant(None, bits)

    def _variant(self, layers: int | None, bits: int | None) -> OnnxLM:
        if (layers, bits) not in self._variants:
            self._variants[layers, bits] = type(self)(
                self.config,
                self.stored,
                self.vocab_size,
                self.threads,
                self._reference,
                layers=layers,
                bits=bits,
                vocabulary=self.vocabulary,
            )
        return self._variants[layers, bits].twin()


def session_of(graph: Graph, threads: int) -> tuple[InferenceSession, int]:
    """Return a session of a graph on so many threads, and the bytes of weights that a forward reads."""
    from onnxruntime import InferenceSession, OrtValue

    options = session_options(threads)
    values = [OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
    options.add_external_initializers(list(graph.weights), values)
    try:
        session = InferenceSession(
            graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except runtime_errors() as error:
        raise as_python(error) from error
    trim_heap()  # packing leaves hundreds of megabytes free in it
    return session, sum(array.nbytes for array in graph.weights.values())
